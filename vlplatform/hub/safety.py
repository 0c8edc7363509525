"""What a repository must not hold: files that can run code, whether they are used or not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from vlplatform.errors import UserError

_KINDS: dict[str, str] = {
    "can hold a pickle, which runs code when it is read": (
        ".bin .pt .pth .pkl .pickle .ckpt .npy .npz .joblib .dill .cloudpickle .p .pck .t7 .mar .nemo .keras .h5 .hdf5"
    ),
    "is code": (
        ".py .pyc .pyo .pyd .pyw .pyx .pyz .ipynb .so .dylib .dll .a .o .exe .com .msi .sh .bash .zsh .fish .csh "
        ".bat .cmd .ps1 .vbs .js .mjs .cjs .ts .wasm .jar .class .rb .pl .php .lua .r .jl .c .cc .cpp .cu .cuh .ptx "
        ".h .hpp .rs .go .java .app .apk .deb .rpm .whl .egg"
    ),
    "is an archive, in which pickles or code may hide": ".zip .tar .tgz .tbz .tbz2 .txz .7z .rar .gz .bz2 .xz .zst",
}
_REASONS = {suffix: reason for reason, suffixes in _KINDS.items() for suffix in suffixes.split()}


def reason_to_refuse(name: str) -> str | None:
    """Why a file of this name is not wanted in a repository; ``None`` for a harmless one."""
    path = PurePosixPath(name.rstrip(". ").lower())
    if path.name in ("makefile", "dockerfile"):
        return "is code"
    return _REASONS.get(path.suffix)


def refuse_unsafe(repository: str, names: Iterable[str]) -> None:
    """Stop at the first file that can run code.

    Raises:
        UserError: Naming the file and the reason.
    """
    for name in sorted(names):
        if reason := reason_to_refuse(name):
            raise UserError(
                f"{repository} is refused because its file {name!r} {reason}: ask its owner for a repository of "
                "safetensors and JSON alone."
            )
