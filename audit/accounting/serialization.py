"""Mechanisms as plain values for files, and back; mechanisms from text, and curves from files."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from audit import checks
from audit.accounting.additive_noise import GaussianMechanism, LaplaceMechanism
from audit.accounting.combinations import Candidates, Composition, Mixture, WorstOf
from audit.accounting.curves import LossDistribution, PrivacyProfile, RenyiCurve, ZeroConcentratedDp
from audit.accounting.discrete import ApproximateDp, DiscreteMechanism, PureDp, RandomisedResponse
from audit.accounting.dpsgd import DpSgd
from audit.accounting.mechanism import Mechanism
from audit.accounting.random_allocation import RandomAllocation
from audit.errors import InvalidInput
from audit.numbers_from_text import read_number
from audit.numerics import FloatArray

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
_LONGEST = 10**7  # characters of a file with a curve
_BASES: dict[str, tuple[Callable[..., Mechanism], tuple[int, ...]]] = {
    "gaussian": (GaussianMechanism, (1,)),
    "laplace": (LaplaceMechanism, (1,)),
    "response": (RandomisedResponse, (1, 2)),
    "pure": (PureDp, (1,)),
    "approximate": (ApproximateDp, (2,)),
    "zcdp": (ZeroConcentratedDp, (1,)),
    "allocation": (RandomAllocation, (3, 4)),
    "fixed-allocation": (partial(RandomAllocation, fixed=True), (3,)),
    "renyi": (RenyiCurve, ()),
    "profile": (PrivacyProfile, ()),
}
"""Kinds of mechanisms, and the allowed numbers of parameters; none if it is read from a file."""


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


def read_curve(path: str | Path, name: str = "path") -> tuple[FloatArray, FloatArray]:
    """Two columns of numbers from a csv file (commas or spaces; a heading is skipped).

    Args:
        path: the file.
        name: name of the parameter in error messages.

    Raises:
        InvalidInput: the file is missing, or a line does not hold two numbers.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "profile.csv")
        ...     _ = file.write_text("0.5,0.001")
        ...     epsilons, deltas = read_curve(file)
        >>> epsilons.tolist(), deltas.tolist()
        ([0.5], [0.001])
    """
    rows = []
    try:
        lines = checks.read_text(path, _LONGEST).splitlines()
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"{name} must be a readable csv file, got {checks.one_line(str(path))}: "
            f"{checks.reason_of(error)}"
        ) from error
    for number, line in enumerate(lines):
        fields = line.replace(",", " ").split()
        try:
            x, y = map(read_number, fields)
            rows.append((x, y))
        except ValueError:
            if fields and number > 0:
                raise InvalidInput(
                    f"{name} must hold two numbers per line, got {line!r} in {str(path)!r}"
                ) from None
    if not rows:
        raise InvalidInput(f"{name} must hold two numbers per line, got none in {str(path)!r}")
    x, y = np.array(rows).T
    return x, y


def parse_mechanism(spec: str | Mechanism) -> Mechanism:
    """Reads a base mechanism from text; returns a mechanism unchanged.

    Args:
        spec: `gaussian:MU`, `laplace:SCALE`, `response:EPSILON[,OPTIONS]`, `pure:EPSILON`,
            `approximate:EPSILON,DELTA`, `zcdp:RHO`, `allocation:NOISE,BATCHES,EPOCHS[,PER_EPOCH]`,
            `fixed-allocation:NOISE,BATCHES,EPOCHS` (a record keeps its batch), `renyi:FILE` (orders
            and divergences in two columns) or `profile:FILE` (epsilons and deltas).

    Raises:
        InvalidInput: the mechanism is unknown, the number of parameters is wrong, or a parameter is
            out of its range.

    Example:
        >>> parse_mechanism("pure:0.5")
        PureDp(epsilon_0=0.5)
    """
    if isinstance(spec, Mechanism):
        return spec
    if not isinstance(spec, str):
        raise InvalidInput(f"base must be a mechanism, or one as text, got {checks.one_line(spec)}")
    name, _, text = spec.strip().partition(":")
    name = checks.one_of("base", name, _BASES)
    make, allowed = _BASES[name]
    if not allowed:
        return make(*read_curve(text, f"base {name}"))
    numbers: list[Any] = text.split(",")  # as text, which the mechanism reads
    try:
        for token in numbers:
            read_number(token)
    except ValueError:
        numbers = []
    if len(numbers) not in allowed:
        count = " or ".join(map(str, allowed))
        plural = "number" if allowed == (1,) else "numbers"
        raise InvalidInput(f"base {name!r} takes {count} {plural} after the colon, got {text!r}")
    return make(*numbers)
