"""A study that its owner stops before its end: the released run, and its cost.

The owner may stop at a time that depends neither on the records nor on the results of the runs.
The runs may take different times for different candidates. Anyone who knows of the stop also knows
the number of runs, so a random K hides nothing. Given the run times, the runs are independent but
not identically distributed. Given both, the release is the best of n independent runs of known
mechanisms, each dominated by the base: a grid of n candidates (docs/theory.md, "Stopped studies").
"""

import dataclasses
from dataclasses import dataclass

from audit import checks, protocols
from audit.accounting import Composition, Mechanism, Mixture, WorstOf
from audit.errors import InvalidInput
from audit.numerics import format_exact, format_rounded
from audit.protocols import Protocol
from audit.tuning.outcome import Best
from audit.upper_bounds import UpperBound, costs_of


@dataclass(frozen=True)
class Stopped:
    """Result of a study that was stopped before its end.

    Attributes:
        best: the best of the finished runs.
        runs: number of runs that had begun or had been handed to a worker. It is no longer secret.
        cost: upper bound on the cost of the release.
        delta: delta of the release.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> base, protocol = GaussianMechanism(0.5), protocols.parse_protocol("tnb:0,0.1")
        >>> stopped = Stopped(Best(), 4, stopped_cost(base, protocol, 4, 1e-5), 1e-5)
        >>> stopped.epsilon > costs_of(base, protocol, 1e-5).smallest.epsilon
        True
    """

    best: Best
    runs: int
    cost: UpperBound
    delta: float

    @property
    def epsilon(self) -> float:
        """Epsilon of the release, at `delta`."""
        return self.cost.epsilon

    @property
    def statement(self) -> str:
        """The guarantee in one sentence, with its condition."""
        epsilon = format_rounded(self.epsilon, up=True, digits=4)
        return (
            f"The study was stopped after {self.runs} runs had begun, and the best of the finished "
            f"runs is ({epsilon}, {format_exact(self.delta)})-differentially private, if the time "
            "of the stop and the run times depend neither on private records nor on results of the "
            "runs."
        )


def stopped_cost(base: Mechanism, protocol: Protocol, runs: int, delta: float) -> UpperBound:
    """Cost of the best of the finished runs of a study that was stopped.

    Args:
        base: the mechanism of one run.
        protocol: the protocol of the study.
        runs: number of runs that had begun, >= 1.
        delta: delta of the release.

    Returns:
        For a random search, the cost of a grid of `runs` candidates. For a grid, that of the whole
        list, each candidate trained: a candidate without a finished run is one whose mechanism
        outputs nothing. For an adaptive search and for releases of several runs, the composition of
        all runs. Each uses the worst member of every mixture in the base, because the time of a run
        may reveal which member it was.

    Raises:
        InvalidInput: nothing may be released from a stopped study of this protocol, or the base
            contains mechanisms that cannot be replaced.

    Example:
        >>> from audit.accounting import GaussianMechanism
        >>> from audit.protocols import parse_protocol
        >>> cost = stopped_cost(GaussianMechanism(0.25), parse_protocol("tnb:0,0.02"), 10, 1e-5)
        >>> round(cost.epsilon, 2)
        2.76
    """
    worst = _worst_member(base)
    if isinstance(protocol, protocols.Grid):
        return costs_of(worst, protocols.Grid(protocol.candidates), delta).smallest
    if protocol.may_never_end or protocol.trains_on_subset or protocol.ends_with_accepted:
        raise InvalidInput(
            "protocol must be a random search, a grid or an adaptive search, so that a stopped "
            f"study may release its best run, got {protocol.spec}"
        )
    if isinstance(protocol, protocols.RandomSearch):
        return costs_of(worst, protocols.Grid(runs), delta).smallest
    return costs_of(Composition((worst,) * runs), protocols.Grid(1), delta).smallest


def _worst_member(base: Mechanism) -> Mechanism:
    """The mechanism with the worst member in place of every mixture, at any depth.

    The time of a run may reveal which member of a mixture it was. Given the members, every part is
    dominated by its worst one, and a composition of dominated parts is dominated by the composition
    of the worst ones (docs/theory.md, "Stopped studies").
    """
    if isinstance(base, Mixture):
        return WorstOf(tuple(map(_worst_member, base.candidates)))
    is_dataclass: bool = dataclasses.is_dataclass(base)
    if not is_dataclass:
        if any(isinstance(value, Mechanism) for value in vars(base).values()):
            raise InvalidInput(
                "base must be a dataclass if it contains mechanisms, so that a stopped study can "
                f"replace mixtures among them, got {checks.kind_of(base)}"
            )
        return base
    changes: dict[str, object] = {}
    for field in dataclasses.fields(base):  # type: ignore[arg-type]
        value = getattr(base, field.name)
        if isinstance(value, Mechanism):
            changes[field.name] = _worst_member(value)
        elif isinstance(value, tuple) and any(isinstance(member, Mechanism) for member in value):
            changes[field.name] = tuple(
                _worst_member(member) if isinstance(member, Mechanism) else member
                for member in value
            )
    return dataclasses.replace(base, **changes) if changes else base  # type: ignore[type-var]
