"""Region features as given out by two groups of authors: tab-separated lines with base64 columns.

Anderson et al., Bottom-Up and Top-Down Attention, CVPR 2018, and Tan and Bansal, LXMERT, EMNLP 2019, whose lines have
more columns in another order. Boxes (N, 4) and features (N, F) are float32, little-endian. The files have tens of
gigabytes: they are read once from end to end for an index of the lines (kept in the cache folder), then line by line
where they are wanted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlp_captioning.readers.features.checked import checked
from vlp_captioning.readers.records import Visual
from vlplatform.data import cache_folder
from vlplatform.errors import UserError

BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
LXMERT = (
    *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
    *("num_boxes", "boxes", "features"),
)
_LAYOUTS = {len(columns): columns for columns in (BOTTOM_UP, LXMERT)}

_Line = tuple[str, int, int]  # image id, place in bytes, length in bytes


class TsvFeatures:
    """One TSV file, or several that belong together.

    Args:
        path: What the user named.
        files: The files.

    Raises:
        UserError: A line without the columns of either kind, or a file that is cut off.
    """

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path, self.files = path, list(files)
        self.lines: dict[str, tuple[int, int, int]] = {}
        twice = 0
        for number, file in enumerate(self.files):
            for key, start, length in _index(file):
                twice += key in self.lines
                self.lines.setdefault(key, (number, start, length))
        if not self.lines:
            raise UserError(f"the features {path} hold no line: copy the file again.")
        self.example = next(iter(self.lines))
        self.width = self._width()
        again = f", lines of pictures that came before left aside: {twice}" if twice else ""
        kind = "LXMERT" if len(self._columns(self.example)) == len(LXMERT) else "bottom-up"
        pictures = f"{len(self.lines)} picture{'s' * (len(self.lines) != 1)}"
        self.found = f"{kind} TSV, {pictures}, {self.width} values a region{again}"

    def __contains__(self, key: str) -> bool:
        return key in self.lines

    def __len__(self) -> int:
        return len(self.lines)

    def features(self, key: str) -> Visual:
        """Regions (N, F) with boxes and the picture's size.

        Raises:
            UserError: No such picture, or a damaged line.
        """
        columns = self._columns(key)
        where = f"{self.files[self.lines[key][0]]}, image_id {key},"
        try:
            width, height = (int(float(columns.get(f"image_{side}") or columns[f"img_{side}"])) for side in "wh")
            boxes = _floats(columns["boxes"]).reshape(count := int(float(columns["num_boxes"])), 4)
            vectors = _floats(columns["features"]).reshape(count, self.width)
        except (ValueError, binascii.Error) as error:
            raise UserError(
                f"{where} cannot be decoded ({error}): the line is damaged; copy the file again."
            ) from error
        return checked(vectors, where, boxes=boxes, size=(width, height))

    def _width(self) -> int:
        """Values of a region, told by the first picture that has any region; 0 without such a picture."""
        for key in self.lines:
            columns = self._columns(key)
            try:
                if (count := int(float(columns["num_boxes"]))) > 0:
                    return len(_floats(columns["features"])) // count
            except (ValueError, binascii.Error) as error:
                raise UserError(
                    f"{self.files[self.lines[key][0]]}, image_id {key}, cannot be decoded ({error}): the line is "
                    "damaged; copy the file again."
                ) from error
        return 0

    def _columns(self, key: str) -> dict[str, bytes]:
        if key not in self.lines:
            raise UserError(f"{self.path} has no features of '{key}': add them, or leave out that picture.")
        number, start, length = self.lines[key]
        with self.files[number].open("rb") as file:
            file.seek(start)
            columns = file.read(length).rstrip(b"\r\n").split(b"\t")
        if len(columns) not in _LAYOUTS or columns[0].decode("utf-8", "replace") != key:
            raise UserError(f"{self.files[number]} has changed since it was opened (image_id {key}): start again.")
        return dict(zip(_LAYOUTS[len(columns)], columns))


def _floats(column: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(column, validate=True), dtype="<f4")


def _index(file: Path) -> list[_Line]:
    """The lines of a file, from the cache folder if they were found before."""
    state = file.stat()
    name = hashlib.sha256(f"{file.resolve()}|{state.st_size}|{state.st_mtime_ns}".encode()).hexdigest()[:24]
    kept = cache_folder() / "tsv" / f"{name}.json"
    try:
        return [(str(key), int(start), int(length)) for key, start, length in json.loads(kept.read_text())]
    except (OSError, ValueError, TypeError):
        lines = _read_index(file)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        aside = kept.with_suffix(".part")
        aside.write_text(json.dumps(lines))
        aside.replace(kept)
    except OSError:
        pass  # a cache that cannot be written only costs time
    return lines


def _read_index(file: Path) -> list[_Line]:
    lines: list[_Line] = []
    start, known = 0, [len(columns) for columns in _LAYOUTS.values()]
    with file.open("rb") as source:
        for number, line in enumerate(source, 1):
            key = line.partition(b"\t")[0].decode("utf-8", "replace")
            if line.strip() and not (number == 1 and key in (BOTTOM_UP[0], LXMERT[0])):
                if (count := line.count(b"\t") + 1) not in known:
                    wanted = " or ".join(", ".join(_LAYOUTS[n]) for n in known)
                    raise UserError(
                        f"{file}, line {number} (image_id {key:.40}), has {count} columns where there must be "
                        f"{wanted}: the file is cut off or of another format; copy it again."
                    )
                known = [count]  # a file is of one kind
                lines.append((key, start, len(line)))
            start += len(line)
    return lines
