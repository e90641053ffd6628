"""The results of an audit as dataclasses, and their text, csv, json, html and figures.

Importing this package is fast; import what you need from its modules.
"""
