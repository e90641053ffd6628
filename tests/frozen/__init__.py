"""Frozen numbers and verdicts, which a change of code must not change unnoticed.

Each module computes one family of values through the public interface, and the json file of the
same name stores them. `python tests/frozen FAMILY...` computes values again, prints each value
that moved, and stores it. This is allowed only for a corrected error, or for a search that ends
elsewhere within its tolerance. The changelog then states the value and the reason.
"""
