"""Checks of models' settings."""

from __future__ import annotations

from typing import Any


def check_ranges(settings: Any, *rates: str, split: bool = False, **least: int) -> None:
    """Refuse settings that no model can be built from.

    Args:
        settings: The dataclass.
        rates: Names of rates of dropout, at least 0 and below 1.
        split: ``heads`` must divide ``dim``.
        least: Names of whole numbers with the least each may be; those that are None are left to their defaults.

    Raises:
        ValueError: One is out of its range; name and range are told.
    """
    for name, minimum in least.items():
        if (value := getattr(settings, name)) is not None and value < minimum:
            raise ValueError(f"{name}={value} must be at least {minimum}")
    for name in rates:
        if not 0 <= (value := getattr(settings, name)) < 1:
            raise ValueError(f"{name}={value} must be at least 0 and below 1")
    if split and settings.dim % settings.heads:
        raise ValueError(f"dim={settings.dim} is not divisible by heads={settings.heads}")
