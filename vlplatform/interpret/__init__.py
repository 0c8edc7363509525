"""See what a model's attention reads: capture the maps of any model, draw them, and lay them out for a report."""

from __future__ import annotations

from vlplatform.interpret.capture import Captured, MapAttention, capture
from vlplatform.interpret.rows import CAPTION, attention_rows

__all__ = ["CAPTION", "Captured", "MapAttention", "attention_rows", "capture"]
