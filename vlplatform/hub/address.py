"""Where a model lives on which hub, and with what token: checked before anything is asked of the network."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from huggingface_hub import constants

from vlplatform.errors import UserError

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[.-](?![.-]))*"
_HUB_ID = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_+-]|[./](?![./]))*")


def is_hub_id(text: str) -> bool:
    """Whether ``text`` has the form org/name or org/name@revision."""
    return _HUB_ID.fullmatch(text.partition("@")[0]) is not None


def parse_hub_id(text: str, revision: str | None = None) -> tuple[str, str]:
    """``(org/name, revision)`` of a hub id; the revision is ``main`` where none is given.

    Raises:
        UserError: Not of that form (nothing that could be a path or an address passes), or two revisions.
    """
    repo, at, own = text.partition("@")
    if not _HUB_ID.fullmatch(repo) or len(repo) > 96 or repo.endswith((".", "-", ".git")):
        raise UserError(f"{text!r} is not a hub id: write org/name or org/name@revision.")
    if at and revision not in (None, own):
        raise UserError(f"{text!r} and revision {revision!r} name two revisions: give one.")
    chosen = own if at else revision if revision is not None else "main"
    if not _REVISION.fullmatch(chosen) or len(chosen) > 255 or chosen.endswith((".", "/", ".lock")):
        raise UserError(f"{chosen!r} is not a revision: give a branch, a tag, or a commit.")
    return repo, chosen


def endpoint_or_default(endpoint: str | None) -> str:
    """The hub's address: the one given, else HF_ENDPOINT, else the public hub.

    Raises:
        UserError: Not an http(s) address, or one with a password in it.
    """
    address = (endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    try:
        parts = urlsplit(address)
        port_is_sane = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_sane = urlsplit(""), False
    if parts.username or parts.password:
        raise UserError("the hub's endpoint must not hold a name or password: put a token into HF_TOKEN instead.")
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_sane or parts.query or parts.fragment:
        raise UserError(f"the hub's endpoint {address!r} is not an address such as https://huggingface.co: mend it.")
    return address


def token_from_environment() -> str | None:
    """HF_TOKEN, or ``None``; no other place is looked at.

    Raises:
        UserError: It holds what no token holds (the value is not shown).
    """
    token = os.environ.get("HF_TOKEN", "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise UserError("HF_TOKEN holds blanks or characters that no token has: copy it again.")
    return token or None
