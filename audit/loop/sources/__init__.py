"""Doors of the test of training loops: arrays, scripts, and records of every common form."""
