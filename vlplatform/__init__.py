"""vlplatform: attention mechanisms written once, compared fairly in every vision-language task.

Importing this package loads nothing but the standard library; ``vlplatform.attention`` adds torch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vlplatform.hub import load as load

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from vlplatform.hub import load

        return load
    raise AttributeError(f"module 'vlplatform' has no attribute {name!r}")
