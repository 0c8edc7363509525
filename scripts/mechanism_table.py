"""Writes README.md's table of mechanisms x sockets from the catalogue (``--check`` only compares, exit code 1)."""

from __future__ import annotations

import sys
from pathlib import Path

from vlplatform import attention

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- mechanisms -->\n", "<!-- /mechanisms -->"


def table() -> str:
    """The Markdown table, one row per mechanism, those of the local socket first."""
    rows = [f"| `attn=` | {' | '.join(_SHOWN)} | what it is | source |", "|---|" + "---|" * (len(_SHOWN) + 2)]
    for m in sorted(attention.catalogue().values(), key=lambda m: (_SHOWN.index(m.sockets[0]), m.name)):
        marks = [("●" + (f" (`{m.families[s]}`)" if s in m.families else "")) if s in m.sockets else "" for s in _SHOWN]
        mark = "eq. " if m.equations[:1].isdigit() else ""
        source = f"{m.paper[:1].upper()}{m.paper[1:]}, {mark}{m.equations}"
        rows.append(f"| `{m.name}` | {' | '.join(marks)} | {m.summary} | {source} |")
    return "\n".join(rows) + "\n"


_SHOWN: tuple[attention.Socket, ...] = ("local", "context", "token", "fusion")


def main() -> int:
    """Rewrite or compare."""
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    new = head + BEGIN + table() + END + tail
    if "--check" in sys.argv:
        return int(new != text)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
