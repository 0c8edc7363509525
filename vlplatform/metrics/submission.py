"""Result files for the COCO caption server: a JSON list of {image_id, caption}.

The server wants them named `captions_<split>_<name>_results.json` (https://cocodataset.org/#captions-eval).
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from vlplatform.errors import UserError


def write_submission(path: str | os.PathLike[str], captions: Mapping[int | str, str]) -> Path:
    """Write ``path``, whole or not at all; a file of that name is replaced.

    Args:
        path: The file, in a folder that exists.
        captions: COCO's image id (a number, or its digits as text) → caption.

    Returns:
        The path.

    Raises:
        UserError: An id that is no number or there twice, a caption that is no text or empty, no caption at all, or a
            place that cannot be written to.
    """
    records: dict[int, str] = {}
    for given, caption in captions.items():
        if isinstance(given, bool) or not (isinstance(given, int) or (given.isascii() and given.isdigit())):
            raise UserError(f"the image id {given!r} is no number: the COCO server takes COCO's image ids only.")
        if int(given) in records:
            raise UserError(f"image {int(given)} has two captions: give one for each image.")
        if not isinstance(caption, str) or not caption.strip():
            raise UserError(f"the caption of image {int(given)} is {caption!r}: the server wants text.")
        records[int(given)] = " ".join(caption.split())
    if not records:
        raise UserError("there are no captions to submit: generate them first.")
    text = json.dumps([{"image_id": number, "caption": caption} for number, caption in records.items()]) + "\n"
    target = Path(path)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except OSError as error:
        raise UserError(f"the submission cannot be written to {target} ({error.strerror or error}).") from error
    finally:
        aside.unlink(missing_ok=True)
    return target
