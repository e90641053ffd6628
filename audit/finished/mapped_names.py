"""Roles of columns that contradict the names of the columns, such as epochs mapped to steps.

A mapping is the user's statement, so a name that says nothing is accepted. A name that states
another quantity is not: read as the role, its values would give a wrong cost.
"""

from collections.abc import Mapping

from audit import checks
from audit.errors import InvalidInput
from audit.finished.columns import (
    FUNCTIONS,
    IGNORE,
    LENGTHS,
    OTHER_NOISES,
    ROLES,
    name_set,
    without_prefix,
    words_of,
)

_LOSSES = ("target_epsilon", "gdp_mu", "zcdp_rho")
_NO_LENGTHS = name_set(
    "warmup eval save log logging val validation print checkpoint patience lr decay accumulation "
    "accum per"
)
_OF_LEARNING = name_set(
    "lr learning momentum dropout decay seed accuracy acc loss score norm clip clipping"
)
_EPSILONS = frozenset({"epsilon", "epsilons", "eps"})
_OF_PRIVACY = _EPSILONS | {"noise", "privacy", "dp"}
_NOISES = frozenset({"noise", "sigma", "nm"})


def check_mapped_names(mapping: Mapping[str, str]) -> None:
    """Refuses a role that a column's name contradicts.

    Raises:
        InvalidInput: a name states another quantity than its role.

    Example:
        >>> check_mapped_names({"sigma": "noise_multiplier", "max_steps": "steps"})
        >>> check_mapped_names({"num_train_epochs": "steps"})
        Traceback (most recent call last):
        ...
        audit.errors.InvalidInput: columns must map 'num_train_epochs', by its name a number of \
epochs, to the role with this meaning, got steps: map it to epochs, or rename the column
    """
    for column, role in mapping.items():
        if role == IGNORE or role not in ROLES:
            continue
        stated, right_role = _quantity_named(without_prefix(column), role)
        if stated:
            raise InvalidInput(
                f"columns must map {checks.one_line(column)}, by its name {stated}, to the role "
                f"with this meaning, got {role}: map it to {right_role or IGNORE}, or rename the "
                "column"
            )


def _quantity_named(name: str, role: str) -> tuple[str, str]:
    """The quantity that a name states if it is not the role's, and the right role; else empty."""
    last_words = words_of(name.replace("/", ".").rpartition(".")[2])
    words, joined = set(last_words), "".join(last_words)
    if (
        words & FUNCTIONS - {"log"}
        or (last_words[:1] == ["log"] and role != "steps")
        or "%" in name
    ):
        return ("a function of another quantity", "")
    if role in LENGTHS:
        if words & _NO_LENGTHS and not {"per", "run"} <= words:
            return ("something else than the length of a run", "")
        if role == "steps" and "epoch" in joined and not {"step", "steps"} & words:
            return ("a number of epochs", "epochs")
        if role == "epochs" and "epoch" not in joined and words & {"step", "steps", "iterations"}:
            return ("a number of steps", "steps")
    if role == "noise_multiplier":
        if words & _EPSILONS and not words & _NOISES:
            return ("an epsilon", "target_epsilon")
        if words & {"var", "variance"}:
            return ("a variance, whose square root is the standard deviation", "")
        if words & OTHER_NOISES:
            return ("the noise of something else than gradients", "")
    if role in _LOSSES and (words & _NOISES) and not words & (_EPSILONS | {"mu", "rho"}):
        return ("a noise", "noise_multiplier")
    if role != "delta" and words & _OF_LEARNING and not words & _OF_PRIVACY:
        return ("a setting or a result of learning", "")
    return ("", "")
