"""Canaries: the record z by which the two neighbouring data sets differ."""

from canaries.dirac import DiracCanary
from canaries.input_space import InputCanary, crafted

Canary = DiracCanary | InputCanary
"""A canary: a `DiracCanary` or an `InputCanary`."""

__all__ = ["Canary", "DiracCanary", "InputCanary", "crafted"]
