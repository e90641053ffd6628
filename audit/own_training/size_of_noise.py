"""Whether the noise is large enough for what one record contributes: the central comparison."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from audit.accounting import DpSgd, GaussianMechanism, Mechanism
from audit.arrays import FloatArray
from audit.own_training import explanations as explain
from audit.own_training.accounted import Accounted
from audit.own_training.canary_runs import CanaryRuns
from audit.own_training.contributions import contributions
from audit.own_training.equal_records import EqualRecords
from audit.own_training.experiment import (
    FAMILY_ERROR,
    SEEDS_FOR_INCLUSION,
    SHORTFALL,
    Experiment,
)
from audit.own_training.findings import Finding
from audit.own_training.noise import TestResult, scale_p_value

# Standard errors by which the measured scale of a tensor's noise is raised.
_STANDARD_ERRORS = 6.0
# Batches that hold this share of the records on average count as full.
_FULL = 0.999


def compare_size(
    experiment: Experiment,
    canaries: CanaryRuns,
    equal: EqualRecords | None,
    claim: float | None,
    delta: float,
) -> bool:
    """Compares noise and contributions with what the accountant, or a claim, assumes.

    Args:
        experiment: collects the findings.
        canaries: the contributions.
        equal: the noise, if it could be measured.
        claim: epsilon at delta, where there is no accountant.
        delta: of the claim.

    Returns:
        Whether the noise is reported as too small.
    """
    found = canaries.found
    steps = min(experiment.steps, len(found.largest))
    reach = found.largest[:steps]
    seen = reach > found.rounding[:steps]
    if not seen.any():
        experiment.cannot_test(
            "no canary changed any released gradient: the record was in no batch of "
            f"{SEEDS_FOR_INCLUSION} runs, or the optimizer is not the one that learns",
            ("contribution",),
        )
        experiment.tested.remove("contribution")
        return False
    if equal is None or equal.missing:
        return False
    noise = equal.noise
    scales = noise.scales[:steps]
    usable = seen & (scales > 0) & ~noise.silent[:steps].all(axis=1)
    if experiment.comparable is not None:
        usable[experiment.comparable :] = False
    if not usable.any():
        return False
    unequal = _by_unequal_noise(experiment, canaries, equal, steps)
    distance = reach / np.where(usable, scales, 1.0) if unequal is None else unequal
    usable_distance = usable & (distance > 0)
    ratios = np.where(usable_distance, 1.0 / np.where(usable_distance, distance, 1.0), np.inf)
    worst = int(np.argmin(ratios))
    experiment.measured["effective noise multiplier"] = float(ratios[worst])
    accounted = experiment.accounted
    if accounted is None:
        _compare_claim(experiment, canaries, equal, usable, claim, delta)
        return False
    sigma = np.array([accounted.sigma(t) for t in range(steps)])
    experiment.measured["accounted noise multiplier"] = float(sigma[worst])
    if unequal is not None:
        if np.any(ratios < sigma * (1 - SHORTFALL)):
            # The scales are their upper confidence limits: beyond doubt.
            at = int(np.argmin(ratios / sigma))
            case = _size_case(experiment, canaries, equal, accounted, usable)
            experiment.collect(
                TestResult(1e-9, "size", {}),
                lambda e: explain.unequal_noise(case, at, float(ratios[at])),
            )
        return False
    # At steps where a canary reached about as far as any; the smallest ratio alone is biased.
    near = usable & (ratios < 1.05 * ratios[worst])
    experiment.measured["effective noise multiplier"] = float(np.median(ratios[near]))
    case = _size_case(experiment, canaries, equal, accounted, usable)
    tests = list(_shortfalls(case, ratios, worst))
    if tests:
        # Of several, the plainest that is beyond doubt.
        rank = {"step": 0, "all steps": 1}
        sure = [each for each in tests if each[0] < FAMILY_ERROR / 1000]
        p_value, at, kind = min(sure, key=lambda e: (rank.get(e[2], 2), e)) if sure else min(tests)
        p_value = min(1.0, p_value * (steps + 1 + len(noise.sizes)))
        evidence = TestResult(p_value, "size", {"kind": kind})
        experiment.collect(evidence, lambda e: explain.too_little_noise(case, at, kind))
        if p_value < FAMILY_ERROR:
            return True
    _against_threshold(experiment, case)
    return False


def _size_case(
    experiment: Experiment,
    canaries: CanaryRuns,
    equal: EqualRecords,
    accounted: Accounted,
    usable: NDArray[np.bool_],
) -> explain.SizeCase:
    steps = len(usable)
    return explain.SizeCase(
        base=experiment.base,
        found=canaries.found,
        noise=equal.noise,
        sigma=np.array([accounted.sigma(t) for t in range(steps)]),
        reach=canaries.found.largest[:steps],
        by_tensor=canaries.found.by_tensor[:steps],
        usable=usable,
        n=len(experiment.records),
        pool=canaries.pool,
        rates=[accounted.rate(t) for t in range(steps)],
        first_step=experiment.first_step,
        others_change=equal.others_change,
        varying=equal.varying,
    )


def _by_unequal_noise(
    experiment: Experiment, canaries: CanaryRuns, equal: EqualRecords, steps: int
) -> FloatArray | None:
    """Contributions in units of each tensor's noise, where the tensors' scales differ.

    Returns:
        [T], by upper confidence limits of the scales; None where all scales are equal.
    """
    noise, base = equal.noise, experiment.base
    if noise.silent[:steps].any():
        return None
    count = noise.degrees[:steps].sum() * noise.sizes
    relative = noise.scales_by_tensor[:steps] / noise.scales[:steps, None]
    level = np.sqrt(np.square(relative).mean(0))
    error = _STANDARD_ERRORS / np.sqrt(2.0 * np.maximum(count, 1))
    if np.all(np.abs(level - 1) < 0.1 + error):
        return None
    units = np.repeat(level * (1 + error), noise.sizes) * noise.scales[:steps, None]
    gradients = [trace.gradients[:steps] / units for trace in canaries.traces]
    return contributions(gradients, base.slices, base.epsilon_of_type).largest


def _shortfalls(
    case: explain.SizeCase, ratios: FloatArray, worst: int
) -> Iterator[tuple[float, int, str]]:
    """(p-value, step, what) of tests in which the noise is smaller than the accountant assumes."""
    noise, found, usable, sigma = case.noise, case.found, case.usable, case.sigma
    steps, width = len(usable), int(noise.sizes.sum())
    required = sigma * case.reach
    squares = noise.squares[:steps]
    for t in np.flatnonzero(usable & (ratios < sigma * (1 - SHORTFALL))):
        degrees = float(noise.degrees[t] * width)
        yield scale_p_value(float(squares[t].sum()), degrees, required[t]), int(t), "step"
    # All steps together find a small shortfall that no single step shows.
    parts = [("all steps", required, squares.sum(1), usable, width)]
    for index, name in enumerate(case.base.names):
        own = case.by_tensor[:, index]
        seen = case.reach > found.rounding[:steps]
        use = usable & seen & (own > found.rounding[:steps]) & ~noise.silent[:steps, index]
        parts.append((name, sigma * own, squares[:, index], use, int(noise.sizes[index])))
    for name, needed, squared, use, size in parts:
        if use.any():
            with np.errstate(divide="ignore"):  # accounted noise of zero is never too small
                total = float((squared[use] / needed[use] ** 2).sum())
            degrees = float(noise.degrees[:steps][use].sum() * size)
            if math.sqrt(total / max(degrees, 1.0)) < 1 - SHORTFALL:
                yield scale_p_value(total, degrees, 1.0), worst, name


def _against_threshold(experiment: Experiment, case: explain.SizeCase) -> None:
    """Compares the noise with C, where the optimizer states C and its divisor, as Opacus's do."""
    base, noise, steps = case.base, case.noise, len(case.usable)
    divisors = [step.divisor for step in base.steps[:steps]]
    clips = [step.clip for step in base.steps[:steps]]
    if not base.opacus or any(d is None for d in divisors) or any(c is None for c in clips):
        return
    unit = np.array(clips, dtype=float) / np.array(divisors, dtype=float)
    loud = ~noise.silent[:steps]
    with np.errstate(divide="ignore", invalid="ignore"):
        required = np.square(case.sigma * unit)[:, None]
        squares = np.where(loud, noise.squares[:steps] / required, 0.0).sum(0)
    degrees = np.where(loud, noise.degrees[:steps, None] * noise.sizes[None, :], 0.0).sum(0)
    parts = [("", float(squares.sum()), float(degrees.sum()))]
    if degrees.sum() and math.sqrt(parts[0][1] / parts[0][2]) >= 1 - SHORTFALL:
        parts = list(zip(base.names, squares.tolist(), degrees.tolist(), strict=True))
    for name, total, count in parts:
        share = math.sqrt(total / count) if count else 1.0
        if share < 1 - SHORTFALL:
            p_value = min(1.0, len(parts) * scale_p_value(total, count, 1.0))
            evidence = TestResult(p_value, "scale", {"share": share, "tensor": name})
            experiment.collect(evidence, lambda e: _below_threshold(case, e))


