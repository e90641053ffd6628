"""Converts mechanisms to plain values for files, and back."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from audit import checks
from audit.accounting.additive_noise import GaussianMechanism, LaplaceMechanism
from audit.accounting.combinations import Candidates, Composition, Mixture, WorstOf
from audit.accounting.curves import PrivacyProfile, RenyiCurve, ZeroConcentratedDp
from audit.accounting.discrete import ApproximateDp, DiscreteMechanism, PureDp, RandomisedResponse
from audit.accounting.dpsgd import DpSgd
from audit.accounting.loss_distribution import LossDistribution
from audit.accounting.mechanism import Mechanism
from audit.accounting.random_allocation import RandomAllocation
from audit.errors import InvalidInput

MECHANISMS: dict[str, type[Mechanism]] = {
    kind.__name__: kind
    for kind in (
        WorstOf,
        ApproximateDp,
        Candidates,
        Composition,
        DiscreteMechanism,
        DpSgd,
        GaussianMechanism,
        LaplaceMechanism,
        LossDistribution,
        Mixture,
        PrivacyProfile,
        PureDp,
        RandomAllocation,
        RandomisedResponse,
        RenyiCurve,
        ZeroConcentratedDp,
    )
}
"""The mechanisms that files can hold, by name."""


def mechanism_to_dict(base: Mechanism) -> dict[str, Any]:
    """Kind and parameters of a mechanism as plain values.

    Raises:
        InvalidInput: the mechanism's class is not one of `audit.accounting`.

    Example:
        >>> mechanism_to_dict(GaussianMechanism(0.5))
        {'mechanism': 'GaussianMechanism', 'mu': 0.5}
    """
    written: Any = base
    name = type(base).__name__
    if MECHANISMS.get(name) is not type(base):
        raise InvalidInput(
            f"base must be a mechanism of audit.accounting to be written, got {name}"
        )
    return {"mechanism": name} | {
        field.name: _value(getattr(base, field.name))
        for field in fields(written)
        # A group size of 1 is left out, as in files of versions without groups.
        if (field.name, getattr(base, field.name)) != ("group_size", 1)
    }


def mechanism_from_dict(values: Mapping[str, Any]) -> Mechanism:
    """Mechanism from the values that `mechanism_to_dict` returned.

    Raises:
        InvalidInput: an unknown mechanism, or wrong parameters.

    Example:
        >>> mechanism_from_dict({"mechanism": "GaussianMechanism", "mu": 0.5})
        GaussianMechanism(mu=0.5)
    """
    if not isinstance(values, Mapping):
        raise InvalidInput(f"mechanism must be a mapping, got {checks.one_line(values)}")
    parameters = {str(name): _read(value) for name, value in values.items()}
    kind = MECHANISMS[checks.one_of("mechanism", str(parameters.pop("mechanism", "")), MECHANISMS)]
    taken: Any = kind
    for field in fields(taken):
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and field.name not in parameters:
            raise InvalidInput(f"mechanism {kind.__name__} must have {field.name}, got none")
    for name in parameters:
        checks.one_of(
            f"parameter of {kind.__name__}", name, [field.name for field in fields(taken)]
        )
    try:
        return kind(**parameters)
    except TypeError as error:
        raise InvalidInput(
            f"mechanism {kind.__name__} must have parameters of their kinds, got "
            f"{checks.one_line(dict(values))}"
        ) from error


def _value(value: Any) -> Any:
    if isinstance(value, Mechanism):
        return mechanism_to_dict(value)
    if isinstance(value, tuple | list | np.ndarray):
        return [_value(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return mechanism_from_dict(value)
    if isinstance(value, list):
        return tuple(map(_read, value))
    return value
