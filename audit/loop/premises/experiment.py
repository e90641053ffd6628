"""One differential test: its question, and the reference to which its runs are coupled."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.loop.premises.canary_pool import PoolRecord, canary_pool
from audit.loop.premises.verdicts import Verdicts
from audit.loop.runs.coupled_runs import Accounted, CoupledRuns, Trace
from audit.loop.runs.records import TrainingSet
from audit.loop.runs.work import work_of
from audit.user_code import run_seed

SEEDS_FOR_INCLUSION = 24
"""Seeds that are tried until the exchanged record is in many batches."""

MAX_WORK = 20_000.0
"""Work of all runs after which the test makes no further optional run, see `work_of`."""

MAX_BYTES = 5e8
"""Of memory for gradients."""

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


@dataclass(frozen=True)
class Check:
    """The question of a check: a training function, its data, and what may be done to answer it.

    Attributes:
        runs: runs of the training function.
        records: the data.
        pool: canaries.
        relation: neighbouring relation.
        seed: seed of all random numbers.
        max_work: work after which no further optional run is made.
        work_before: work of the runs before.
        verdicts: what the tests report.
    """

    runs: CoupledRuns
    records: TrainingSet
    pool: tuple[PoolRecord, ...]
    relation: str
    seed: int
    max_work: float = MAX_WORK
    work_before: float = 0.0
    verdicts: Verdicts = field(default_factory=Verdicts)

    def work_left(self, share: float = 1.0) -> bool:
        """Whether the runs have not done this share of the work yet."""
        return self.runs.work - self.work_before < share * self.max_work

    def seed_of(self, number: int) -> int:
        """The seed of a run."""
        return run_seed(self.seed, number, 5)


def check_of(
    runs: CoupledRuns,
    records: TrainingSet,
    canary: TrainingSet | None,
    relation: str,
    seed: int,
    max_work: float,
) -> Check:
    """A check whose pool holds records of the data, synthetic ones, and given canaries."""
    pool = tuple(canary_pool(records, canary)[:_MAX_POOL])
    return Check(runs, records, pool, relation, seed, max_work)


@dataclass(frozen=True, kw_only=True)
class Experiment(Check):
    """A check whose runs are coupled: they differ from a reference run in one record alone.

    Attributes:
        place: index of the record that is exchanged.
        forced: the reference run, whose released gradients are forced in all coupled runs.
        base: the same run from the first tested step.
        base_seed: its seed.
        steps: number of steps that are tested.
        first_step: the first tested step, from 0.
        stop_after: number of steps after which runs end; None if they complete.
        accounted: the accountant's history step by step, or None.
        brief: whether to make fewer runs.
    """

    place: int
    forced: Trace
    base: Trace
    base_seed: int
    steps: int
    stop_after: int | None
    accounted: Accounted | None
    first_step: int = 0
    brief: bool = False

    @property
    def can_go_on(self) -> int:
        """1 if all steps of the reference are tested, so that a further step is one too many."""
        return int(self.base.complete and self.first_step + self.steps == len(self.forced.steps))

    def coupled(
        self,
        records: TrainingSet,
        seed: int,
        digests: bool = True,
        further: int = 0,
        left_out: int | None = None,
    ) -> Trace:
        """The tested steps of a run that is coupled to the reference.

        Args:
            records: the data.
            seed: seed of the run.
            digests: whether to keep digests of generators, weights and optimizer.
            further: number of further steps that the run may take.
            left_out: place of the record that is left out of the samples of Opacus, or None.
        """
        stop = self.first_step + self.steps + further
        trace = self.runs.run(
            records,
            seed,
            like=self.forced,
            stop_after=stop,
            digests=digests,
            left_out=left_out,
        )
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
        steps = min(total, max(int(MAX_BYTES / row), 1))
        first_step, accounted = total - steps, self.accounted
        if accounted is not None:
            expanded = accounted.expanded[first_step:] or accounted.expanded[-1:]
            accounted = replace(accounted, expanded=expanded)
        return replace(
            self,
            pool=tuple(canaries),
            verdicts=self.verdicts.of_later_steps(),
            base=self.forced.from_step(first_step),
            accounted=accounted,
            steps=steps,
            first_step=first_step,
            stop_after=total,
            brief=True,
            max_work=max_work,
            work_before=self.runs.work,
        )


def start(check: Check, first: Trace) -> Experiment:
    """The experiment whose reference is complete, with the exchanged record in many tested steps.

    Args:
        check: the check.
        first: a run on its records.
    """
    steps = number_of_steps(check, first)
    stop_after = None if steps >= len(first.steps) else steps
    max_work = check.max_work * (1.0 if stop_after is None else 1 - _SHARE_OF_LATER_STEPS)
    check = replace(check, max_work=max_work)
    reference = _choose_reference(check, steps, stop_after)
    base = reference.run(check, None, reference.pool[0], reference.seed)
    return Experiment(
        **vars(replace(check, pool=reference.pool)),
        place=reference.place,
        forced=base,
        base=base,
        base_seed=reference.seed,
        # The number of steps may be random.
        steps=min(steps, len(base.steps)) if base.complete else steps,
        stop_after=stop_after,
        accounted=first.accounted,
    )


def number_of_steps(check: Check, first: Trace) -> int:
    """The number of steps that memory and work allow to test."""
    steps = len(first.steps)
    work = work_of(steps, sum(first.sizes), len(check.records))
    row = 8.0 * max(sum(first.sizes), 1) * (len(check.pool) + 8)
    in_memory = max(int(MAX_BYTES / row), 1)
    in_work = int(steps * check.max_work / (work * _RUNS_EXPECTED))
    return min(steps, in_memory, max(in_work, _MIN_STEPS))


@dataclass(frozen=True)
class _Reference:
    """A choice of the reference run.

    Attributes:
        place: index of the record that is exchanged.
        pool: canaries; the first is in the reference run.
        seed: seed of the run.
        hits: number of steps that an exchange of the record changes.
    """

    place: int
    pool: tuple[PoolRecord, ...]
    seed: int
    hits: int

    def run(
        self,
        check: Check,
        stop_after: int | None,
        canary: PoolRecord,
        seed: int,
        like: Trace | None = None,
    ) -> Trace:
        """A run with a canary in the exchanged place."""
        data = replace_one(check.records, canary, self.place)
        return check.runs.run(data, seed, like=like, stop_after=stop_after)


def _choose_reference(check: Check, steps: int, stop_after: int | None) -> _Reference:
    """The place, the canary and the seed of the reference run."""
    pool = check.pool
    # A function may hold out the last records, or the first ones.
    for place in (-1, 0, len(check.records) // 2):
        reference = _at_place(check, pool, place, steps, stop_after)
        if reference.hits > 0:
            return reference
        pool = reference.pool
    at_end = replace(reference, place=-1)
    reordered = _used_record_first(check, at_end, stop_after)
    if reordered is None:
        return at_end
    return _at_place(check, reordered, -1, steps, stop_after, own=False)


def _at_place(
    check: Check,
    pool: tuple[PoolRecord, ...],
    place: int,
    steps: int,
    stop_after: int | None,
    own: bool = True,
) -> _Reference:
    """The best seed for an exchanged place.

    `own` puts records of the data first if the first canary cannot be used.
    """
    best = _Reference(place, pool, check.seed_of(0), -1)
    run = partial(best.run, check, stop_after)
    for trial in range(SEEDS_FOR_INCLUSION):
        seed = check.seed_of(trial)
        base = run(pool[0], seed)
        data_record = next((record for record in pool if record.family == "own"), pool[0])
        if own and not _is_reference(base, run(data_record, seed)):
            # The function may not accept the first canary or leave it out, and gradients that
            # are not finite must not be forced on other runs. It accepts its own records.
            pool = tuple(sorted(pool, key=lambda record: record.family != "own"))
            base = run(pool[0], seed)
        hits = 0
        for canary in (pool[1 % len(pool)], pool[-1]):
            trace = run(canary, seed, base)
            if trace.steps and base.steps:
                hits = max(hits, int(_moved(base, trace).sum()))
        if hits > best.hits:
            best = replace(best, seed=seed, hits=hits)
        # Without a step that uses the record, nothing else can be tested.
        searching = best.hits == 0 and trial + 1 < _FEWEST_SEEDS
        if hits >= min(3, steps) or not (searching or check.work_left(0.2)):
            break
    return replace(best, pool=pool)


def _used_record_first(
    check: Check, reference: _Reference, stop_after: int | None
) -> tuple[PoolRecord, ...] | None:
    """The pool with a usable record first that the function does not leave out, or None."""
    run = partial(reference.run, check, stop_after, seed=reference.seed)
    base = run(reference.pool[0])
    for index, canary in enumerate(reference.pool[:_MAX_REFERENCES]):
        trace = run(canary, like=base)
        usable = trace.error is None and trace.steps and np.isfinite(trace.gradients).all()
        if usable and not draw_alike(base, trace):
            return canary, *reference.pool[:index], *reference.pool[index + 1 :]
    return None


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


def draw_alike(run: Trace, compared: Trace, steps: int | None = None) -> bool:
    """Whether two runs drew as many random numbers in each of their first steps."""
    pairs = list(zip(run.steps, compared.steps, strict=False))[:steps]
    assert all(a.generators and b.generators for a, b in pairs), "both runs need digests"
    return all(a.generators == b.generators for a, b in pairs)


def _is_reference(base: Trace, of_data: Trace) -> bool:
    """Whether a run can be a reference: finite gradients, and the draws of a record of the data."""
    if base.error or not base.steps or not np.isfinite(base.gradients).all():
        return False
    return of_data.error is not None or draw_alike(base, of_data)


def _moved(base: Trace, trace: Trace) -> NDArray[np.bool_]:
    """At which steps two coupled runs differ by more than rounding."""
    steps = min(len(base.steps), len(trace.steps))
    ours, theirs = base.gradients[:steps], trace.gradients[:steps]
    gap = np.linalg.norm(np.nan_to_num(ours - theirs), axis=1)
    size = np.linalg.norm(np.nan_to_num(ours), axis=1)
    moved: NDArray[np.bool_] = gap > np.maximum(8 * base.epsilon_of_type * size, 1e-12)
    return moved
