"""The mechanism of one run, from the values of its columns and the settings of all runs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from scipy import optimize, special

from audit import checks
from audit.accounting import (
    ApproximateDp,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    ZeroConcentratedDp,
    calibrate_noise_multiplier,
)
from audit.errors import InvalidInput
from audit.numbers_from_text import read_number
from audit.numerics import memoize

ACCOUNTANTS = ("prv", "rdp", "gdp")
"""Accountants of Opacus by which noise was computed from a target epsilon."""

BATCHES = ("poisson", "shuffled")
"""How batches are drawn; `shuffled` means that each record is in one batch of every epoch."""

_CALIBRATION = 1e-6  # largest relative error of `calibrate_noise_multiplier`
_MAX_EPOCHS = 1e9

CONSTANTS = (
    "noise_multiplier",
    "sampling_rate",
    "batch_size",
    "steps",
    "epochs",
    "target_epsilon",
)
"""Roles that may be the same for all runs and then be given as settings."""


@dataclass(frozen=True)
class RunSettings:
    """What holds for all runs.

    Attributes:
        constants: values of roles that no column has.
        records: number of records of the data set; None if it is not given.
        drop_last: whether the loader drops the last batch of an epoch if it is smaller.
        batches: one of `BATCHES`.
        accountant: one of `ACCOUNTANTS`, for target epsilons; None if it is not given.
        target_delta: delta of the target epsilons; None if it is not given.
        neighbours: the neighbouring relation of DP-SGD; None for `zero-out`.
        group_size: number of records of one person.
        base: the mechanism of every run; None if the runs describe it.
    """

    constants: Mapping[str, Any]
    records: int | None = None
    drop_last: bool = False
    batches: str = "poisson"
    accountant: str | None = None
    target_delta: float | None = None
    neighbours: str | None = None
    group_size: int = 1
    base: Mechanism | None = None

    def __post_init__(self) -> None:
        if self.records is not None:
            checks.validate(self, "records", checks.integer, 1)
        checks.validate(self, "drop_last", checks.flag)
        checks.validate(self, "batches", checks.one_of, BATCHES)
        checks.validate(self, "group_size", checks.integer, 1)
        if self.accountant is not None:
            checks.validate(self, "accountant", checks.one_of, ACCOUNTANTS)
        if self.target_delta is not None:
            checks.validate(self, "target_delta", checks.interval, 0.0, 1.0)
        if self.neighbours is not None:
            from audit.accounting import NEIGHBOURS

            checks.validate(self, "neighbours", checks.one_of, NEIGHBOURS)


def mechanism_of(values: Mapping[str, Any], settings: RunSettings) -> Mechanism:
    """The mechanism of one run.

    Args:
        values: the values of the run by role, without those that are missing; text is parsed.
        settings: what holds for all runs.

    Raises:
        InvalidInput: the values do not determine a mechanism, or contradict each other.

    Example:
        >>> run = {"noise_multiplier": "1.1", "batch_size": "100", "epochs": "5"}
        >>> mechanism_of(run, RunSettings({}, records=10_000)).description
        'DP-SGD, noise multiplier 1.1, 500 steps, rate 0.01, zero-out neighbours'
    """
    settings_of_run = {**settings.constants, **values}
    for role, value in settings.constants.items():
        if role in values and not _equal(values[role], value):
            raise InvalidInput(
                f"{role} must be given once, got {checks.one_line(value)} for all runs and "
                f"{checks.one_line(values[role])} for this run"
            )
    curves = [name for name in ("gdp_mu", "zcdp_rho") if name in settings_of_run]
    if len(curves) + ("noise_multiplier" in settings_of_run) > 1:
        statements = [
            *curves,
            *(["noise_multiplier"] if "noise_multiplier" in settings_of_run else []),
        ]
        raise InvalidInput(
            "run must have one of noise_multiplier, gdp_mu and zcdp_rho, "
            f"got {' and '.join(statements)}"
        )
    if curves:
        return _curve(curves[0], settings_of_run, settings)
    if "noise_multiplier" not in settings_of_run and "target_epsilon" not in settings_of_run:
        raise InvalidInput(
            "run must have a noise_multiplier (with steps or epochs), a target_epsilon, a gdp_mu "
            "or a zcdp_rho, got none of them (an empty cell or nan): write the noise of this run, "
            "or give that of all runs, as --noise-multiplier 1.1 (in Python, noise_multiplier=); "
            "no bound holds for a run without noise"
        )
    return _dp_sgd(settings_of_run, settings)


def _equal(first: object, second: object) -> bool:
    try:
        return float(first) == float(second)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(first) == str(second)


def _curve(name: str, values: Mapping[str, Any], settings: RunSettings) -> Mechanism:
    """A run whose whole privacy curve is known."""
    extra_roles = [
        role for role in ("steps", "epochs", "sampling_rate", "batch_size") if role in values
    ]
    if extra_roles:
        raise InvalidInput(
            f"{extra_roles[0]} must not be given with {name}, which describes the whole run, got "
            f"{checks.one_line(values[extra_roles[0]])}: map it to ignore, or give noise_multiplier"
        )
    for option, stated, plain in (
        ("group_size", settings.group_size, 1),
        ("neighbours", settings.neighbours, None),
    ):
        if stated != plain:
            raise InvalidInput(
                f"{option} must not be given for a run with {name}, which holds for its own group "
                f"and neighbours, got {checks.one_line(stated)}"
            )
    if name == "gdp_mu":
        return GaussianMechanism(values[name])
    return ZeroConcentratedDp(checks.interval(name, values[name], 0.0))


def _dp_sgd(values: Mapping[str, Any], settings: RunSettings) -> Mechanism:
    """DP-SGD with a noise multiplier, or with the noise that a target epsilon gives."""
    per_epoch = _batches_per_epoch(values, settings)
    rate = _rate(values, settings, per_epoch)
    steps = _steps(values, rate, per_epoch)
    noise = values.get("noise_multiplier")
    if noise is None and steps is None:
        return _approximate(values, settings)
    if steps is None:
        raise InvalidInput("steps or epochs must be given with noise_multiplier, got neither")
    sampled = 1.0 if rate is None else rate
    if noise is None:
        noise = _noise_of_target(values, settings, steps, rate)
    if settings.batches == "shuffled":
        # Each record is in one batch of every epoch, so an epoch is at most one full batch.
        steps, sampled = _shuffled_steps(values, steps, per_epoch), 1.0
    neighbours = settings.neighbours or "zero-out"
    if settings.batches == "shuffled" and neighbours == "add-remove":
        raise InvalidInput(
            "neighbours must be zero-out or replace-one with shuffled batches, because a removed "
            "record moves others to other batches, got add-remove"
        )
    return DpSgd(noise, steps, sampled, neighbours, settings.group_size)


def _batches_per_epoch(values: Mapping[str, Any], settings: RunSettings) -> int | None:
    """Batches of one epoch, as the loader counts them; None without batch size and records."""
    if "batch_size" not in values or settings.records is None:
        return None
    size = checks.integer("batch_size", values["batch_size"], 1, settings.records)
    full_batches, remainder = divmod(settings.records, size)
    return full_batches if settings.drop_last or not remainder else full_batches + 1


def _rate(values: Mapping[str, Any], settings: RunSettings, per_epoch: int | None) -> float | None:
    """The sampling rate; Opacus uses one over the number of batches of an epoch."""
    if "sampling_rate" not in values:
        if per_epoch is not None:
            return 1.0 / per_epoch
        if "batch_size" in values:
            raise InvalidInput(
                "records (the number of records of the data set) must be given with batch_size, "
                f"got none with batch_size {checks.one_line(values['batch_size'])}: add "
                "--records N (in Python, records=N)"
            )
        return None
    rate = checks.interval("sampling_rate", values["sampling_rate"], 0.0, 1.0, closed_high=True)
    if per_epoch is not None and settings.records is not None:
        size = checks.integer("batch_size", values["batch_size"], 1, settings.records)
        full_batches = settings.records // size
        lowest, highest = 1.0 / (full_batches + 1), 1.0 / full_batches
        if not 0.999 * lowest <= rate <= 1.001 * highest:
            raise InvalidInput(
                f"sampling_rate must be that of batch_size {size} of {settings.records} records, "
                f"about {size / settings.records:.4g}, got {checks.one_line(rate)}"
            )
    return rate


def _steps(values: Mapping[str, Any], rate: float | None, per_epoch: int | None) -> int | None:
    """The number of steps, rounded up to whole steps."""
    computed = None
    if "epochs" in values:
        epochs = checks.interval("epochs", values["epochs"], 0.0, _MAX_EPOCHS)
        exact = Fraction(repr(epochs))
        if per_epoch is not None:
            computed = math.ceil(exact * per_epoch)
        elif rate is not None:
            computed = math.ceil(exact / Fraction(repr(rate)))
        elif "steps" not in values:
            raise InvalidInput(
                "sampling_rate, or batch_size and records, must be given with epochs, got neither "
                f"with epochs {checks.one_line(values['epochs'])}"
            )
    if "steps" not in values:
        return computed
    steps = checks.integer("steps", values["steps"], 1)
    if computed is not None and not 0.99 * computed - 2.0 <= steps <= 1.01 * computed + 2.0:
        raise InvalidInput(
            f"steps must be those of the epochs, {computed}, got {steps}: map the column that is "
            "not the length of the run to ignore, such as --columns epochs=ignore"
        )
    return steps


def _shuffled_steps(values: Mapping[str, Any], steps: int, per_epoch: int | None) -> int:
    """The largest number of batches that contain one record, if batches are shuffled."""
    if "epochs" in values:
        return math.ceil(checks.interval("epochs", values["epochs"], 0.0, _MAX_EPOCHS))
    if per_epoch is None:
        raise InvalidInput(
            "epochs, or batch_size and records, must be given with shuffled batches, got neither"
        )
    return -(-steps // per_epoch)


def _target(values: Mapping[str, Any], settings: RunSettings) -> tuple[float, float]:
    """Target epsilon and its delta."""
    epsilon = checks.interval("target_epsilon", values["target_epsilon"], 0.0)
    delta = values.get("delta", settings.target_delta)
    if settings.target_delta is not None and not _equal(delta, settings.target_delta):
        raise InvalidInput(
            f"target_delta must be given once, got {settings.target_delta:g} for all runs and "
            f"{checks.one_line(delta)} for this run"
        )
    if delta is None:
        raise InvalidInput(
            "delta of the target epsilon must be given, as a column delta or as --target-delta D "
            "(in Python, target_delta=D), got none"
        )
    return epsilon, checks.interval("delta", delta, 0.0, 1.0)


def _approximate(values: Mapping[str, Any], settings: RunSettings) -> Mechanism:
    """A run of which only epsilon and delta are known."""
    epsilon, delta = _target(values, settings)
    for role in ("sampling_rate", "batch_size"):
        if role in values:
            raise InvalidInput(
                f"steps or epochs must be given with target_epsilon and {role}, got neither"
            )
    return ApproximateDp(epsilon, delta)


def _noise_of_target(
    values: Mapping[str, Any], settings: RunSettings, steps: int, rate: float | None
) -> float:
    """The noise multiplier that a target epsilon gives, by the accountant that is named."""
    epsilon, delta = _target(values, settings)
    if rate is None:
        raise InvalidInput(
            "sampling_rate, or batch_size and records, must be given with target_epsilon and "
            "steps, got neither"
        )
    if settings.accountant is None:
        raise InvalidInput(
            "accountant must be given with target_epsilon: prv (the default of Opacus), rdp or "
            "gdp, whichever computed the noise, got none; add --accountant prv"
        )
    return noise_of_target(epsilon, delta, steps, rate, settings.accountant)


@memoize(4096)
def noise_of_target(
    epsilon: float, delta: float, steps: int, sampling_rate: float, accountant: str
) -> float:
    """The noise multiplier for a target epsilon, rounded down.

    Opacus searches for the smallest noise at which its accountant reports at most the target. The
    accountants `prv` and `rdp` report upper bounds on the exact epsilon and on the epsilon by Renyi
    divergences of all orders. So the noise at which these reach the target is at most that of
    Opacus, and the cost at this noise is an upper bound. The accountant `gdp` is a central limit
    theorem and no bound: its formula is inverted.

    Example:
        >>> from audit.accounting import DpSgd
        >>> noise = noise_of_target(1.0, 1e-5, 500, 0.01, "rdp")
        >>> bool(abs(DpSgd(noise, 500, 0.01).renyi_epsilon(1e-5) - 1.0) < 1e-4)
        True
    """
    if accountant == "gdp":
        return _noise_of_limit(epsilon, delta, steps, sampling_rate)
    accounting = "rdp" if accountant == "rdp" else "exact"
    noise = calibrate_noise_multiplier(epsilon, delta, steps, sampling_rate, accounting)
    return noise * (1.0 - _CALIBRATION)


def _noise_of_limit(epsilon: float, delta: float, steps: int, sampling_rate: float) -> float:
    """Inverts mu = q sqrt(T (exp(1/sigma^2) - 1)) (Bu, Dong, Long & Su 2020), as Opacus does."""

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        upper = float(special.ndtr(-epsilon / mu + mu / 2.0))
        lower = math.exp(epsilon + float(special.log_ndtr(-epsilon / mu - mu / 2.0)))
        return upper - lower - delta

    try:
        mu = math.exp(float(optimize.brentq(excess, math.log(1e-6), math.log(1e3), xtol=1e-12)))
    except ValueError:
        raise InvalidInput(
            f"target_epsilon must be one that some noise reaches, got {epsilon:g}"
        ) from None
    inside = math.log1p((mu / sampling_rate) ** 2 / steps)
    return 1.0 / math.sqrt(inside) * (1.0 - _CALIBRATION)


_FALSE = frozenset(["false", "0", "no", "0.0", "off", "n", "f", "disabled"])


def is_false(value: object) -> bool:
    """Whether a cell denotes false."""
    return str(value).strip().lower() in _FALSE


def chance_of(value: object) -> float:
    """A probability, from a number or from text."""
    number = read_number(value) if isinstance(value, str) else value
    return checks.interval("chance", number, 0.0, 1.0, closed_high=True)  # type: ignore[arg-type]
