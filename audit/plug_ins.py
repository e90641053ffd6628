"""Modules of the user that define protocols, bounds or mechanisms of their own.

Defining a protocol registers it, so a command only has to import its module. Nothing imports a
module because a file names it: the user names the modules on the command line or in settings.
"""

import importlib

from audit import checks
from audit.errors import InvalidInput

MEANING = "modules that define your own protocols, separated by commas"
"""What the option `--imports` takes, for help texts."""


def import_modules(names: str) -> str:
    """Imports modules named in a text and returns the text without white space.

    Raises:
        InvalidInput: a name is not that of a module, or its import raises an exception.
    """
    modules = [name.strip() for name in names.split(",") if name.strip()]
    for module in modules:
        problem = "it is not a name of the form package.module"
        if module.endswith(".py"):
            problem = "leave out .py, and give the name of the module"
        elif all(identifier.isidentifier() for identifier in module.split(".")):
            try:
                importlib.import_module(module)
                continue
            except Exception as error:
                problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise InvalidInput(
            f"imports must be modules that can be imported, got {checks.one_line(module)}: "
            f"{problem}"
        )
    return ",".join(modules)
