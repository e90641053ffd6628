"""Results as dataclasses; from them text, csv, json, pictures and comparisons.

Importing this imports nothing slow: take what you need from its modules.
"""
