"""The version of this package, the only copy in the code."""

__version__ = "0.3.0"
