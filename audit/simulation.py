"""Tuning protocols carried out on batches of simulated runs, T tunings at once, for audits.

Of a sequential protocol, run j of all tunings is trained together, then run j + 1. Random search is
algorithm 2 of Xiang, Wang & Wang 2024. The samplers of the adaptive protocol choose from one list
of candidates. Their densities are relative to the uniform prior: their mean over the candidates is
1, and they lie within [low, high].
"""

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from audit import checks
from audit.dpsgd import RunBatch, RunOutcomes
from audit.errors import InvalidInput
from audit.numerics import FloatArray, IntArray
from audit.protocols import Adaptive, Protocol, Subset
from audit.protocols.adaptive import MIN_RUNS, confidence_density, covariance, project
from audit.repetitions import Repetitions

__all__ = ["Winners", "best_of_runs"]

SAMPLERS = ("gaussian-process", "adversarial")
Run = Callable[[RunBatch], Sequence[RunOutcomes]]
"""Trains a batch of runs and returns its outcomes in every view."""
LogRatio = Callable[["Winners"], NDArray[np.float64]]
"""The log-likelihood ratio of each tuning's choice, with over without the canary, [T]."""

_PROXIES = ("lambda_a", "lambda_c", "lambda_known", "lambda_start", "lambda_end")
# Runs passed to an engine at a time. Results depend on it: seeds are drawn batch by batch.
_MAX_BATCH = 1 << 20
# Runs of one tuning that are trained together once few tunings remain.
_MAX_AHEAD = 16
_MAX_BATCH_FLOATS = 1 << 22  # memory of one batch of linear systems


@dataclass(frozen=True)
class GameContext:
    """The training function and the fixed choices of the adversary."""

    run: Run  # trains a batch of runs and returns its outcomes in every view
    features: NDArray[np.float64]  # [n, d], the candidates' features, each in [0, 1]
    tuned_log_ratio: LogRatio  # in tuning on a subset, the chosen run's log-likelihood ratio
    log_ratio_scale: float  # sigma^2 / N, the unit of lambda_c
    views: int = 1  # number of threat models that evaluate the same runs
    records: int = 0
    good_enough: float = -np.inf  # the score above which a run is accepted
    sampler: str = "gaussian-process"
    keep_runs: bool = False  # whether a random search stores the outcomes of every run

    @property
    def candidates(self) -> int:
        """Number of candidates."""
        return len(self.features)


