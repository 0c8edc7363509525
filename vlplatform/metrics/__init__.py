"""Scores computed from counts, without any model."""
