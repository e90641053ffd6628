"""The mechanism of one run of a study, for any noise and any candidate."""

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from audit.accounting import Candidates, DpSgd, Mechanism, Mixture, WorstOf
from audit.certificate.conditions import Private
from audit.errors import InvalidInput
from audit.protocols import Protocol
from audit.tuning.space import Space

_BUDGET = ("steps", "sampling_rate")
"""Hyperparameters that change the privacy cost of a run."""
_MAX_BUDGETS = 8
"""Different budgets that are accounted for; each takes seconds."""

_Chances = list[tuple[dict[str, Any], float]]


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
