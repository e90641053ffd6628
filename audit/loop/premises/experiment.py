"""State of one differential test: coupled runs of a watched function, and its findings."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.arrays import FloatArray
from audit.errors import imports_of_game
from audit.loop.explanations import explain, explain_test
from audit.loop.findings import Finding
from audit.loop.premises.canary_pool import PoolRecord, canary_pool
from audit.loop.premises.noise import TestResult
from audit.loop.runs.coupled_runs import Accounted, CoupledRuns, Trace
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.training_runs import Train, run_seed

FAMILY_ERROR = 1e-5
"""Probability that a statistical test of one check reports a correct loop, over all its tests."""

SEEDS_FOR_INCLUSION = 24
"""Seeds that are tried until the exchanged record is in many batches."""

# Seeds that are tried, even if time is short, until the exchanged record is in any batch.
_FEWEST_SEEDS = 8
_RUNS_EXPECTED = 160
# Where not all steps can be tested with all runs, this share of the time goes to the later ones.
_SHARE_OF_LATER_STEPS = 0.4
_MIN_LATER_RUNS = 20
_MIN_STEPS = 4
_MAX_POOL = 60
# Number of records that are tried to find one that the function does not leave out.
_MAX_REFERENCES = 30
MAX_BYTES = 5e8
"""Of memory for gradients."""
SHORTFALL = 0.01
"""A shortfall of the noise that is smaller than this is not reported."""

_POWER = 0.8

_SHAPE = ("scale by batch", "scale of runs", "distribution", "distance", "tails")
_RESIDUALS = (
    "rank",
    "steps",
    "coordinates",
    "repeated",
    "tensors",
    "shared noise",
    "grain",
    "flat",
    "length",
)
# A finding explains others, which are then left out.
_EXPLAINS = {
    "direction": ("size", "scale", "rank", "flat", *_SHAPE),
    "runs": ("size", "scale", *_RESIDUALS),
    "steps": ("rank", "flat", "coordinates", "repeated", "tensors", "shared noise", *_SHAPE),
    "coordinates": ("rank", "flat", "repeated", "tensors", "shared noise", *_SHAPE),
    "repeated": ("rank", "flat", "tensors", "shared noise", *_SHAPE),
    "tensors": ("rank", "flat", *_SHAPE),
    "shared noise": _SHAPE,
    "scale by batch": ("scale of runs", "distribution", "distance", "tails"),
    "scale of runs": ("distribution", "distance", "tails"),
    "rank": ("flat", *_SHAPE),
    "grain": ("distribution", "distance", "tails"),
    "distribution": ("distance", "tails"),
    "distance": ("tails",),
    "influence": (
        "size of the batch",
        "mean of batches",
        "fixed batches",
        "limited batches",
        "gaps in batches",
        "batches without the seed",
        "uneven batches",
        "repeated batches",
        "no empty batch",
        "inclusion rate",
        "inclusion without the seed",
        "inclusions of a run",
        "even inclusions",
        "batch",
        "coordinates",
        "repeated",
        "tensors",
        "shared noise",
        "rank",
        "flat",
    ),
    "uneven batches": ("batch", "mean of batches", "no empty batch", "gaps in batches"),
    "gaps in batches": ("limited batches", "no empty batch"),
    "fixed batches": (
        "gaps in batches",
        "no empty batch",
        "inclusions of a run",
        "even inclusions",
        "mean of batches",
        "limited batches",
    ),
    "batches without the seed": ("gaps in batches", "limited batches", "no empty batch"),
    "no empty batch": ("mean of batches", "inclusion rate"),
    "inclusion rate": ("batch",),
    "inclusion without the seed": ("inclusion rate", "even inclusions"),
    "inclusions of a run": ("even inclusions",),
}


class Experiment:
    """Runs of one training function on neighbouring data sets, and the findings about it.

    Attributes:
        records: the data.
        relation: neighbouring relation.
        pool: canaries for the place of the last record.
        findings: broken premises.
        tested: names of the premises that were tested.
        untested: the reason for each premise that was not tested.
        notes: further remarks for the user.
        measured: measured numbers by name.
        accounted: the accountant's history step by step, or None.
        forced: the reference run, whose released gradients are forced in all coupled runs.
        base: the same run from the first tested step.
        base_seed: its seed.
        steps: number of steps that are tested.
        stop_after: number of steps after which runs end; None if they complete.
        later_steps: number of further steps that another experiment tests.
        first_step: the first tested step, from 0.
        brief: whether to make fewer runs.
        apart: [T], largest contribution among canaries that change the number of draws, or None.
        comparable: number of steps before which the weights depend on gradients alone, or None.
        random_gradients: whether a record's own gradient differs between runs.
        degrees_of_scale: degrees of freedom of the test of the noise's scale; 0 if it was not made.
    """

    forced: Trace
    base: Trace
    base_seed: int
    steps: int = 0
    stop_after: int | None
    accounted: Accounted | None

    def __init__(
        self,
        train: Train,
        records: TrainingSet,
        canary: TrainingSet | None,
        candidate: Any,
        relation: str,
        seed: int,
        seconds: float,
    ) -> None:
        self.runs = CoupledRuns(train, candidate)
        self.records, self.relation, self.seed, self.seconds = records, relation, seed, seconds
        self.pool = canary_pool(records, canary)[:_MAX_POOL]
        self.findings: list[Finding] = []
        self.tested: list[str] = []
        self.untested: dict[str, str] = {}
        self.notes: list[str] = []
        self.measured: dict[str, float] = {}
        self.first_step, self.later_steps, self.brief = 0, 0, False
        self.comparable: int | None = None
        self.apart: FloatArray | None = None
        self.random_gradients = False
        self.degrees_of_scale = 0.0
        self._evidence: list[tuple[TestResult, Callable[[TestResult], Finding]]] = []
        self.started = time.perf_counter()

    def time_left(self, share: float = 1.0) -> bool:
        """Whether this share of the time is not used up."""
        return time.perf_counter() - self.started < share * self.seconds

    def seed_of(self, number: int) -> int:
        """The seed of a run."""
        return run_seed(self.seed, number, 5)

    # --- runs ---

    def coupled(self, records: TrainingSet, seed: int, digests: bool = True) -> Trace:
        """The tested steps of a run that is coupled to the reference.

        Args:
            records: the data.
            seed: seed of the run.
            digests: whether to keep digests of generators, weights and optimizer.
        """
        stop = self.first_step + self.steps
        trace = self.runs.run(records, seed, like=self.forced, stop_after=stop, digests=digests)
        return trace.from_step(self.first_step)

    def ended_early(self, trace: Trace) -> bool:
        """Whether a run raised an error, or took fewer steps than are tested."""
        return trace.error is not None or len(trace.steps) < self.steps

    def draws_as_reference(self, trace: Trace) -> bool:
        """Whether a run drew as many random numbers in each step as the reference."""
        return draw_alike(trace, self.base, self.steps)

    def with_canary(self, canary: PoolRecord) -> TrainingSet:
        """The records with a canary in the place of the last of them."""
        return replace_one(self.records, canary)

    @property
    def sampled(self) -> bool:
        """Whether the accountant assumes sampled batches."""
        return self.accounted is not None and any(q < 1 for _, q in self.accounted.expanded)

    def start(self, first: Trace, seconds: float) -> None:
        """Makes the reference run: complete, with the exchanged record in many tested steps."""
        self.accounted = first.accounted
        self.steps = self._number_of_steps(first, seconds)
        self.stop_after = None if self.steps >= len(first.steps) else self.steps
        if self.stop_after is not None:
            self.seconds *= 1 - _SHARE_OF_LATER_STEPS
        if self._choose_reference() == 0 and self._bring_used_record_first():
            self._choose_reference(own=False)
        self.base = self.runs.run(self.with_canary(self.pool[0]), self.base_seed)
        self.forced = self.base
        if self.base.complete:  # the number of steps may be random
            self.steps = min(self.steps, len(self.base.steps))

    def _choose_reference(self, own: bool = True) -> int:
        """Chooses the seed of the reference run, and returns how many steps the record changes.

        `own` puts records of the data first if the first canary cannot be used.
        """
        best = -1
        for trial in range(SEEDS_FOR_INCLUSION):
            seed = self.seed_of(trial)
            base = self._short_run(self.pool[0], seed)
            data = next((each for each in self.pool if each.family == "own"), self.pool[0])
            if own and not _is_reference(base, self._short_run(data, seed)):
                # The function may not accept the first canary or leave it out, and gradients that
                # are not finite must not be forced on other runs. It accepts its own records.
                self.pool.sort(key=lambda each: each.family != "own")
                base = self._short_run(self.pool[0], seed)
            hits = 0
            for other in (self.pool[1 % len(self.pool)], self.pool[-1]):
                trace = self._short_run(other, seed, base)
                if trace.steps and base.steps:
                    hits = max(hits, int(_moved(base, trace).sum()))
            if hits > best:
                best, self.base_seed = hits, seed
            # Without a step that uses the record, nothing else can be tested.
            searching = best == 0 and trial + 1 < _FEWEST_SEEDS
            if hits >= min(3, self.steps) or not (searching or self.time_left(0.2)):
                break
        return best

    def _bring_used_record_first(self) -> bool:
        """Puts a usable record first that the function does not leave out, unlike the first one."""
        base = self._short_run(self.pool[0], self.base_seed)
        for place, canary in enumerate(self.pool[:_MAX_REFERENCES]):
            trace = self._short_run(canary, self.base_seed, base)
            usable = trace.error is None and trace.steps and np.isfinite(trace.gradients).all()
            if usable and not draw_alike(base, trace):
                self.pool.insert(0, self.pool.pop(place))
                return True
        return False

    def later(self, canaries: Sequence[PoolRecord]) -> "Experiment | None":
        """The same experiment on as many of the last steps as memory allows, with fewer runs.

        Returns:
            The experiment, which shares this one's findings; None if complete runs take too long.
        """
        total = len(self.base.steps)
        seconds = self.seconds * _SHARE_OF_LATER_STEPS / (1 - _SHARE_OF_LATER_STEPS)
        if not self.base.complete or self.base.seconds * _MIN_LATER_RUNS > 2 * seconds:
            return None
        row = 8.0 * max(sum(self.base.sizes), 1) * _MIN_LATER_RUNS
        later = copy.copy(self)
        later.steps = min(total, max(int(MAX_BYTES / row), 1))
        later.first_step, later.stop_after, later.brief = total - later.steps, total, True
        later.base = self.forced.from_step(later.first_step)
        if self.accounted is not None:
            expanded = self.accounted.expanded[later.first_step :] or self.accounted.expanded[-1:]
            later.accounted = replace(self.accounted, expanded=expanded)
        later.pool, later.measured, later.untested = list(canaries), {}, {}
        later.apart = None
        later.started, later.seconds = time.perf_counter(), seconds
        return later

    def _short_run(self, canary: PoolRecord, seed: int, like: Trace | None = None) -> Trace:
        return self.runs.run(self.with_canary(canary), seed, like=like, stop_after=self.stop_after)

    def _number_of_steps(self, first: Trace, seconds: float) -> int:
        """The number of steps that memory and time allow to test."""
        steps = len(first.steps)
        row = 8.0 * max(sum(first.sizes), 1) * (len(self.pool) + 8)
        in_memory = max(int(MAX_BYTES / row), 1)
        in_time = int(steps * self.seconds / max(seconds * _RUNS_EXPECTED, 1e-9))
        return min(steps, in_memory, max(in_time, _MIN_STEPS))

    # --- findings ---

    def report_steps(self, one: int, other: int) -> None:
        """Reports once that the number of steps depends on the record."""
        found = explain("number of steps", one=one, other=other)
        if not any(each.cause == found.cause for each in self.findings):
            self.findings.append(found)

    def cannot_test(
        self,
        reason: str,
        premises: Sequence[str] = ("contribution", "noise", "batches", "released numbers"),
    ) -> None:
        """Notes why some premises are not tested."""
        self.untested |= dict.fromkeys(premises, reason)

    def collect(
        self, *tests: TestResult, words: Callable[[TestResult], Finding] = explain_test
    ) -> None:
        """Keeps statistical tests, and the function that words a finding if one is significant."""
        self._evidence += [(test, words) for test in tests]

    def judge(self) -> None:
        """Keeps the statistical findings that survive the correction for many tests."""
        if not self._evidence:
            return
        if self.degrees_of_scale > 0:
            count = sum(each.kind != "size" for each, _ in self._evidence) + 1
            tests = count * (self.steps + 1 + len(self.base.sizes))
            self.measured["detectable noise scale"] = detectable_scale(self.degrees_of_scale, tests)
        kept: dict[str, Finding] = {}
        for index in significant([each.p_value for each, _ in self._evidence], FAMILY_ERROR):
            evidence, words = self._evidence[index]
            if evidence.matters and evidence.kind not in kept:
                kept[evidence.kind] = words(evidence)
        # If gradients are random and larger than accounted for, residuals are gradients, not noise.
        of_size = {"size": _RESIDUALS} if self.random_gradients else {}
        for kind, others in (_EXPLAINS | of_size).items():
            if kind in kept:
                for other in others:
                    kept.pop(other, None)
        if len(kept) + len(self.findings) > 1:
            kept.pop("one more record", None)  # it assumes noise and batches as accounted
        factors = [float(f.numbers["factor"]) for f in self.findings if "factor" in f.numbers]
        first: list[Finding] = []
        if "influence" in kept:
            first = [kept.pop("influence")]
        elif factors and "size" in kept:
            # A contribution that varies by a factor between batches does not explain a larger one.
            if _shortfall(kept["size"]) > max(factors):
                first = [kept.pop("size")]
            else:
                kept["size"] = _explained(kept["size"])
        rest = [*self.findings, *kept.values()]
        self.findings = [*first, *([_explained(each) for each in rest] if first else rest)]
        # Other mistakes affect the number of records.
        self.findings.sort(key=lambda each: each.premise == "number of records")


def _shortfall(finding: Finding) -> float:
    """How many times the noise is smaller than accounted for."""
    effective, accounted = (
        float(finding.numbers[f"{name} noise multiplier"]) for name in ("effective", "accounted")
    )
    return accounted / max(effective, 1e-300)


def _explained(finding: Finding) -> Finding:
    return replace(
        finding, cause=f"An earlier finding may explain this. Otherwise: {finding.cause}"
    )


def detectable_scale(degrees: float, tests: int) -> float:
    """The largest scale of the noise that its test reports with 80 % probability.

    Args:
        degrees: degrees of freedom of the sum of squares.
        tests: number of tests that share the error `FAMILY_ERROR`.

    Returns:
        A share of the required scale.

    Example:
        >>> round(detectable_scale(10_000.0, 500), 3)
        0.956
    """
    usual = stats.chi2.ppf(_POWER, degrees)
    significant_at = float(np.sqrt(stats.chi2.ppf(FAMILY_ERROR / tests, degrees) / usual))
    return min(significant_at, (1 - SHORTFALL) * float(np.sqrt(degrees / usual)))


def significant(p_values: Sequence[float], alpha: float) -> list[int]:
    """Places of the p-values that Holm's method rejects, in ascending order of the p-values.

    Args:
        p_values: p-values of the tests, which may be dependent.
        alpha: the probability that any true hypothesis is rejected.

    Example:
        >>> significant([0.04, 0.5, 0.01], 0.05)
        [2]
    """
    with imports_of_game():
        from statsmodels.stats.multitest import multipletests

    rejected = multipletests(p_values, alpha=alpha, method="holm")[0]
    return [int(place) for place in np.argsort(p_values, kind="stable") if rejected[place]]


def replace_one(records: TrainingSet, canary: PoolRecord, place: int = -1) -> TrainingSet:
    """The records with a canary in the place of one of them, by default of the last."""
    features, labels = records.features.copy(), records.labels.copy()
    features[place], labels[place] = canary.features, canary.label
    return TrainingSet(features, labels)


def draw_alike(one: Trace, other: Trace, steps: int | None = None) -> bool:
    """Whether two runs drew as many random numbers in each of their first steps."""
    pairs = list(zip(one.steps, other.steps, strict=False))[:steps]
    assert all(a.generators and b.generators for a, b in pairs), "both runs need digests"
    return all(a.generators == b.generators for a, b in pairs)


def _is_reference(base: Trace, own: Trace) -> bool:
    """Whether a run can be a reference: finite gradients, and the draws of a record of the data."""
    if base.error or not base.steps or not np.isfinite(base.gradients).all():
        return False
    return own.error is not None or draw_alike(base, own)


def _moved(base: Trace, trace: Trace) -> NDArray[np.bool_]:
    """At which steps two coupled runs differ by more than rounding."""
    steps = min(len(base.steps), len(trace.steps))
    ours, theirs = base.gradients[:steps], trace.gradients[:steps]
    gap = np.linalg.norm(np.nan_to_num(ours - theirs), axis=1)
    size = np.linalg.norm(np.nan_to_num(ours), axis=1)
    moved: NDArray[np.bool_] = gap > np.maximum(8 * base.epsilon_of_type * size, 1e-12)
    return moved
