"""Well-separated colours for any number of classes."""

from __future__ import annotations


def palette(count: int) -> tuple[tuple[int, int, int], ...]:
    """``count`` RGB colours in the customary order of Pascal VOC: black, dark red, dark green, …

    The bits of the class id are dealt in turn to red, green and blue, the most significant bit first.
    """
    return tuple((_channel(i, 0), _channel(i, 1), _channel(i, 2)) for i in range(count))


def _channel(class_id: int, channel: int) -> int:
    return sum((class_id >> (3 * place + channel) & 1) << (7 - place) for place in range(8))
