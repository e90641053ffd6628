"""Tests of the premises of a training loop's accountant."""
