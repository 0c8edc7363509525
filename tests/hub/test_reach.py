"""A hub that does not answer is noticed by one request."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vlplatform.errors import UserError
from vlplatform.hub.reach import beyond_reach
from vlplatform.text.subwords import split


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}",
    )
    assert beyond_reach("org/name")
    assert not beyond_reach(str(tmp_path))
    pytest.importorskip("transformers")
    began = time.monotonic()
    with pytest.raises(UserError, match="the tokeniser org/name cannot be had"):
        split(["a b"], "org/name")
    assert time.monotonic() - began < 15
