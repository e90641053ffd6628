"""State of one differential test: coupled runs of a watched function, and its findings."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.arrays import FloatArray
from audit.loop.explanations import explain, explain_test
from audit.loop.finding_kinds import EXPLAINED_BY_RANDOM_GRADIENTS, KINDS
from audit.loop.findings import Finding
from audit.loop.premises.canary_pool import PoolRecord, canary_pool
from audit.loop.premises.noise import TestResult
from audit.loop.runs.coupled_runs import Accounted, CoupledRuns, Trace
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.training_runs import Train, run_seed
from audit.loop.runs.work import CpuLimit, work_of

FAMILY_ERROR = 1e-5
"""Probability that a statistical test of one check reports a correct loop, over all its tests."""

SEEDS_FOR_INCLUSION = 24
"""Seeds that are tried until the exchanged record is in many batches."""

MAX_WORK = 20_000.0
"""Work of all runs after which the test makes no further optional run, see `work_of`."""

# Seeds that are tried, even if little work is left, until the exchanged record is in any batch.
_FEWEST_SEEDS = 8
_RUNS_EXPECTED = 160
# Where not all steps can be tested with all runs, the later ones get this share of the work.
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


class Experiment:
    """Runs of one training function on neighbouring data sets, and the findings about it.

    Attributes:
        records: the data.
        relation: neighbouring relation.
        place: index of the record that is exchanged.
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
        not_finite: runs with records that are not finite, whose gradients are finite.
        work_before: work of the runs before this experiment.
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
        max_work: float = MAX_WORK,
        cpu: CpuLimit | None = None,
    ) -> None:
        self.runs = CoupledRuns(train, candidate, cpu)
        self.records, self.relation, self.seed, self.max_work = records, relation, seed, max_work
        self.place = -1
        self.pool = canary_pool(records, canary)[:_MAX_POOL]
        self.not_finite: list[Trace] = []
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
        self.public_size: Callable[[], Any] | None = None
        self._evidence: list[tuple[TestResult, Callable[[TestResult], Finding]]] = []
        self.work_before = 0.0

    def work_left(self, share: float = 1.0) -> bool:
        """Whether the runs have not done this share of the work yet."""
        return self.runs.work - self.work_before < share * self.max_work

    def seed_of(self, number: int) -> int:
        """The seed of a run."""
        return run_seed(self.seed, number, 5)

    # --- runs ---

    @property
    def can_go_on(self) -> int:
        """1 if all steps of the reference are tested, so that a further step is one too many."""
        return int(self.base.complete and self.first_step + self.steps == len(self.forced.steps))

    def coupled(
        self, records: TrainingSet, seed: int, digests: bool = True, further: int = 0
    ) -> Trace:
        """The tested steps of a run that is coupled to the reference.

        Args:
            records: the data.
            seed: seed of the run.
            digests: whether to keep digests of generators, weights and optimizer.
            further: number of further steps that the run may take.
        """
        stop = self.first_step + self.steps + further
        trace = self.runs.run(records, seed, like=self.forced, stop_after=stop, digests=digests)
        return trace.from_step(self.first_step)

    def ended_early(self, trace: Trace) -> bool:
        """Whether a run raised an error, or took fewer steps than are tested."""
        return trace.error is not None or len(trace.steps) < self.steps

    def draws_as_reference(self, trace: Trace) -> bool:
        """Whether a run drew as many random numbers in each step as the reference."""
        return draw_alike(trace, self.base, self.steps)

    def with_canary(self, canary: PoolRecord) -> TrainingSet:
        """The records with a canary in the place of the exchanged one."""
        return self.exchange(self.records, canary)

    def exchange(self, records: TrainingSet, canary: PoolRecord) -> TrainingSet:
        """The same for other records, which may be fewer."""
        return replace_one(records, canary, min(self.place, len(records) - 1))

    @property
    def sampled(self) -> bool:
        """Whether the accountant assumes sampled batches."""
        return self.accounted is not None and any(q < 1 for _, q in self.accounted.expanded)

    def start(self, first: Trace) -> None:
        """Makes the reference run: complete, with the exchanged record in many tested steps."""
        self.accounted = first.accounted
        self.steps = self._number_of_steps(first)
        self.stop_after = None if self.steps >= len(first.steps) else self.steps
        if self.stop_after is not None:
            self.max_work *= 1 - _SHARE_OF_LATER_STEPS
        # A function may hold out the last records, or the first ones.
        for place in (-1, 0, len(self.records) // 2):
            self.place = place
            if self._choose_reference() > 0:
                break
        else:
            self.place = -1
            if self._bring_used_record_first():
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
            if hits >= min(3, self.steps) or not (searching or self.work_left(0.2)):
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
            The experiment, which shares this one's findings; None if it is too much work.
        """
        total = len(self.base.steps)
        max_work = self.max_work * _SHARE_OF_LATER_STEPS / (1 - _SHARE_OF_LATER_STEPS)
        work = work_of(total, sum(self.base.sizes), len(self.records))
        if not self.base.complete or work * _MIN_LATER_RUNS > 2 * max_work:
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
        later.not_finite, later.work_before, later.max_work = [], self.runs.work, max_work
        return later

    def _short_run(self, canary: PoolRecord, seed: int, like: Trace | None = None) -> Trace:
        return self.runs.run(self.with_canary(canary), seed, like=like, stop_after=self.stop_after)

    def _number_of_steps(self, first: Trace) -> int:
        """The number of steps that memory and work allow to test."""
        steps = len(first.steps)
        work = work_of(steps, sum(first.sizes), len(self.records))
        row = 8.0 * max(sum(first.sizes), 1) * (len(self.pool) + 8)
        in_memory = max(int(MAX_BYTES / row), 1)
        in_work = int(steps * self.max_work / (work * _RUNS_EXPECTED))
        return min(steps, in_memory, max(in_work, _MIN_STEPS))

    # --- findings ---

    def report_steps(self, one: int, other: int) -> None:
        """Reports once that the number of steps depends on the record."""
        if not any(finding.kind == "number of steps" for finding in self.findings):
            self.findings.append(explain("number of steps", one=one, other=other))

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
        # Findings about single declared values are no kinds of their own, and explain no other.
        explained = {other for kind in kept if kind in KINDS for other in KINDS[kind].explains}
        if self.random_gradients and "size" in kept:
            explained |= set(EXPLAINED_BY_RANDOM_GRADIENTS)
        kept = {kind: finding for kind, finding in kept.items() if kind not in explained}
        if any(finding.kind == "number of steps" for finding in self.findings):
            kept.pop("number of steps", None)
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
        self.findings.sort(key=lambda finding: finding.rank)


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
    order = np.argsort(p_values, kind="stable")
    # Holm's method rejects ascending p-values as long as the k-th of m is at most alpha / (m - k).
    limits = alpha / np.arange(len(p_values), 0, -1)
    accepted = np.flatnonzero(np.asarray(p_values)[order] > limits)
    return [int(place) for place in order[: accepted[0] if len(accepted) else len(order)]]


def replace_one(records: TrainingSet, canary: PoolRecord, place: int = -1) -> TrainingSet:
    """The records with a canary in the place of one of them, by default of the last."""
    features, labels = records.features.copy(), records.labels.copy()
    features[place], labels[place] = canary.features, canary.label
    return TrainingSet(features, labels)


def copies(records: TrainingSet, canary: PoolRecord, n: int) -> TrainingSet:
    """n copies of a record."""
    features = np.repeat(np.asarray(canary.features)[None], n, axis=0)
    labels = np.full(n, canary.label, dtype=records.labels.dtype)
    return TrainingSet(features.astype(records.features.dtype), labels)


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