@dataclass(frozen=True)
class Winners:
    """The released runs of T tunings.

    Attributes:
        runs: [T], K, the number of runs.
        chosen: [T], index of the best run; -1 if K = 0 or every run diverged.
        candidate: [T], index of the best run's candidate; -1 if there is none.
        score: [T], the best run's score; minus infinity if there is none.
        lambda_a: [T], the best run's proxy; minus infinity if there is none.
        lambda_c: [T], the best run's proxy for sampled batches; minus infinity if there is none.
        lambda_known: [T], the best run's proxy given the training records, likewise.
        lambda_start: [T], the best run's proxy from the final weights, with the canary's gradient
            at the initial weights, likewise.
        lambda_end: [T], the same with the canary's gradient at the final weights, likewise.
        diverged: [T], number of runs that diverged; they are never chosen.
        run_score: [R], score of every run, tuning by tuning; minus infinity if it diverged. Empty
            if runs are not stored.
        run_lambda_a: [R], lambda_a of every run, likewise.
        run_lambda_c: [R], lambda_c of every run, likewise.

    Example:
        >>> import numpy as np
        >>> empty_winners(np.array([3, 0])).chosen.tolist()  # before any run
        [-1, -1]
    """

    runs: NDArray[np.int64]
    chosen: NDArray[np.int64]
    candidate: NDArray[np.int64]
    score: NDArray[np.float64]
    lambda_a: NDArray[np.float64]
    lambda_c: NDArray[np.float64]
    lambda_known: NDArray[np.float64]
    lambda_start: NDArray[np.float64]
    lambda_end: NDArray[np.float64]
    diverged: NDArray[np.int64]
    run_score: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), kw_only=True)
    run_lambda_a: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), kw_only=True)
    run_lambda_c: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), kw_only=True)

    def keep(self, places: NDArray[np.int64], outcomes: RunOutcomes) -> None:
        """Stores the outcomes of the runs at these positions among all runs."""
        for stored, new_values in (
            (self.run_score, outcomes.scores),
            (self.run_lambda_a, outcomes.lambda_a),
            (self.run_lambda_c, outcomes.lambda_c),
        ):
            stored[places] = np.where(outcomes.finite, new_values, -np.inf)

    def compete(
        self,
        outcomes: RunOutcomes,
        batch: RunBatch,
        tuning: NDArray[np.int64],
        index: NDArray[np.int64],
    ) -> None:
        """Updates the winners with a batch of runs; ties go to the earlier run.

        Args:
            outcomes: outcomes of the batch.
            batch: the batch, sorted by tuning.
            tuning: [R], each run's tuning.
            index: [R], each run's index in its tuning.

        Raises:
            InvalidInput: a score is NaN.
        """
        scores = np.where(outcomes.finite, outcomes.scores, -np.inf)
        if np.isnan(scores).any():
            raise InvalidInput("score must be a number for every run, got NaN")
        np.add.at(self.diverged, tuning, ~outcomes.finite)
        starts = np.flatnonzero(np.diff(tuning, prepend=-1))
        highest = np.maximum.reduceat(scores, starts)
        position = np.arange(len(batch))
        is_best = scores == np.repeat(highest, np.diff(np.append(starts, len(batch))))
        best = np.minimum.reduceat(np.where(is_best, position, len(batch)), starts)
        # A batch may continue a tuning of an earlier batch: only a better score replaces its
        # winner.
        better = highest > self.score[tuning[starts]]
        best, who = best[better], tuning[starts][better]
        self.chosen[who] = index[best]
        self.candidate[who] = batch.candidate[best]
        self.score[who] = scores[best]
        self.take_proxies(who, outcomes, best)

    def take_proxies(
        self, who: NDArray[np.int64], outcomes: RunOutcomes, position: NDArray[np.int64]
    ) -> None:
        """Copies the proxies of some runs to the tunings `who` whose winners they are."""
        for name in _PROXIES:
            getattr(self, name)[who] = getattr(outcomes, name)[position]


def empty_winners(runs: NDArray[np.int64], kept: int = 0) -> Winners:
    """Winners before any run, for tunings with these numbers of runs, [T]; stores `kept` runs."""
    size = len(runs)
    return Winners(
        runs=runs,
        chosen=np.full(size, -1, dtype=np.int64),
        candidate=np.full(size, -1, dtype=np.int64),
        score=np.full(size, -np.inf),
        **{name: np.full(size, -np.inf) for name in _PROXIES},
        diverged=np.zeros(size, dtype=np.int64),
        run_score=np.empty(kept),
        run_lambda_a=np.empty(kept),
        run_lambda_c=np.empty(kept),
    )


