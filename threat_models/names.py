"""Names that a user gives, checked."""

import difflib
from collections.abc import Iterable


def check_choice(parameter: str, value: str, allowed: Iterable[str]) -> None:
    """Raises where a name is unknown.

    Args:
        parameter: what the name is given for.
        value: the name that came.
        allowed: the valid names.

    Raises:
        ValueError: naming the parameter, what is allowed, what came and the nearest valid name.
    """
    names = list(allowed)
    if value in names:
        return
    folded = {name.lower(): name for name in names}
    near = difflib.get_close_matches(str(value).lower(), folded, n=1, cutoff=0.4)
    hint = f"; did you mean {folded[near[0]]!r}?" if near else ""
    raise ValueError(f"{parameter} must be one of {', '.join(names)}, got {value!r}{hint}")
