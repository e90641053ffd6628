"""Adapters to other libraries: `opacus` reads its accountants, `optuna` its studies and objectives.

Neither module imports the other library before it is used.
"""