def best_of_runs(
    run: Run,
    repetitions: Repetitions,
    candidates: int,
    included: NDArray[np.bool_],
    rng: np.random.Generator,
    views: int = 1,
    records: NDArray[np.bool_] | None = None,
    keep: bool = False,
) -> list[Winners]:
    """Winners of T random searches: each tuning draws K and releases the best of its K runs.

    Each run draws one of the candidates uniformly. Ties go to the earlier run, whatever the data.

    Args:
        run: trains a batch of runs and returns its outcomes in every view.
        repetitions: the distribution of K.
        candidates: number of candidates.
        included: [T], whether the canary is in the data set of each tuning.
        rng: source of K, candidates and run seeds.
        views: number of threat models that evaluate the same runs.
        records: [T, n], the training records in each tuning's data set; None for all.
        keep: whether to store the outcomes of every run as well.

    Returns:
        The winners in each view.

    Raises:
        InvalidInput: a score is NaN.

    Example:
        >>> import numpy as np
        >>> from audit.dpsgd import RunOutcomes
        >>> from audit.repetitions import Fixed
        >>> def run(batch):
        ...     score = np.random.default_rng(0).normal(size=len(batch)) + batch.included
        ...     return [RunOutcomes(*[score] * 6, np.isfinite(score))]
        >>> included, rng = np.array([False, True]), np.random.default_rng(0)
        >>> (winners,) = best_of_runs(run, Fixed(3), 1, included, rng)
        >>> winners.runs.tolist()
        [3, 3]
    """
    keep = checks.flag("keep", keep)
    runs = repetitions.sample(rng, len(included))
    ends = np.cumsum(runs)
    total = int(ends[-1]) if len(runs) else 0
    all_winners = [empty_winners(runs, total if keep else 0) for _ in range(views)]
    for places in index_batches(total):
        tuning = np.searchsorted(ends, places, side="right")
        candidate = rng.integers(0, candidates, len(places))
        records_of_runs = None if records is None else records[tuning]
        batch = RunBatch.drawn(included[tuning], candidate, rng, records_of_runs)
        for winners, outcomes in zip(all_winners, run(batch), strict=True):
            winners.compete(outcomes, batch, tuning, places - (ends - runs)[tuning])
            if keep:
                winners.keep(places, outcomes)
    return all_winners


def best_of_list(
    context: GameContext,
    is_run: NDArray[np.bool_],
    included: NDArray[np.bool_],
    rng: np.random.Generator,
) -> list[Winners]:
    """Winners of T searches of a list in each view; ties go to the earlier candidate.

    `is_run`, [T, n]: which candidates each tuning trains; `chosen` is the winner's position.
    """
    every_tuning, every_place = np.nonzero(is_run)
    all_winners = [empty_winners(is_run.sum(axis=1)) for _ in range(context.views)]
    for places in index_batches(len(every_tuning)):
        tuning, place = every_tuning[places], every_place[places]
        candidate = place if context.candidates > 1 else np.zeros_like(place)
        batch = RunBatch.drawn(included[tuning], candidate, rng)
        for winners, outcomes in zip(all_winners, context.run(batch), strict=True):
            winners.compete(outcomes, batch, tuning, place)
    return all_winners


def index_batches(total: int) -> Iterator[NDArray[np.int64]]:
    """Yields the indices 0, ..., total - 1 in batches of at most _MAX_BATCH."""
    for start in range(0, total, _MAX_BATCH):
        yield np.arange(start, min(start + _MAX_BATCH, total))


def best_of_adaptive(
    context: GameContext, protocol: Adaptive, included: NDArray[np.bool_], rng: np.random.Generator
) -> Winners:
    """Winners of T adaptive searches; the density of each candidate depends on the earlier runs."""
    sampler = make_sampler(context.sampler, protocol, context.features, len(included))
    runs = protocol.repetitions.sample(rng, len(included))
    winners = empty_winners(runs)
    for index in range(int(runs.max(initial=0))):
        tuning = np.flatnonzero(runs > index)
        candidate = draw_candidates(sampler.densities(tuning), rng.random(len(tuning)))
        batch = RunBatch.drawn(included[tuning], candidate, rng)
        (outcomes,) = context.run(batch)
        winners.compete(outcomes, batch, tuning, np.full(len(tuning), index))
        sampler.add(tuning, candidate, outcomes)
    return winners