def _below_threshold(case: explain.SizeCase, evidence: TestResult) -> Finding:
    tensor = str(evidence.numbers["tensor"]) or None
    return explain.scale_below_threshold(case, float(evidence.numbers["share"]), tensor)


def _compare_claim(
    experiment: Experiment,
    canaries: CanaryRuns,
    equal: EqualRecords,
    usable: NDArray[np.bool_],
    claim: float | None,
    delta: float,
) -> None:
    """Compares a claimed epsilon with what noise and contributions imply."""
    claim = claim if claim is not None else experiment.base.claimed
    if claim is None:
        experiment.untested["accountant"] = "no accountant and no claim was given"
        return
    steps = len(usable)
    counts = equal.batches.counts[:, :steps]
    if experiment.stop_after is not None or np.isnan(counts).all():
        return
    rate = min(float(np.nanmean(counts)) / len(experiment.records), 1.0)
    run: Mechanism
    if rate > _FULL:
        reach, scales = canaries.found.of_pair[:steps][usable], equal.noise.scales[:steps][usable]
        run = GaussianMechanism(float(np.linalg.norm(reach / scales)))
    else:
        effective = experiment.measured["effective noise multiplier"]
        run = DpSgd(effective, len(experiment.base.steps), rate)
    implied = float(run.epsilon(delta))
    experiment.measured["implied epsilon"] = implied
    experiment.tested.append("accountant")
    if implied > 1.03 * claim + 0.01:
        experiment.findings.append(
            explain.claim_too_small(claim, implied, delta, experiment.measured)
        )
