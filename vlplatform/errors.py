"""The one exception a user's mistake raises, and the helper that finds the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend; its text is one sentence: what was wrong, where, what to do.

    The command line prints it without a traceback (unless ``--debug``) and exits with code 2.
    """


def nearest(name: object, valid: Iterable[str]) -> str:
    """``"did you mean 'x'? valid: x, y, z"`` for an unknown ``name`` (text or not) among the ``valid`` ones."""
    names = sorted(valid)
    listed = "valid: " + ", ".join(names) if names else "there is none"
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'? {listed}" if close else listed
