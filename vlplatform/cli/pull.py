"""``vlp pull``: download published weights into the cache."""

from __future__ import annotations

import argparse

HELP = "Download a published model into the cache and print its folder there."
EPILOG = """examples:
  vlp pull org/name
  vlp pull org/name@v1.0 --cache models
  vlp pull org/name --offline      (is it in the cache, and whole?)

The token for private models is taken from HF_TOKEN, the hub's address from HF_ENDPOINT."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The hub id, and where to look and to put."""
    parser.add_argument("hub_id", metavar="ORG/NAME[@REVISION]", help="the model on the hub")
    parser.add_argument("--revision", help="branch, tag or commit (main by default)")
    parser.add_argument("--cache", metavar="FOLDER", help="the cache (HF_HUB_CACHE by default)")
    parser.add_argument("--endpoint", metavar="URL", help="the hub's address (HF_ENDPOINT by default)")
    parser.add_argument("--offline", action="store_true", default=None, help="use the cache alone")


def run(args: argparse.Namespace) -> int:
    """Pull and print the folder."""
    from vlplatform import hub

    folder = hub.pull(
        args.hub_id, revision=args.revision, cache=args.cache, endpoint=args.endpoint, offline=args.offline
    )
    print(folder)
    return 0
