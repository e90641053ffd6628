"""The plan of a study: the mechanism of each run, and every random draw from one secret key."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from audit.accounting import Candidates, DpSgd, Mechanism, Mixture, WorstOf, scale_noise
from audit.certificate.conditions import Private
from audit.checks import kind_of
from audit.errors import InvalidInput
from audit.protocols import Protocol
from audit.protocols.base import Point
from audit.tuning.checkpoints import ResumeRules
from audit.tuning.journal import Record
from audit.tuning.outcome import Part, Trial
from audit.tuning.secret_draws import Draws, secret_integer
from audit.tuning.space import Space

_BUDGET = ("steps", "sampling_rate")
"""Hyperparameters that change the privacy cost of a run."""
_NO_BUDGETS = ("noise_multiplier", "target_epsilon", "batch_size", "epochs")
"""Hyperparameters that would change it, and that no study accounts for."""
_MAX_BUDGETS = 8
"""Different budgets that are accounted for; each takes seconds."""
_Chances = list[tuple[dict[str, Any], float]]
# Every draw has its own stream for every run.
_RUNS, _CANDIDATE, _SEED, _SCORE, _STOP, _PART, _TIE = range(7)
FINAL = 1 << 62
"""Index of the final run of protocols that have one; larger than all other indices."""


@dataclass(frozen=True)
class Training:
    """How one run trains: the mechanism `base`, or DP-SGD whose noise is calibrated later."""

    steps: int | None
    sampling_rate: float
    neighbours: str
    base: Mechanism | None
    group_size: int = 1
    redrawn_steps: int = 0

    def run(self, noise_multiplier: float, candidate: Mapping[str, Any]) -> Mechanism:
        """The mechanism of a run with a candidate."""
        if self.base is not None:
            return self.base
        steps = candidate.get("steps", self.steps)
        rate = candidate.get("sampling_rate", self.sampling_rate)
        return DpSgd(noise_multiplier, steps, rate, self.neighbours, self.group_size)

    def budgets(self, space: Space) -> _Chances:
        """The different budgets of the candidates, and the probability of each.

        There are at most eight: more are grouped, and each is replaced by the largest budget of its
        group. More steps or a higher sampling rate never cost less, so the cost is an upper bound.
        """
        if self.base is None or isinstance(self.base, DpSgd):
            _refuse_other_budgets(space)
        budgets = _named(space)
        if self.base is not None and any(budgets):
            raise InvalidInput(f"space must not name {', '.join(_BUDGET)} if base is given")
        named = {repr(budget): budget for budget in budgets}
        counts = Counter(map(repr, budgets))
        return self._grouped([(named[text], n / len(budgets)) for text, n in counts.items()])

    def _grouped(self, chances: _Chances) -> _Chances:
        if len(chances) <= _MAX_BUDGETS:
            return chances
        for budget, _ in chances:
            self.run(1.0, budget)  # raises if its values are no budget
        budget_of_study = {"steps": self.steps, "sampling_rate": self.sampling_rate}
        full = [({**budget_of_study, **budget}, chance) for budget, chance in chances]
        full.sort(
            key=lambda named: float(named[0]["steps"]) * float(named[0]["sampling_rate"]) ** 2
        )
        groups: dict[int, _Chances] = {}
        before = 0.0
        for candidate in full:
            place = min(int(before * _MAX_BUDGETS + 1e-9), _MAX_BUDGETS - 1)
            groups.setdefault(place, []).append(candidate)
            before += candidate[1]
        largest: dict[tuple[Any, ...], float] = {}
        for group in groups.values():
            top = tuple(max(candidate[name] for candidate, _ in group) for name in budget_of_study)
            largest[top] = largest.get(top, 0.0) + sum(chance for _, chance in group)
        return [
            (dict(zip(budget_of_study, top, strict=True)), chance)
            for top, chance in largest.items()
        ]

    def _counted(self, run: Mechanism) -> Mechanism:
        """A run with the steps that it may repeat with other noise after an interruption."""
        if not self.redrawn_steps or not isinstance(run, DpSgd):
            return run
        return replace(run, steps=run.steps + self.redrawn_steps)

    def mechanism(
        self,
        noise_multiplier: float,
        budgets: _Chances,
        protocol: Protocol,
        score: Private | None = None,
    ) -> Mechanism:
        """One run with a candidate that the protocol chooses, and with the noise of its score."""
        runs = [self._counted(self.run(noise_multiplier, budget)) for budget, _ in budgets]
        if score is not None:
            runs = [score.with_training(run) for run in runs]
        if len(runs) == 1:
            return runs[0]
        chances = tuple(chance for _, chance in budgets)
        if protocol.list_length is not None:
            counts = (round(chance * protocol.list_length) for chance in chances)
            return Candidates(tuple(itertools.chain(*map(itertools.repeat, runs, counts))))
        if protocol.candidates_are == "chosen":
            return WorstOf(tuple(runs))
        return Mixture(tuple(runs), chances)


def _refuse_other_budgets(space: Space) -> None:
    candidates = map(space.at, space.points()) if "" in space.dimensions else [space.dimensions]
    names = {name for candidate in candidates for name in candidate}
    refused = [name for name in _NO_BUDGETS if name in names]
    if refused:
        raise InvalidInput(
            f"space must state budgets as lists named steps and sampling_rate, got {refused[0]!r}: "
            "the study computes the noise; rename the hyperparameter if no run's noise, batches or "
            "length follow from it"
        )


def _named(space: Space) -> list[dict[str, Any]]:
    """The budget of every candidate, or of every combination of the values that define it."""
    if "" in space.dimensions:
        candidates = map(space.at, space.points())
        return [
            {name: candidate[name] for name in _BUDGET if name in candidate}
            for candidate in candidates
        ]
    named = {name: space.dimensions[name] for name in _BUDGET if name in space.dimensions}
    if not named:
        return [{}]
    named_space = Space(named)
    if named_space.size is None:
        raise InvalidInput(f"space must name budgets as lists of values, got {named_space.prior}")
    return [named_space.at(point) for point in named_space.points()]


@dataclass(frozen=True)
class Plan:
    """The choices of a study before its first run; `base_of` maps candidates to mechanisms."""

    protocol: Protocol
    space: Space
    base_of: Callable[[Mapping[str, Any]], Mechanism]
    private: Private | None = None
    expected_batch_size: float | None = None
    device: str = "cpu"
    resume_rules: ResumeRules = field(default_factory=ResumeRules)

    def shortened(self, steps: int) -> "Plan":
        """The plan of a rehearsal whose runs have at most this many steps."""

        def base_of(candidate: Mapping[str, Any]) -> Mechanism:
            base = self.base_of(candidate)
            if not isinstance(base, DpSgd):
                raise InvalidInput(
                    f"steps must not be given if the base is not DP-SGD, got {kind_of(base)}"
                )
            return replace(base, steps=min(steps, base.steps))

        return replace(self, base_of=base_of)

    def runs(self, key: int) -> Sequence[int] | None:
        """The indices of all runs; None if the outputs of the runs decide how many there are."""
        return self.protocol.draw_runs(Draws(key, _RUNS))

    def point(self, key: int, index: int, before: Sequence[Record] = ()) -> Point:
        """The candidate of a run, as a point of the space."""
        rng = Draws(key, _CANDIDATE, index)
        return self.protocol.next_candidate(self.space, rng, index, before)

    def trial(self, key: int, index: int, point: Point) -> Trial:
        """The trial that `train` is called with."""
        candidate = self.space.at(point)
        seed = secret_integer(64, key, _SEED, index) >> 1
        record_subset = None
        if self.protocol.part_of_records is not None:
            rate, final = self.protocol.part_of_records
            coins = secret_integer(256, key, _PART)
            record_subset = Part(coins, rate, final if index == FINAL else None)
        base = scale_noise(self.base_of(candidate), self.protocol.noise_factor(index))
        constant = self.expected_batch_size
        trial = Trial(candidate, base, seed, record_subset, constant, device=self.device)
        trial.checkpoints.rules = self.resume_rules
        return trial

    def noise(self, key: int, index: int) -> float:
        """The noise that is added to the score of a run."""
        if self.private is None:
            return 0.0
        std = self.private.noise_std * self.protocol.noise_factor(index)
        return float(Draws(key, _SCORE, index).normal(0.0, std))

    def stops(self, key: int, index: int) -> bool:
        """Whether the tuning ends without a result after this rejected run."""
        return self.protocol.gives_up(index, Draws(key, _STOP, index))

    def rank(self, key: int, record: Record) -> tuple[float, float, int]:
        """Sort key of a run that can win.

        Of equal scores the first run wins, in whatever order the runs end. In an adaptive search,
        whose bounds do not cover ties broken by order, the key decides at random.
        """
        assert record.score is not None
        is_adaptive = self.protocol.is_adaptive
        tie = float(Draws(key, _TIE, record.index).random()) if is_adaptive else 0.0
        return record.score, tie, -record.index
