"""Memory that one training step frees and the next one takes again.

glibc gives large freed blocks back to the system and fetches them anew, page by page, in every step; on the machine
of docs/benchmarks.md that cost 7 % of a step on the CPU. Two of its limits, raised once, keep them.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAPPED_FROM = 32 << 20  # the largest that glibc takes: bigger blocks are always given back
_FREE_AT_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep up to 2 GiB of freed memory in the process; False where the C library is not glibc."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(option, value) for option, value in ((_MMAP_THRESHOLD, _MAPPED_FROM), (_TRIM_THRESHOLD, _FREE_AT_MOST))
    )
