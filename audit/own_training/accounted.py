"""The history of a training function's accountant, step by step."""

from dataclasses import dataclass

from audit.own_training.coupled_runs import History, Trace


@dataclass(frozen=True)
class Accounted:
    """What the accountant recorded, step by step."""

    history: History
    expanded: tuple[tuple[float, float], ...]
    seen: int

    @property
    def recorded(self) -> int:
        """Number of steps in the accountant."""
        return sum(steps for _, _, steps in self.history)

    def sigma(self, step: int) -> float:
        """The noise multiplier that was accounted for a step."""
        if self.recorded == self.seen:
            return self.expanded[min(step, len(self.expanded) - 1)][0]
        return min(s for s, _ in self.expanded)

    def rate(self, step: int) -> float:
        """The sampling rate that was accounted for a step."""
        if self.recorded == self.seen:
            return self.expanded[min(step, len(self.expanded) - 1)][1]
        return max(q for _, q in self.expanded)

    def has_further_releases(self, steps: int) -> bool:
        """Whether more was recorded than the optimizer's steps, with other parameters."""
        return self.recorded > steps and len({(s, q) for s, q, _ in self.history}) > 1


def accounted_of(trace: Trace) -> Accounted | None:
    """The accountant's history of a run, or None if it recorded nothing."""
    if not trace.history:
        return None
    expanded = [
        (sigma, rate) for sigma, rate, steps in trace.history for _ in range(min(steps, 10**6))
    ]
    return Accounted(trace.history, tuple(expanded), len(trace.steps)) if expanded else None
