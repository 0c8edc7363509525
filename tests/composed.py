"""Composed settings with changes, for tests that need many variants of the same ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from vlplatform.settings import of_words


def changed(sections: Mapping[str, Any], *words: str) -> dict[str, Any]:
    """A copy with ``key=value`` words over it; composing anew for each test would take longer than the tests.

    A word of a group alone (``attn=dsa``) replaces its whole section.
    """
    made = copy.deepcopy(dict(sections))
    for key, value in of_words(words).items():
        *path, last = key.split(".")
        if not path:
            path, last, made[key] = [key], "name", {}
        place = made
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return made
