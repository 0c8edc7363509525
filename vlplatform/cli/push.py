"""``vlp push``: publish a model folder on a hub."""

from __future__ import annotations

import argparse

HELP = "Publish an exported model (or a run's best one) on a hub and print its address."
EPILOG = """examples:
  vlp push runs/NAME org/name
  vlp push my-model org/name --private --message "after 80 epochs"

HF_TOKEN must hold a token that may write; HF_ENDPOINT names another hub."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to publish, and as what."""
    parser.add_argument("folder", metavar="FOLDER", help="an exported model, or a run's folder (its best/ is meant)")
    parser.add_argument("hub_id", metavar="ORG/NAME", help="the repository, made where it is missing")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument("--message", help="of the commit")
    parser.add_argument("--endpoint", metavar="URL", help="the hub's address (HF_ENDPOINT by default)")


def run(args: argparse.Namespace) -> int:
    """Push and print the address."""
    from vlplatform import hub

    print(hub.push(args.folder, args.hub_id, private=args.private, message=args.message, endpoint=args.endpoint))
    return 0
