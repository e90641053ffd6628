"""Unmodified training scripts, and copies with one mistake each."""
