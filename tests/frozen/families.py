"""All families of frozen values."""

from collections.abc import Callable

from . import audits, certificates, compositions, costs, finished, inverse, loops, lower, rows
from .entries import Entry

FAMILIES: dict[str, Callable[[], dict[str, Entry]]] = {
    "costs": costs.entries,
    "rows": rows.entries,
    "compositions": compositions.entries,
    "inverse": inverse.entries,
    "finished": finished.entries,
    "certificates": certificates.entries,
    "lower": lower.entries,
    "loops": loops.entries,
    "audits": audits.entries,
}
"""A function that returns the entries, by the name of the family and of its file."""
