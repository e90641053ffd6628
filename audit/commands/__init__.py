"""The commands: `python -m audit.run`, `bounds`, `compare`, `verify` and `app`.

`audit.report` is a command of its own package; `python -m audit` lists all commands.
"""