def draw_candidates(
    densities: NDArray[np.float64], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Candidates, [R], from densities, [R, n], relative to the prior and uniform numbers, [R]."""
    chances = np.cumsum(densities, axis=1) / densities.shape[1]
    return np.minimum((chances <= uniforms[:, None]).sum(axis=1), densities.shape[1] - 1)


def first_accepted(
    context: GameContext,
    max_runs: NDArray[np.int64],
    included: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Winners:
    """Winners of T tunings that release the first run above a threshold.

    A tuning stops without a result after `max_runs`, [T], which is fixed or drawn first. Each run
    draws one of the candidates uniformly. `runs` counts the runs up to the accepted one, or up to
    the stop.
    """
    size = len(included)
    winners = empty_winners(np.zeros(size, dtype=np.int64))
    active = np.arange(size)
    while active.size:
        ahead = max(1, min(size // active.size, _MAX_AHEAD))
        tuning = np.repeat(active, ahead)
        index = winners.runs[tuning] + np.tile(np.arange(ahead), active.size)
        candidate = rng.integers(0, context.candidates, len(tuning))
        batch = RunBatch.drawn(included[tuning], candidate, rng)
        (outcomes,) = context.run(batch)
        accepted = (
            outcomes.finite & (outcomes.scores > context.good_enough) & (index < max_runs[tuning])
        )
        places = np.arange(len(tuning)).reshape(active.size, ahead)
        is_kept = accepted[places]
        has_accepted = is_kept.any(axis=1)
        # Runs after the accepted one were trained only for speed; the protocol does not have them.
        first_place = np.where(has_accepted, is_kept.argmax(axis=1), ahead - 1)
        made = np.minimum(winners.runs[active] + first_place + 1, max_runs[active])
        was_made = index < np.repeat(made, ahead)
        np.add.at(winners.diverged, tuning, was_made & ~outcomes.finite)
        winners.runs[active] = made
        who, won = active[has_accepted], places[has_accepted, first_place[has_accepted]]
        winners.chosen[who] = index[won]
        winners.candidate[who] = batch.candidate[won]
        winners.score[who] = outcomes.scores[won]
        winners.take_proxies(who, outcomes, won)
        active = active[~has_accepted & (made < max_runs[active])]
    return winners


def tune_on_subset(
    context: GameContext, protocol: Subset, included: NDArray[np.bool_], rng: np.random.Generator
) -> Winners:
    """Winners of T tunings: best of K on a subset, then a final run on the rest or on all records.

    A tuning that chooses no candidate has no final run. In the result, `runs`, `chosen`,
    `candidate` and `score` describe the tuning; `lambda_a`, `lambda_start` and `lambda_end` the
    final run. `lambda_c` and `lambda_known` describe both: the log-likelihood ratio of a canary
    that is in the subset with probability q, on the scale of a single run's. All proxies are minus
    infinity if nothing was chosen.

    Koskela & Kulkarni 2023 multiply the learning rate by n/m for a final run on n records after
    tuning on m, so that the weights receive the same noise. Their steps use the mean gradient over
    the expected number of records. Here a step uses the sum, for which their rule leaves the
    learning rate unchanged.
    """
    rate, on_all = protocol.sampling_rate, protocol.final == "all"
    tuned_on = rng.random(len(included)) < rate
    members = rng.random((len(included), context.records)) < rate if context.records else None
    (chosen,) = best_of_runs(
        context.run,
        protocol.repetitions,
        context.candidates,
        included & tuned_on,
        rng,
        records=members,
    )
    with_winner = np.flatnonzero(chosen.chosen >= 0)
    included_at_end = (included & (on_all | ~tuned_on))[with_winner]
    not_members = None if members is None or on_all else ~members[with_winner]
    batch = RunBatch.drawn(included_at_end, chosen.candidate[with_winner], rng, not_members)
    (final,) = context.run(batch)
    final_log_ratio = np.full(len(included), -np.inf)
    of_final_run = {}
    for name in ("lambda_a", "lambda_start", "lambda_end"):
        of_final_run[name] = np.full(len(included), -np.inf)
        of_final_run[name][with_winner] = np.where(final.finite, getattr(final, name), -np.inf)
    final_log_ratio[with_winner] = np.where(
        final.finite, (final.lambda_c - 0.5) / context.log_ratio_scale, -np.inf
    )
    with np.errstate(divide="ignore"):
        log_q, log_rest = np.log(rate), np.log1p(-rate)
    tuned = log_q + context.tuned_log_ratio(chosen)
    if on_all:
        together = np.logaddexp(tuned, log_rest) + final_log_ratio
    else:
        together = np.logaddexp(tuned, log_rest + final_log_ratio)
    diverged = chosen.diverged.copy()
    diverged[with_winner] += ~final.finite
    log_ratio = np.where(chosen.chosen >= 0, 0.5 + context.log_ratio_scale * together, -np.inf)
    return Winners(
        **of_final_run,
        runs=chosen.runs,
        chosen=chosen.chosen,
        candidate=chosen.candidate,
        score=chosen.score,
        lambda_c=log_ratio,
        lambda_known=log_ratio,
        diverged=diverged,
    )


def tune(
    protocol: Protocol, context: GameContext, included: NDArray[np.bool_], rng: np.random.Generator
) -> list[Winners]:
    """Winners of T simulated tunings in every view; `included`, [T]: which have the canary."""
    return protocol.simulate(Tunings(context, included, rng))


@dataclass(frozen=True)
class Tunings:
    """T simulated tunings, with the ways of making runs that protocols are composed of.

    It implements `audit.protocols.base.SimulatedTunings`.
    """

    context: GameContext
    included: NDArray[np.bool_]
    rng: np.random.Generator

    @property
    def count(self) -> int:
        """Number of tunings."""
        return len(self.included)

    def best_of_draws(self, repetitions: Repetitions) -> list[Winners]:
        """Winners of K runs with independent candidates."""
        context = self.context
        return best_of_runs(
            context.run,
            repetitions,
            context.candidates,
            self.included,
            self.rng,
            context.views,
            keep=context.keep_runs,
        )

    def best_of_list(self, is_run: NDArray[np.bool_]) -> list[Winners]:
        """Winners among the candidates of a list; `is_run`, [T, n]: which of them are trained."""
        return best_of_list(self.context, is_run, self.included, self.rng)

    def best_of_adaptive(self, protocol: Adaptive) -> list[Winners]:
        """Winners of K runs whose candidates depend on the earlier runs."""
        return [best_of_adaptive(self.context, protocol, self.included, self.rng)]

    def first_accepted(self, max_runs: NDArray[np.int64]) -> list[Winners]:
        """The first accepted run of each tuning, among at most `max_runs`, [T]."""
        return [first_accepted(self.context, max_runs, self.included, self.rng)]

    def tuned_on_subset(self, protocol: Subset) -> list[Winners]:
        """Random search on a part of the records, then one final run."""
        return [tune_on_subset(self.context, protocol, self.included, self.rng)]


class Sampler(typing.Protocol):
    """For each of T tunings, a density over candidates that depends on the runs so far."""

    def densities(self, tuning: IntArray) -> FloatArray:
        """Relative densities, [R, n], of the next candidate in the given tunings, [R]."""
        ...

    def add(self, tuning: IntArray, candidate: IntArray, outcomes: RunOutcomes) -> None:
        """Adds one finished run to each of the given tunings, [R]."""
        ...


def make_sampler(name: str, protocol: Adaptive, features: FloatArray, tunings: int) -> Sampler:
    """A new sampler for T tunings over candidates with features [n, d], each in [0, 1]."""
    name = checks.one_of("sampler", name, SAMPLERS)
    if name == "gaussian-process":
        return GaussianProcessSampler(protocol, features, tunings)
    return AdversarialSampler(protocol, len(features), tunings)


class GaussianProcessSampler:
    """Softmax of a Gaussian process's upper confidence bounds, projected into [low, high].

    It computes the density for all tunings together. The mean score and the number of runs of each
    candidate are sufficient statistics.
    """

    def __init__(self, protocol: Adaptive, features: FloatArray, tunings: int) -> None:
        self._protocol = protocol
        self._covariance = covariance(features, features)
        shape = tunings, len(features)
        self._runs, self._lost, self._sums = (np.zeros(shape) for _ in range(3))
        self._squares = np.zeros(tunings)
        self._origin = np.full(tunings, np.nan)  # the first score; subtracted to avoid cancellation
        self._least, self._most = np.full(tunings, np.inf), np.full(tunings, -np.inf)

    def add(self, tuning: IntArray, candidate: IntArray, outcomes: RunOutcomes) -> None:
        has_score = outcomes.finite & np.isfinite(outcomes.scores)
        self._lost[tuning[~has_score], candidate[~has_score]] += 1.0
        who, candidate_known, scores = (
            tuning[has_score],
            candidate[has_score],
            outcomes.scores[has_score],
        )
        self._origin[who] = np.where(np.isnan(self._origin[who]), scores, self._origin[who])
        scores = scores - self._origin[who]
        self._runs[who, candidate_known] += 1.0
        self._sums[who, candidate_known] += scores
        self._squares[who] += scores**2
        self._least[who] = np.minimum(self._least[who], scores)
        self._most[who] = np.maximum(self._most[who], scores)

    def densities(self, tuning: IntArray) -> FloatArray:
        densities = np.ones((len(tuning), len(self._covariance)))
        knows = (self._runs[tuning].sum(axis=1) >= MIN_RUNS) & (self._most > self._least)[tuning]
        rows = max(1, _MAX_BATCH_FLOATS // self._covariance.size)
        places = np.flatnonzero(knows)
        for start in range(0, len(places), rows):
            block = places[start : start + rows]
            densities[block] = self._model_densities(tuning[block])
        return densities

    def _model_densities(self, tuning: IntArray) -> FloatArray:
        # A diverged run gets the lowest score of the other runs.
        lost, lowest_score = self._lost[tuning], self._least[tuning, None]
        runs, sums = self._runs[tuning] + lost, self._sums[tuning] + lost * lowest_score
        total = runs.sum(axis=1, keepdims=True)
        mean = sums.sum(axis=1, keepdims=True) / total
        squares = self._squares[tuning, None] + lost.sum(axis=1, keepdims=True) * lowest_score**2
        deviation = np.sqrt(np.maximum(squares / total - mean**2, 0.0))
        deviation = np.where(deviation > 0.0, deviation, 1.0)
        with np.errstate(invalid="ignore"):
            scores = np.nan_to_num((sums / runs - mean) / deviation)
        low, high = self._protocol.low, self._protocol.high
        return confidence_density(self._covariance, self._covariance, runs, scores, low, high)


class AdversarialSampler:
    """A sampler that reveals whether the canary is included, as far as [low, high] allows.

    It sums the earlier runs' evidence for the canary (lambda_c - 1/2). If the sum is positive, the
    second half of the candidates gets the highest density allowed, if negative the first half.
    """

    def __init__(self, protocol: Adaptive, candidates: int, tunings: int) -> None:
        self._evidence = np.zeros(tunings)
        self._densities = np.ones((3, candidates))
        half = candidates // 2
        for row, favoured in ((0, slice(0, half)), (2, slice(candidates - half, candidates))):
            chosen = np.zeros(candidates)
            chosen[favoured] = candidates
            self._densities[row] = (
                project(chosen[None], protocol.low, protocol.high)[0] if half else 1.0
            )

    def add(self, tuning: IntArray, candidate: IntArray, outcomes: RunOutcomes) -> None:
        self._evidence[tuning] += np.where(outcomes.finite, outcomes.lambda_c - 0.5, 0.0)

    def densities(self, tuning: IntArray) -> FloatArray:
        return self._densities[1 + np.sign(self._evidence[tuning]).astype(np.int64)]
