"""The differential test: does a training loop do what its accountant assumes?

An accountant's epsilon rests on four premises: given the same earlier outputs, one record moves a
released gradient by at most C; every released coordinate then gets new, independent Gaussian noise
of standard deviation sigma C; batches are drawn as accounted; and nothing else is released. Each
premise is tested by itself, with runs whose seed we choose and whose released gradients we may
overwrite. Deterministic counterexamples are reported as such; statistical tests have a family-wise
error of `FAMILY_ERROR` per check.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.arrays import FloatArray
from audit.own_training import explanations as explain
from audit.own_training.accounted import accounted_of
from audit.own_training.batches import Batches, batches_of, poisson_tests
from audit.own_training.black_box import black_box_findings
from audit.own_training.canary_pool import PoolRecord, ascend, canary_pool, gradient_of
from audit.own_training.contributions import Contributions, contributions
from audit.own_training.coupled_runs import CoupledRuns, Trace
from audit.own_training.findings import Finding, PremiseReport
from audit.own_training.noise import (
    MIN_CORRELATION,
    Evidence,
    Noise,
    estimate_noise,
    independence,
    scale_p_value,
    shape_of_noise,
)
from audit.own_training.number_of_records import SizeMeasurement
from audit.own_training.records import TrainingSet
from audit.own_training.released_numbers import differences
from audit.own_training.runs import Train, run_seed

FAMILY_ERROR = 1e-5
"""Chance that the statistical tests accuse a correct loop, over all tests of one check."""

SECONDS = 30.0
"""Time after which the test starts no further optional runs."""

_SEEDS_FOR_INCLUSION = 24
_RUNS_EXPECTED = 160
_MIN_RUNS, _MAX_RUNS = 8, 64
_MAX_POOL = 60
_MAX_BYTES = 5e8
_RELATIVE_ERROR = 0.004
_MIN_BATCHES = 200
# A shortfall of the noise that is smaller than this is not reported.
_SHORTFALL = 0.01
_CONTRIBUTION_SLACK = 2e-3
_SMALL_N = 3
_MIN_STEPS = 4
# Events of smaller probability are taken for impossible.
_NEVER = 1e-9
_MAX_PAIR_RUNS = 16


# A finding explains others, which are then left out.
_EXPLAINS = {
    "steps": ("coordinates", "tensors", "distribution", "distance", "scale of runs"),
    "coordinates": ("tensors", "distribution", "distance", "scale of runs"),
    "tensors": ("distribution", "distance", "scale of runs"),
    "scale of runs": ("distribution", "distance"),
    "distribution": ("distance",),
    "uneven batches": ("mean of batches", "no empty batch"),
    "fixed batches": ("no empty batch", "inclusions of a run", "mean of batches"),
    "no empty batch": ("mean of batches", "inclusion rate"),
    "inclusion without the seed": ("inclusion rate",),
}


@dataclass(frozen=True)
class PremiseTest:
    """Result of the differential test.

    Attributes:
        report: for the user.
        canary: the record that contributes most, which is the best canary for an attack.
        initial: the initial weights of a function that has an accountant; else None.
    """

    report: PremiseReport
    canary: PoolRecord | None
    initial: Mapping[str, Any] | None


def check_premises(
    train: Train,
    records: TrainingSet,
    *,
    canary: TrainingSet | None = None,
    candidate: Any = None,
    claim: float | None = None,
    delta: float = 1e-5,
    relation: str = "add-remove",
    loss: Callable[..., Any] | None = None,
    seed: int = 0,
    seconds: float = SECONDS,
) -> PremiseTest:
    """Tests every premise of a training function by itself.

    Args:
        train: the training function, see `audit.own_training.Train`.
        records: the data, or synthetic records of their shape.
        canary: further records for the pool.
        candidate: hyperparameters.
        claim: epsilon at delta, where the function has no accountant.
        delta: of the claim.
        relation: "add-remove" tests that nothing depends on the number of records; under
            "zero-out" and "replace-one" that number is public.
        loss: `loss(model, features, labels)` for the gradient ascent; None takes the usual one.
        seed: of everything random.
        seconds: time after which no further optional run is started.

    Raises:
        ValueError: the function raises on the records themselves.

    Example:
        >>> def exact_mean(records, candidate, seed, watch):
        ...     return float(records.features.mean())
        >>> data = TrainingSet(np.arange(6.0).reshape(6, 1), np.arange(6) % 2)
        >>> found = check_premises(exact_mean, data).report
        >>> found.broken, found.findings[0].premise
        (True, 'released numbers')
    """
    test = _Test(train, records, canary, candidate, claim, delta, relation, loss, seed, seconds)
    return test.run()


class _Test:
    def __init__(
        self,
        train: Train,
        records: TrainingSet,
        canary: TrainingSet | None,
        candidate: Any,
        claim: float | None,
        delta: float,
        relation: str,
        loss: Callable[..., Any] | None,
        seed: int,
        seconds: float,
    ) -> None:
        self.runs = CoupledRuns(train, candidate)
        if len(records) == 0:
            if canary is None:
                raise ValueError("records must hold at least one record, got none")
            records = records.with_record(canary)
        self.records, self.claim, self.delta = records, claim, delta
        self.relation, self.loss, self.seed, self.seconds = relation, loss, seed, seconds
        self.pool = canary_pool(records, canary)[:_MAX_POOL]
        self.findings: list[Finding] = []
        self.evidence: list[tuple[Evidence, Callable[[Evidence], Finding]]] = []
        self.tested: list[str] = []
        self.untested: dict[str, str] = {}
        self.notes: list[str] = []
        self.measured: dict[str, float] = {}
        self.best: PoolRecord | None = None
        self.short = False
        self.started = time.perf_counter()

    # --- the whole test ---

    def run(self) -> PremiseTest:
        """Everything, in the order in which later parts need earlier ones."""
        seed = run_seed(self.seed, 0, 9)
        first = self.runs.run(self.records, seed)
        if first.error is not None:
            raise ValueError(f"train must give an answer, and raised {first.error}")
        if first.watched and first.steps:
            self._watched(first, seed)
        else:
            if first.watched:
                self.notes.append(
                    "the watched optimizer took no step; the function is tested as a black box"
                )
            self._black_box(first)
        self._judge()
        self._excuse_further_releases(first)
        report = PremiseReport(
            tuple(self.findings),
            tuple(dict.fromkeys(self.tested)),
            self.untested,
            tuple(self.notes),
            self.measured,
            first.watched and bool(first.steps),
            self.runs.count,
            time.perf_counter() - self.started,
        )
        return PremiseTest(report, self.best, first.initial if first.history else None)

    def _excuse_further_releases(self, first: Trace) -> None:
        """Withdraws findings that may be due to accounted releases which were not declared."""
        accounted = accounted_of(first)
        if accounted is None or first.further:
            return
        if not accounted.has_further_releases(len(first.steps)):
            return
        doubtful = [f for f in self.findings if f.premise in ("contribution", "released numbers")]
        doubtful += [f for f in self.findings if "effective noise multiplier" in f.numbers]
        if not doubtful:
            return
        self.findings = [f for f in self.findings if f not in doubtful]
        if "contribution" in self.tested:
            self.tested.remove("contribution")
        self.untested["contribution"] = (
            "the accountant recorded further releases that the test cannot force: declare them by "
            f"value = watch.release(value). Without that, it would say: {doubtful[0].message}"
        )

    def _black_box(self, first: Trace) -> None:
        box = black_box_findings(
            self.runs, self.records, self.pool, self.seed, first, self.relation
        )
        self.findings += box.findings
        self.notes += box.notes
        self.best = box.canary
        if box.tested:
            self.tested.append("released numbers")
        else:
            self.untested["released numbers"] = box.reason
        for premise in ("contribution", "noise", "batches"):
            self.untested[premise] = "the function did not call watch with its optimizer"

    def _watched(self, first: Trace, seed: int) -> None:
        again = self.runs.run(self.records, seed, like=first)
        if not _coupled(first, again):
            self._uncoupled(first)
            return
        self.accounted = accounted_of(first)
        base = self._reference(first)
        self.base = base
        pool, traces = self._pool_runs(base)
        if len(traces) < 2:
            reason = (
                "the number of random draws depends on the record, so that runs cannot be coupled"
            )
            for premise in ("contribution", "noise", "batches", "released numbers"):
                self.untested[premise] = reason
            self._books(first, base)
            return
        noisy_weights = self._changes_outside(base, traces)
        if noisy_weights:
            return
        absent = self._absent(base)
        slices = base.slices
        found = contributions([t.gradients for t in traces], slices, base.epsilon_of_type, absent)
        pool, traces, found = self._ascended(base, pool, traces, found, absent)
        self.found = found
        self._choose_canaries(pool, found)
        self.tested.append("contribution")
        self._noise_and_batches(base)
        self._books(first, base)
        self._sizes(base, pool, traces, found)
        self._released(base, pool, found)
        self._number_of_records(base)

    def _time_left(self, share: float = 1.0) -> bool:
        return time.perf_counter() - self.started < share * self.seconds

    def _seed(self, number: int) -> int:
        return run_seed(self.seed, number, 5)

    # --- coupling ---

    def _uncoupled(self, first: Trace) -> None:
        reason = (
            "runs cannot be coupled: two runs with the same seed on the same records release "
            "different gradients, so some randomness is not controlled by the seed (os.urandom, "
            "secrets, secure_mode, numpy.random.default_rng() or torch.Generator without the seed)"
        )
        for premise in ("contribution", "noise", "batches", "released numbers"):
            self.untested[premise] = reason
        self.accounted = accounted_of(first)
        self._books(first, first)

    def _reference(self, first: Trace) -> Trace:
        """A complete run with a seed for which the exchanged record is in many tested steps."""
        steps = self.steps = self._number_of_steps(first)
        self.stop_after = None if steps >= len(first.steps) else steps
        if self.stop_after is not None:
            self.notes.append(
                f"only the first {steps} of {len(first.steps)} steps were tested, to save time"
            )
        best = -1
        for trial in range(_SEEDS_FOR_INCLUSION):
            seed = self._seed(trial)
            base = self._short_run(self.pool[0], seed)
            if base.error is not None:
                # The function does not accept the first canary, but its own records.
                self.pool = [p for p in self.pool if p.family == "own"] or self.pool[1:]
                base = self._short_run(self.pool[0], seed)
            hits = 0
            for other in (self.pool[1 % len(self.pool)], self.pool[-1]):
                trace = self._short_run(other, seed, base)
                if trace.steps and base.steps:
                    hits = max(hits, int(_moved(base, trace).sum()))
            if hits > best:
                best, self.base_seed = hits, seed
            if hits >= min(3, steps) or not self._time_left(0.2):
                break
        return self.runs.run(self._with(self.pool[0]), self.base_seed)

    def _number_of_steps(self, first: Trace) -> int:
        """The number of steps that memory and time allow to test."""
        steps = len(first.steps)
        row = 8.0 * max(sum(first.sizes), 1) * (len(self.pool) + 8)
        in_memory = max(int(_MAX_BYTES / row), 1)
        in_time = int(steps * self.seconds / max(first.seconds * _RUNS_EXPECTED, 1e-9))
        return min(steps, in_memory, max(in_time, _MIN_STEPS))

    def _short_run(self, canary: PoolRecord, seed: int, like: Trace | None = None) -> Trace:
        """A run that ends after the last step that is tested."""
        return self.runs.run(self._with(canary), seed, like=like, stop_after=self.stop_after)

    def _with(self, canary: PoolRecord, records: TrainingSet | None = None) -> TrainingSet:
        """The records with a canary in the place of the last of them."""
        return _replaced(self.records if records is None else records, canary)

    def _pool_runs(self, base: Trace) -> tuple[list[PoolRecord], list[Trace]]:
        pool: list[PoolRecord] = []
        traces: list[Trace] = []
        refused = diverged = 0
        for canary in self.pool:
            if len(traces) >= 12 and not self._time_left(0.45):
                break
            trace = self.runs.run(
                self._with(canary), self.base_seed, like=base, stop_after=self.steps
            )
            if trace.error is not None or not trace.steps:
                refused += 1
                continue
            if not np.isfinite(trace.gradients).all():
                refused += 1
                continue
            same = [
                a.generators == b.generators for a, b in zip(trace.steps, base.steps, strict=False)
            ]
            if not all(same[: self.steps]):
                diverged += 1
                continue
            if len(trace.steps) < min(self.steps, len(base.steps)):
                if not any(f.message.startswith("The number of steps") for f in self.findings):
                    self.findings.append(explain.steps_depend(len(base.steps), len(trace.steps)))
                continue
            pool.append(canary)
            traces.append(trace)
        if refused:
            self.notes.append(
                f"{refused} of {len(self.pool)} canaries raised an error or gave gradients that "
                "are not finite; they were left out"
            )
        if diverged:
            self.notes.append(
                f"for {diverged} of {len(self.pool)} canaries the number of steps or of random "
                "draws depends on the record; they were left out"
            )
        return pool, traces

    def _changes_outside(self, base: Trace, traces: Sequence[Trace]) -> bool:
        """Whether the weights carry noise that p.grad does not show."""
        seed = self._seed(100)
        other = self.runs.run(self.records, seed, like=base, stop_after=self.steps)
        same = self.runs.run(self.records, self.base_seed, like=base, stop_after=self.steps)
        pairs = list(zip(other.steps, same.steps, strict=False))[1:]
        if pairs and any(a.weights != b.weights for a, b in pairs):
            reason = (
                "the weights change by more than the watched optimizer's steps: they differ "
                "between seeds although all gradients were forced, so p.grad is not what is "
                "released"
            )
            for premise in ("contribution", "noise", "batches", "released numbers"):
                self.untested[premise] = reason
            return True
        reference = traces[0]
        for trace in traces[1:]:
            moved = [
                t
                for t, (a, b) in enumerate(zip(trace.steps, reference.steps, strict=False))
                if t and a.weights != b.weights
            ]
            if moved:
                self.findings.append(explain.weights_outside(moved[0]))
                break
        if any(trace.initial_digest != reference.initial_digest for trace in traces):
            self.findings.append(explain.initial_weights())
        return False

    def _absent(self, base: Trace) -> FloatArray | None:
        """The released gradients without the last record, where the draws stay the same."""
        sampled = self.accounted is not None and any(q < 1 for _, q in self.accounted.expanded)
        if self.relation == "replace-one" or len(self.records) < 2 or sampled:
            return None  # sampled batches of fewer records are other batches
        trace = self.runs.run(
            self.records.without_last(), self.base_seed, like=base, stop_after=self.steps
        )
        if trace.error is not None or len(trace.steps) < self.steps:
            return None
        pairs = zip(trace.steps, base.steps, strict=False)
        if any(a.generators != b.generators for a, b in pairs):
            return None
        self.absent_trace = trace
        # Where noise or gradients are scaled by the number of records, the noise does not cancel.
        return None if self._scaled_by_n(base) else trace.gradients

    def _scaled_by_n(self, base: Trace) -> bool:
        """Whether noise does not cancel between n and n - 1 records with equal draws."""
        seed = self._seed(101)
        data = [self.records, self.records.without_last()]
        pairs = [
            [
                self.runs.run(each, s, like=base, stop_after=self.steps)
                for s in (self.base_seed, seed)
            ]
            for each in data
        ]
        if any(t.error is not None or len(t.steps) < self.steps for pair in pairs for t in pair):
            return True
        spread = [pair[0].gradients - pair[1].gradients for pair in pairs]
        size = np.linalg.norm(spread[0], axis=1)
        gap = np.linalg.norm(spread[0] - spread[1], axis=1)
        slack = 1e-4 * size + 32 * base.epsilon_of_type * np.linalg.norm(
            pairs[0][0].gradients, axis=1
        )
        return bool(np.any(gap > slack))

    # --- contributions ---

    def _ascended(
        self,
        base: Trace,
        pool: list[PoolRecord],
        traces: list[Trace],
        found: Contributions,
        absent: FloatArray | None,
    ) -> tuple[list[PoolRecord], list[Trace], Contributions]:
        """Extends the pool by gradient ascent on records, where the model can be differentiated."""
        made = self._ascend(base, pool, found)
        added = False
        for canary in made:
            trace = self.runs.run(
                self._with(canary), self.base_seed, like=base, stop_after=self.steps
            )
            same = [
                a.generators == b.generators for a, b in zip(trace.steps, base.steps, strict=False)
            ]
            fits = trace.error is None and len(trace.steps) >= self.steps and all(same)
            if fits and np.isfinite(trace.gradients).all():
                pool, traces, added = [*pool, canary], [*traces, trace], True
        if added:
            gradients = [t.gradients for t in traces]
            found = contributions(gradients, base.slices, base.epsilon_of_type, absent)
        return pool, traces, found

    def _ascend(
        self, base: Trace, pool: Sequence[PoolRecord], found: Contributions
    ) -> list[PoolRecord]:
        """A record with a long gradient at the initial weights, and one with an opposite one."""
        if base.model is None or self.records.features.dtype.kind != "f" or not base.parameters:
            return []
        import torch

        from audit.own_training.white_box import cross_entropy, undisturbed

        loss = self.loss or cross_entropy
        with torch.no_grad():
            for i, parameter in enumerate(base.parameters):
                parameter.copy_(base.initial[f"optimizer {i}"])
        starts = [p for p in pool if p.family == "own"][:2] or list(pool[:1])
        made: list[PoolRecord] = []
        with undisturbed(base.model):
            for start in starts:
                longest = ascend(base.model, loss, start, base.parameters)
                if longest is None:
                    return made
                made.append(longest)
                direction = gradient_of(base.model, loss, longest, base.parameters)
                against = ascend(base.model, loss, start, base.parameters, direction)
                made += [against] if against is not None else []
        return made

    def _choose_canaries(self, pool: Sequence[PoolRecord], found: Contributions) -> None:
        step = int(np.argmax(found.largest))
        one, other = (int(i) for i in found.pairs[step])
        chosen = [pool[i] for i in (one, other) if i >= 0]
        # For an attack, the record that still contributes in later steps.
        self.best = pool[found.best_pair[0]]
        self.pair = chosen[0], chosen[-1]

    def _sizes(
        self,
        base: Trace,
        pool: Sequence[PoolRecord],
        traces: Sequence[Trace],
        found: Contributions,
    ) -> None:
        """Whether the noise is large enough for the contributions: the central comparison."""
        noise, accounted = self.noise, self.accounted
        steps = min(self.steps, len(found.largest))
        reach = found.largest[:steps].copy()
        by_tensor = found.by_tensor[:steps].copy()
        seen = reach > found.rounding[:steps]
        if noise is None or not seen.any():
            if not seen.any():
                self.untested["contribution"] = (
                    "no canary changed any released gradient: the record was in no batch of "
                    f"{_SEEDS_FOR_INCLUSION} runs, or the optimizer is not the one that learns"
                )
                self.tested.remove("contribution")
            return
        scales = noise.scales[:steps]
        if self.missing:
            return  # reported as missing noise
        usable = seen & (scales > 0) & ~np.asarray(np.all(noise.silent, axis=1))[:steps]
        if not usable.any():
            return
        ratios = np.where(usable, scales / np.where(usable, reach, 1.0), np.inf)
        weighted = self._by_unequal_noise(base, traces, noise, steps)
        if weighted is not None:
            # Tensors with noise of their own scale: distances in units of that noise.
            ratios = np.where(usable & (weighted > 0), 1.0 / np.maximum(weighted, 1e-300), np.inf)
        worst = int(np.argmin(ratios))
        self.measured["effective noise multiplier"] = float(ratios[worst])
        if accounted is None:
            self._compare_claim(noise, found, usable)
            return
        sigma = np.array([accounted.sigma(t) for t in range(steps)])
        self.measured["accounted noise multiplier"] = float(sigma[worst])
        tests: list[tuple[float, int, str]] = []
        if weighted is not None:
            worst_sigma = sigma * (1 - _SHORTFALL)
            if np.any(ratios < worst_sigma):
                # The scales are their upper confidence limits: beyond doubt.
                at = int(np.argmin(ratios / sigma))
                effective, assumed = float(ratios[at]), float(sigma[at])
                self._collect(
                    Evidence(1e-9, "size", {"step": at + 1}),
                    lambda e: explain.unequal_noise(at, effective, assumed, base.names, noise),
                )
            return
        width = int(noise.sizes.sum())
        self.measured["effective noise multiplier"] = float(np.median(ratios[usable]))
        short = usable & (ratios < sigma * (1 - _SHORTFALL))
        for t in np.flatnonzero(short):
            p_value = scale_p_value(
                float(noise.squares[t].sum()), noise.degrees[t] * width, sigma[t] * reach[t]
            )
            tests.append((p_value, int(t), "step"))
        # All steps together find a small shortfall that no single step shows.
        required = sigma * reach
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(usable, noise.squares[:steps].sum(1) / required**2, 0.0)
        degrees = float((noise.degrees[:steps] * width)[usable].sum())
        together = math.sqrt(each.sum() / max(degrees, 1.0))
        if together < 1 - _SHORTFALL:
            tests.append((scale_p_value(each.sum(), degrees, 1.0), worst, "all steps"))
        for index in range(len(noise.sizes)):
            own = by_tensor[:, index]
            use = seen & (own > found.rounding[:steps]) & ~noise.silent[:steps, index]
            if not use.any():
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                each = np.where(use, noise.squares[:steps, index] / (sigma * own) ** 2, 0.0)
            degrees = float((noise.degrees[:steps] * noise.sizes[index])[use].sum())
            if math.sqrt(each.sum() / max(degrees, 1.0)) < 1 - _SHORTFALL:
                p_value = scale_p_value(each.sum(), degrees, 1.0)
                tests.append((p_value, worst, base.names[index]))
        case = explain.SizeCase(
            base=base,
            found=found,
            noise=noise,
            sigma=sigma,
            reach=reach,
            by_tensor=by_tensor,
            usable=usable,
            n=len(self.records),
            pool=pool,
            rates=[accounted.rate(t) for t in range(steps)],
        )
        reported = False
        if tests:
            # Of several, the plainest that is beyond doubt.
            rank = {"step": 0, "all steps": 1}
            sure = [each for each in tests if each[0] < FAMILY_ERROR / 1000]
            if sure:
                p_value, at, kind = min(sure, key=lambda e: (rank.get(e[2], 2), e))
            else:
                p_value, at, kind = min(tests)
            p_value = min(1.0, p_value * (steps + 1 + len(noise.sizes)))
            evidence = Evidence(p_value, "size", {"step": at + 1, "kind": kind})
            self._collect(evidence, lambda e: explain.too_little_noise(case, at, kind))
            reported = p_value < FAMILY_ERROR
            self.short = reported
        # An Opacus optimizer states C and its divisor: noise and contribution are tested apart.
        if not reported:
            self._against_threshold(case, steps)

    def _by_unequal_noise(
        self, base: Trace, traces: Sequence[Trace], noise: Noise, steps: int
    ) -> FloatArray | None:
        """Contributions in units of each tensor's noise, where the tensors' scales differ.

        Returns:
            [T], by upper confidence limits of the scales; None where all scales are equal.
        """
        count = noise.degrees[:steps].sum() * noise.sizes
        loud = ~noise.silent[:steps].any(axis=1)
        if not loud.any() or noise.silent[:steps].any():
            return None
        relative = noise.scales_by_tensor[:steps] / noise.scales[:steps, None]
        level = np.sqrt(np.square(relative).mean(0))
        error = 6.0 / np.sqrt(2.0 * np.maximum(count, 1))
        if np.all(np.abs(level - 1) < 0.1 + error):
            return None
        upper = level * (1 + error)
        weights = np.repeat(1 / upper, noise.sizes)
        gradients = [t.gradients[:steps] * weights / noise.scales[:steps, None] for t in traces]
        return contributions(gradients, base.slices, base.epsilon_of_type).largest

    def _against_threshold(self, case: "explain.SizeCase", steps: int) -> None:
        base, noise = case.base, case.noise
        divisors = [step.divisor for step in base.steps[:steps]]
        clips = [step.clip for step in base.steps[:steps]]
        if not base.opacus or any(d is None for d in divisors) or any(c is None for c in clips):
            return
        unit = np.array(clips, dtype=float) / np.array(divisors, dtype=float)
        loud = ~noise.silent[:steps]
        required = case.sigma * unit
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(loud, noise.squares[:steps] / required[:, None] ** 2, 0.0)
        degrees = np.where(loud, noise.degrees[:steps, None] * noise.sizes[None, :], 0.0)
        whole = math.sqrt(each.sum() / max(degrees.sum(), 1.0))
        if degrees.sum() and whole < 1 - _SHORTFALL:
            p_value = scale_p_value(float(each.sum()), float(degrees.sum()), 1.0)
            evidence = Evidence(p_value, "scale", {"share": whole})
            self._collect(evidence, lambda e: explain.scale_below_threshold(case, whole, None))
            return
        for index, name in enumerate(base.names):
            total = degrees[:, index].sum()
            if not total:
                continue
            own = math.sqrt(each[:, index].sum() / total)
            if own < 1 - _SHORTFALL:
                p_value = scale_p_value(float(each[:, index].sum()), float(total), 1.0)
                p_value = min(1.0, p_value * len(base.names))
                evidence = Evidence(p_value, "scale", {"share": own, "tensor": name})
                self._collect(
                    evidence,
                    lambda e: explain.scale_below_threshold(
                        case, float(e.numbers["share"]), str(e.numbers["tensor"])
                    ),
                )

    def _compare_claim(self, noise: Noise, found: Contributions, usable: NDArray[np.bool_]) -> None:
        """Compares a claimed epsilon with what noise and contributions imply."""
        claim = self.claim if self.claim is not None else self.base.claimed
        if claim is None:
            self.untested["accountant"] = "no accountant and no claim was given"
            return
        if self.batches is None or self.stop_after is not None:
            return
        from audit import accounting

        steps = len(usable)
        counts = self.batches.counts[:, :steps]
        if np.isnan(counts).all():
            return
        rate = min(float(np.nanmean(counts)) / len(self.records), 1.0)
        reach = found.of_pair[:steps]
        if rate > 0.999:
            with np.errstate(divide="ignore", invalid="ignore"):
                mu = np.where(usable, reach / noise.scales[:steps], 0.0)
            base: Any = accounting.GaussianMechanism(float(np.sqrt(np.square(mu).sum())))
        else:
            worst = self.measured["effective noise multiplier"]
            base = accounting.DpSgd(worst, len(self.base.steps), rate)
        implied = float(base.epsilon(self.delta))
        self.measured["implied epsilon"] = implied
        self.tested.append("accountant")
        if implied > 1.03 * claim + 0.01:
            self.findings.append(explain.claim_too_small(claim, implied, self.delta, self.measured))

    # --- noise and batches ---

    def _noise_and_batches(self, base: Trace, tried: tuple[PoolRecord, ...] = ()) -> None:
        """Collects runs on equal records, and tests their noise and batches.

        Args:
            base: the reference run.
            tried: quiet records whose copies did not show the batch sizes.
        """
        self.noise: Noise | None = None
        self.batches: Batches | None = None
        self.missing = self.varying = self.random_gradients = False
        quiet = self._quiet_record(base, tried)
        if quiet is None:
            reason = "the function does not accept equal records"
            if tried:
                reason = "records contribute alike, so that batch sizes cannot be seen"
            self.untested["noise"] = self.untested["batches"] = reason
            return
        n, accounted = len(self.records), self.accounted
        self.quiet = quiet
        same = _all(self.records, quiet, n)
        other = _all(self.records, self.pair[0], n)
        mixed = _replaced(same, self.pair[0])
        a: list[FloatArray] = []
        b: list[FloatArray] = []
        one: list[FloatArray] = []
        full: bool | None = None
        rounding = self.found.rounding
        start, limit = time.perf_counter(), 0.8
        while len(a) < _MAX_RUNS:
            seed = self._seed(1000 + len(a))
            group = [same] if full else [same, other, mixed]
            traces = [self.runs.run(x, seed, like=base, stop_after=self.steps) for x in group]
            if any(t.error or len(t.steps) < self.steps for t in traces):
                counts_of_steps = {len(t.steps) for t in traces if not t.error}
                if len(counts_of_steps) > 1:  # a chain of neighbours leads from one to the other
                    self.findings.append(
                        explain.steps_depend(max(counts_of_steps), min(counts_of_steps))
                    )
                if len(a) < 2:
                    reason = traces[0].error or "the number of steps depends on the records"
                    self.untested["noise"] = self.untested["batches"] = reason
                    return
                break
            gradients = [t.gradients[: self.steps] for t in traces]
            a.append(gradients[0])
            if len(gradients) == 3:
                b.append(gradients[1])
                one.append(gradients[2])
            if len(a) == 4:
                found = batches_of(np.stack(a), np.stack(b), np.stack(one), rounding)
                known = found.counts[~np.isnan(found.counts)]
                everyone = accounted is None or all(
                    accounted.rate(t) >= 1 for t in range(self.steps)
                )
                full = bool(
                    everyone and known.size and np.all(known == n) and found.unit_spread < 1e-3
                )
                if self._hides_batches(found):
                    return self._noise_and_batches(base, (*tried, quiet))
            if len(a) >= _MIN_RUNS:
                count = len(a) * self.steps
                precise = 1 / math.sqrt(2.0 * count * sum(base.sizes)) < _RELATIVE_ERROR
                enough = full or count >= _MIN_BATCHES
                if precise and enough:
                    break
                if full and len(a) == _MIN_RUNS and np.ptp(np.stack(a), axis=0).max() == 0:
                    break  # no noise
                if len(a) * sum(base.sizes) * self.steps * 24 > 2 * _MAX_BYTES:
                    break
                if not self._time_left(limit):
                    break
            elif time.perf_counter() - start > self.seconds:
                break
        if len(a) < 3:
            self.untested["noise"] = self.untested["batches"] = "the runs take too long"
            return
        gradients_a = np.stack(a)
        finite = np.isfinite(gradients_a).all()
        if not finite:
            self.untested["noise"] = self.untested["batches"] = (
                "the released gradients are not finite where all records are equal"
            )
            return
        found = batches_of(gradients_a[: len(b)], np.stack(b), np.stack(one), rounding)
        if self._hides_batches(found):
            return self._noise_and_batches(base, (*tried, quiet))
        self.batches = found
        # Runs on equal records that differ in one are neighbours too: their differences count.
        gaps = np.linalg.norm(np.stack(one) - gradients_a[: len(one)], axis=2).max(axis=0) / 2
        for other_gaps in (gaps, self._pair_gaps(base, same, one)):
            steps = min(len(other_gaps), len(self.found.largest))
            top = self.found.largest[:steps]
            np.maximum(top, other_gaps[:steps], out=top)
        counts = None if full else found.proportional
        noise = estimate_noise(gradients_a, counts, base.slices, base.epsilon_of_type)
        self.noise = noise
        self.tested += ["noise", "batches"] if accounted is not None else ["noise"]
        self.measured["runs of the noise test"] = float(len(a))
        # What a one-sided test at the family error finds with 80 % probability.
        numbers = float((noise.degrees * noise.sizes.sum()).sum())
        if numbers > 0:
            self.measured["detectable shortfall of the noise"] = max(
                6.1 / math.sqrt(2 * numbers), _SHORTFALL
            )
        self._missing_noise(base, noise, gradients_a, b)
        self._noise_by_coordinate(base, gradients_a, np.stack(b))
        varying = found.unit_spread > 2e-3 and not full and bool(found.included.any())
        if varying:
            self.findings.append(explain.divided_by_batch(found))
        self.varying = varying
        # Dropout and augmentation make a record's own gradient random: then residuals hold more
        # than noise, and only what this cannot explain is reported.
        parallel = found.proportional is not None
        self.random_gradients = not (found.constant and parallel) and not varying
        least = MIN_CORRELATION
        if self.random_gradients:
            least = max(least, 1.3 * self._share_of_signal(noise))
            self.notes.append(
                "the gradient of a record is itself random (dropout, augmentation): the noise was "
                "tested less sharply"
            )
        if not noise.silent.all() and least < 1:
            tests = independence(noise, base.names, base.shapes, accounted is not None, least)
            for each in tests:
                self._collect(each, explain.dependent_noise)
            if not varying and not self.random_gradients:
                for each in shape_of_noise(noise):
                    self._collect(each, explain.shape_of_noise)
        if accounted is not None and not varying:
            rates = [accounted.rate(t) for t in range(self.steps)]
            self._batch_tests(base, found, n, rates)
            if any(q < 1 for q in rates):
                self._small_batches(base, rates)

    def _share_of_signal(self, noise: Noise) -> float:
        """The share of the residuals' variance that accounted noise does not explain, at most."""
        if self.accounted is None:
            return 1.0
        steps = min(self.steps, len(self.found.largest))
        sigma = np.array([self.accounted.sigma(t) for t in range(steps)])
        required = np.square(sigma * self.found.largest[:steps])[:, None]
        observed = np.square(noise.scales_by_tensor[:steps])
        with np.errstate(divide="ignore", invalid="ignore"):
            share = 1.0 - np.where(observed > 0, required / observed, 0.0)
        return float(np.clip(share, 0.0, 1.0).max(initial=0.0))

    def _pair_gaps(self, base: Trace, same: TrainingSet, one: Sequence[FloatArray]) -> FloatArray:
        """Half the distance of the two best canaries among equal records, by more seeds."""
        sampled = self.accounted is None or any(q < 1 for _, q in self.accounted.expanded)
        reach = np.zeros(self.steps)
        if not sampled:
            return reach
        data = _replaced(same, self.pair[1])
        for i, own in enumerate(one[:_MAX_PAIR_RUNS]):
            seed = self._seed(1000 + i)
            trace = self.runs.run(data, seed, like=base, stop_after=self.steps)
            if trace.error or len(trace.steps) < self.steps or not self._time_left(0.85):
                break
            gap = np.linalg.norm(trace.gradients[: self.steps] - own, axis=1) / 2
            reach = np.maximum(reach, np.nan_to_num(gap))
        return reach

    def _batch_tests(self, base: Trace, found: Batches, n: int, rates: list[float]) -> None:
        for each in poisson_tests(found.counts, found.included, n, rates):
            self._collect(each, lambda e: explain.wrong_batches(e, n))

    def _small_batches(self, base: Trace, rates: list[float]) -> None:
        """Empty batches: with few records nearly all batches of a Poisson sample are empty."""
        n = min(_SMALL_N, len(self.records))
        same = _all(self.records, self.quiet, n)
        other = _all(self.records, self.pair[0], n)
        mixed = _replaced(same, self.pair[0])
        gathered: list[list[FloatArray]] = [[], [], []]
        for i in range(16):
            seed = self._seed(3000 + i)
            for place, data in enumerate((same, other, mixed)):
                trace = self.runs.run(data, seed, like=base, stop_after=self.steps)
                if trace.error or len(trace.steps) < self.steps:
                    return
                gathered[place].append(trace.gradients[: self.steps])
            if not self._time_left(0.85):
                break
        if len(gathered[2]) < 4:
            return
        all_a, all_b, one_b = (np.stack(each) for each in gathered)
        found = batches_of(all_a, all_b, one_b, self.found.rounding)
        for each in poisson_tests(found.counts, found.included, n, rates):
            if each.kind in ("no empty batch", "mean of batches", "inclusion rate"):
                self._collect(each, lambda e: explain.wrong_batches(e, n))

    def _hides_batches(self, found: Batches) -> bool:
        """Whether sampled batches cannot all be empty, and no batch size is visible at some step.

        Then the quiet record and the canary contribute alike, and the quiet record's contribution
        to batches of different sizes would be taken for noise.
        """
        if found.proportional is None:
            return False
        unseen: NDArray[np.bool_] = np.all(found.proportional == 0, axis=0)
        if self.accounted is None:
            return bool(unseen.all())
        rates = np.array([self.accounted.rate(t) for t in range(len(unseen))])
        all_empty = np.where(rates < 1, 1 - rates, 1.0) ** (
            found.counts.shape[0] * len(self.records)
        )
        return bool(np.any(unseen & (all_empty < _NEVER)))

    def _quiet_record(self, base: Trace, tried: tuple[PoolRecord, ...]) -> PoolRecord | None:
        """A record of which n copies can be trained on, with a small gradient."""
        candidates = [p for p in self.pool if p.size == 0.0]
        candidates += [p for p in self.pool if p.family == "own"]
        candidates += [p for p in self.pool if math.isnan(p.size)]
        for each in candidates[:8]:
            if any(_same(each, other) for other in tried):
                continue
            data = _all(self.records, each, len(self.records))
            trace = self.runs.run(data, self._seed(200), like=base, stop_after=self.steps)
            if trace.error or len(trace.steps) < self.steps:
                continue
            if np.isfinite(trace.gradients).all() and not _same(each, self.pair[0]):
                return each
        return None

    def _missing_noise(
        self, base: Trace, noise: Noise, gradients: FloatArray, others: Sequence[FloatArray]
    ) -> None:
        """Tensors and steps whose release is the same for every seed."""
        silent = noise.silent
        reach, rounding = self.found.by_tensor, self.found.rounding
        moved = np.asarray(reach[: self.steps] > rounding[: self.steps, None])
        matters = np.any(moved, axis=0)
        accounted = self.accounted
        if accounted is not None and all(accounted.sigma(t) == 0 for t in range(self.steps)):
            return
        if not (silent & matters[None, :]).any():
            return
        before = len(self.findings)
        if silent[:, matters].all():
            self.missing = True
            fixed = False
            if others:
                agree = (gradients[0] == others[0]).all(axis=0)
                fixed = bool(agree.any() and np.any(gradients[0][:, agree] != 0))
            self.findings.append(explain.no_noise(len(gradients), fixed))
            return
        everywhere = [i for i in range(len(base.names)) if matters[i] and silent[:, i].all()]
        if everywhere:
            self.findings.append(explain.tensors_without_noise([base.names[i] for i in everywhere]))
        rest = [i for i in range(len(base.names)) if matters[i] and i not in everywhere]
        steps = [t + 1 for t in range(len(silent)) if rest and silent[t, rest].all()]
        if steps:
            self.findings.append(explain.steps_without_noise(steps, len(silent)))
        self.missing = len(self.findings) > before

    def _noise_by_coordinate(self, base: Trace, one: FloatArray, other: FloatArray) -> None:
        """Coordinates that are always zero on copies of one record and noisy on copies of another.

        A selection of coordinates after the noise is allowed. It depends on the noise, or it keeps
        large values only; then the zeros differ between runs, or no value that is kept has both
        signs.

        Args:
            base: the reference run.
            one: [R, T, D], released gradients of runs with other seeds on copies of one record.
            other: the same of another record; fewer runs are enough.
        """
        differ = np.zeros(one.shape[2], np.bool_)
        for t in range(one.shape[1]):
            zeros = [runs[:, t] == 0 for runs in (one, other)]
            fixed = all(np.all(each == each[0]) for each in zeros)
            noisy = all(np.any(np.ptp(np.sign(runs[:, t]), axis=0) == 2) for runs in (one, other))
            if fixed and noisy:
                differ |= zeros[0][0] != zeros[1][0]
        if differ.any() and not self.missing:
            parts = zip(base.names, base.slices, strict=True)
            names = [name for name, part in parts if differ[part].any()]
            self.findings.append(explain.coordinates_without_noise(names, int(differ.sum())))

    # --- books, released numbers, number of records ---

    def _books(self, first: Trace, base: Trace) -> None:
        accounted = self.accounted
        if accounted is None and first.history is not None and first.steps:
            self.tested.append("accountant")
            self.findings += explain.books(first, first.history)
            return
        if accounted is None:
            if first.claimed is None and self.claim is None:
                self.untested["accountant"] = "no accountant and no claim was given"
            return
        self.tested.append("accountant")
        self.findings += explain.books(first, accounted.history)
        if accounted.recorded > len(first.steps):
            self.notes.append(
                f"the accountant recorded {accounted.recorded} steps and the optimizer took "
                f"{len(first.steps)}: the claim is larger than it needs to be, or covers further "
                "releases, which were not tested"
            )

    def _released(self, base: Trace, pool: Sequence[PoolRecord], found: Contributions) -> None:
        """Every number at the end, of complete runs with forced outputs."""
        if not base.complete:
            return
        first = self.runs.run(self._with(self.pool[0]), self.base_seed, like=base)
        unstable = differences(base.released, first.released)
        differing: dict[str, float] = {}
        compared = 0
        wanted = [self.pair[0], self.pair[1]]
        wanted += [p for p in pool if p.family == "own"][:2]
        for canary in wanted:
            trace = self.runs.run(self._with(canary), self.base_seed, like=base)
            if trace.error or not trace.complete:
                continue
            compared += 1
            if len(trace.steps) != len(first.steps):
                self.findings.append(explain.steps_depend(len(first.steps), len(trace.steps)))
                return
            for name, gap in differences(first.released, trace.released).items():
                if name not in unstable:
                    differing[name] = max(differing.get(name, 0.0), gap)
            if compared >= 2 and not self._time_left():
                break
        if not compared:
            return
        self.tested.append("released numbers")
        if not differing:
            return
        if self.accounted is not None and self.accounted.has_further_releases(len(base.steps)):
            self.notes.append(
                f"{explain.listed(differing)} depend on the record; the accountant records further "
                "releases with other parameters, which may cover them: not tested"
            )
            return
        if not any(f.message.startswith("The weights") for f in self.findings):
            self.findings.append(explain.released_outside(differing))

    def _number_of_records(self, base: Trace) -> None:
        """Whether normaliser, noise, rate or number of steps depend on the number of records."""
        n = len(self.records)
        if self.noise is None or n < 4 or self.varying:
            self.untested["number of records"] = (
                "there are fewer than four records"
                if n < 4
                else "the noise was not measured, or a record's own gradient is random"
            )
            return
        measure: dict[int, SizeMeasurement | None] = {}

        def measured(m: int) -> "SizeMeasurement | None":
            if m not in measure:
                measure[m] = self._at_size(base, m)
            return measure[m]

        reference = measured(n)
        if reference is None or measured(n - 1) is None:
            self.untested["number of records"] = "the function raised an error for fewer records"
            return
        self.tested.append("number of records")
        low = max(n // 2, 2)
        for m in (n - 1, low):
            # One record less is always compared; half of them where time is left.
            if m == low and m != n - 1 and not self._time_left(0.95):
                break
            other = measured(m)
            if other is None:
                continue
            if reference.differs(other):
                if self.short and not reference.explained_by_size(other, n, m):
                    return  # contributions of other records change with n, too: said already
                # The neighbouring sizes between which it changes.
                high = n
                if m != n - 1:
                    while high - m > 1 and self._time_left():
                        middle = (high + m) // 2
                        between = measured(middle)
                        if between is None:
                            break
                        if reference.differs(between):
                            m = middle
                        else:
                            high = middle
                upper, lower = measured(high), measured(m)
                if upper is not None and lower is not None:
                    finding = explain.depends_on_n(
                        high, m, upper.numbers(), lower.numbers(), lower.ratio(upper)
                    )
                    self.measured["depends on n"] = 1.0
                    if self.relation == "add-remove":
                        self.findings.append(finding)
                    else:
                        self.notes.append(
                            f"{finding.message.split('. Under')[0]}: allowed under "
                            f"{self.relation}, where the number of records is public"
                        )
                return

    def _at_size(self, base: Trace, m: int) -> "SizeMeasurement | None":
        """What depends on the number of records, measured at m of them."""
        same = _all(self.records, self.quiet, m)
        mixed = _replaced(same, self.pair[0])
        units = np.full(self.steps, np.nan)
        complete: Trace | None = None
        for i in range(16):
            seed = self._seed(1000 + i)
            stop = None if i == 0 and self.stop_after is None else self.steps
            traces = [self.runs.run(x, seed, like=base, stop_after=stop) for x in (same, mixed)]
            if any(t.error or not t.steps for t in traces):
                return None
            complete = complete or traces[0]
            steps = min(len(traces[0].steps), len(traces[1].steps), self.steps)
            gap = traces[1].gradients[:steps] - traces[0].gradients[:steps]
            own = np.linalg.norm(gap, axis=1)
            if self.random_gradients:
                break  # contributions differ between runs anyway
            seen = own > self.found.rounding[:steps]
            units[:steps] = np.where(np.isnan(units[:steps]) & seen, own, units[:steps])
            if np.isfinite(units).sum() >= min(3, self.steps):
                break
        assert complete is not None
        divisor = complete.steps[0].divisor
        return SizeMeasurement(
            units,
            self.found.rounding,
            len(complete.steps) if complete.complete else None,
            complete.history,
            divisor,
        )

    # --- judgement ---

    def _collect(self, evidence: Evidence, words: Callable[[Evidence], Finding]) -> None:
        self.evidence.append((evidence, words))

    def _judge(self) -> None:
        """Keeps the statistical findings that survive the correction for many tests."""
        if not self.evidence:
            return
        from statsmodels.stats.multitest import multipletests

        p_values = [each.p_value for each, _ in self.evidence]
        rejected = multipletests(p_values, alpha=FAMILY_ERROR, method="holm")[0]
        kept: dict[str, Finding] = {}
        for index in np.argsort(p_values, kind="stable"):
            evidence, words = self.evidence[index]
            if rejected[index] and evidence.matters and evidence.kind not in kept:
                kept[evidence.kind] = words(evidence)
        for kind, others in _EXPLAINS.items():
            if kind in kept:
                for other in others:
                    kept.pop(other, None)
        self.findings += kept.values()


def _coupled(first: Trace, again: Trace) -> bool:
    """Whether two runs with one seed agree, up to the rounding of a parallel device."""
    if again.error is not None or len(first.steps) != len(again.steps):
        return False
    for a, b in zip(first.steps, again.steps, strict=True):
        gap = np.linalg.norm(np.nan_to_num(a.gradient - b.gradient))
        if gap > 1e-4 * np.linalg.norm(np.nan_to_num(a.gradient)):
            return False
    return True


def _moved(base: Trace, trace: Trace) -> NDArray[np.bool_]:
    """At which steps two coupled runs differ by more than rounding."""
    steps = min(len(base.steps), len(trace.steps))
    ours, theirs = base.gradients[:steps], trace.gradients[:steps]
    gap = np.linalg.norm(np.nan_to_num(ours - theirs), axis=1)
    size = np.linalg.norm(np.nan_to_num(ours), axis=1)
    moved: NDArray[np.bool_] = gap > np.maximum(8 * base.epsilon_of_type * size, 1e-12)
    return moved


def _replaced(records: TrainingSet, canary: PoolRecord) -> TrainingSet:
    features, labels = records.features.copy(), records.labels.copy()
    features[-1], labels[-1] = canary.features, canary.label
    return TrainingSet(features, labels)


def _all(records: TrainingSet, canary: PoolRecord, n: int) -> TrainingSet:
    """n copies of a record."""
    features = np.repeat(np.asarray(canary.features)[None], n, axis=0)
    labels = np.full(n, canary.label, dtype=records.labels.dtype)
    return TrainingSet(features.astype(records.features.dtype), labels)


def _same(one: PoolRecord, other: PoolRecord) -> bool:
    return bool(np.array_equal(one.features, other.features) and one.label == other.label)
