"""The mechanism of one run, from the options of `audit.bounds`."""

import argparse
import contextlib
import itertools
import math
import re
from fractions import Fraction

from audit import accounting, checks, repetitions, upper_bounds
from audit.accounting import ApproximateDp, DpSgd, GaussianMechanism, Mechanism
from audit.errors import InvalidInput
from audit.numerics import format_exact, format_rounded
from audit.protocols import Protocol
from audit.repetitions import Repetitions
from audit.upper_bounds import Bound

_RATE_NEEDS = {
    "add-remove": ", but add-remove neighbours need a rate that does not depend on it (or zero-out "
    "neighbours)",
    "zero-out": " (public with zero-out neighbours)",
    "replace-one": " (public with replace-one neighbours)",
}
"""What a sampling rate of batch / records requires, by neighbouring relation."""


def _sampling(arguments: argparse.Namespace) -> tuple[float, int, list[str]]:
    """The sampling rate, the number of steps, and a note of how they were computed."""
    notes = []
    rate, steps, records = arguments.sampling_rate, arguments.steps, arguments.records
    size, epochs = arguments.batch_size, arguments.epochs
    exact_rate = Fraction(1)
    if size is not None:
        if rate is not None or records is None:
            raise InvalidInput(
                "batch-size must be given with records and without sampling-rate, got "
                + ("sampling-rate too" if rate is not None else "no records")
            )
        records = checks.integer("records", records, 1)
        exact_rate = Fraction(checks.integer("batch-size", size, 1, records), records)
        rate = float(exact_rate)
        notes.append(
            f"sampling rate {format_rounded(rate, up=True)} = {size} / {records}, which depends on "
            f"the number of records{_RATE_NEEDS[arguments.neighbours]}"
        )
    elif rate is not None:
        rate = checks.interval("sampling_rate", rate, 0.0, 1.0, closed_high=True)
        exact_rate = Fraction(repr(rate))
    if epochs is not None:
        if steps is not None:
            raise InvalidInput("steps and epochs must not be given together, got both")
        epochs = checks.interval("epochs", epochs, 0.0, 1e9)
        steps = math.ceil(Fraction(repr(epochs)) / exact_rate)
        notes.append(f"{steps} steps = {epochs:g} epochs / sampling rate, rounded up")
    if steps is None:
        noise_option = (
            "target-epsilon" if arguments.noise_multiplier is None else "noise-multiplier"
        )
        raise InvalidInput(f"steps (or epochs) must be given with --{noise_option}, got none")
    computed = [f"computed: {'; '.join(notes)}"] if notes else []
    return (1.0 if rate is None else rate), steps, computed


def delta_note(delta: float, records: int | None) -> list[str]:
    """A warning if delta is so large that it allows the release of a record."""
    if records is None or delta <= 1.0 / checks.integer("records", records, 1):
        return []
    return [
        f"delta = {format_exact(delta)} exceeds 1 / records = "
        f"{format_rounded(1.0 / records, up=False, digits=3)}: publishing one record at random "
        "would be allowed; choose a smaller --delta"
    ]


def base_of(
    arguments: argparse.Namespace, protocol: Protocol, bound: Bound | None
) -> tuple[Mechanism, list[str]]:
    """The mechanism of one run, and notes of what was computed."""
    if arguments.target_epsilon is None or arguments.solve != "noise":
        return one_run(arguments)
    rate, steps, notes = _sampling(arguments)
    noise = upper_bounds.calibrate_noise(
        protocol,
        target_epsilon=arguments.target_epsilon,
        target_delta=arguments.delta,
        steps=steps,
        sampling_rate=rate,
        neighbours=arguments.neighbours,
        bound=bound,
        group_size=arguments.group_size,
    )
    # The bounds are computed for the rounded noise, so that the printed number keeps the budget.
    noise = float(format_rounded(noise, up=True, digits=7))
    return DpSgd(noise, steps, rate, arguments.neighbours, arguments.group_size), notes


def one_run(arguments: argparse.Namespace) -> tuple[Mechanism, list[str]]:
    """The mechanism of one run as the options describe it, and notes of what was computed."""
    if arguments.noise_multiplier is not None:
        rate, steps, notes = _sampling(arguments)
        noise, group_size = arguments.noise_multiplier, arguments.group_size
        return DpSgd(noise, steps, rate, arguments.neighbours, group_size), notes
    if arguments.base is not None:
        return accounting.parse_mechanism(arguments.base), []
    if arguments.epsilon_base is not None:
        epsilon = checks.interval("epsilon-base", arguments.epsilon_base, 0.0)
        delta = arguments.delta if arguments.delta_base is None else arguments.delta_base
        delta = checks.interval("delta-base", delta, 0.0, 1.0, closed_low=True)
        return ApproximateDp(epsilon, delta), []
    mu = arguments.mu
    if mu is None:
        epsilon = checks.interval("gaussian-epsilon", arguments.gaussian_epsilon, 0.0)
        mu = accounting.calibrate_mu(epsilon, arguments.delta, arguments.accounting)
    if arguments.steps is not None:
        return DpSgd(
            accounting.full_batch_noise_multiplier(mu, arguments.steps), arguments.steps
        ), []
    return GaussianMechanism(mu), []


def rounded_distribution(distribution: Repetitions) -> Repetitions:
    """A distribution of K rounded to seven digits, with at most the given mean number of runs."""
    long = re.compile(r"\d+\.\d{7,}(?:e-?\d+)?|\d\.\d{6,}e-?\d+")
    rounded: list[Repetitions] = []
    for sides in itertools.product((True, False), repeat=len(long.findall(distribution.spec))):
        way = iter(sides)
        spec = long.sub(
            lambda match, way=way: format_rounded(float(match.group()), next(way), 7),  # type: ignore[misc]
            distribution.spec,
        )
        with contextlib.suppress(ValueError):  # rounded out of its range
            rounded.append(repetitions.parse_repetitions(spec))
    return max(
        (candidate for candidate in rounded if candidate.mean <= distribution.mean),
        key=lambda affordable: affordable.mean,
        default=distribution,
    )
