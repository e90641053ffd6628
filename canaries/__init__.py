"""Canaries: the record z in which the two neighbouring data sets differ."""

from canaries.crafted import crafted
from canaries.dirac import DiracCanary
from canaries.input_space import InputCanary

Canary = DiracCanary | InputCanary
"""Either kind."""

__all__ = ["Canary", "DiracCanary", "InputCanary", "crafted"]
