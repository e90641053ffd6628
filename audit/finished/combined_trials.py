"""The composition of many trials, and the few mechanisms that dominate them."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from audit.accounting import (
    Composition,
    DpSgd,
    GaussianMechanism,
    Mechanism,
    Mixture,
    Unresolved,
    ZeroConcentratedDp,
)
from audit.accounting.combinations import kinds
from audit.accounting.recorded import joined

_MAX_STEPS = 10**8  # that one `DpSgd` may have
_MAX_PHASES = 100
"""Kinds of sampled steps that are composed exactly; each takes about 10 ms."""
_MEANINGLESS = 200.0
"""Above this epsilon, different trials are not composed on a grid: it would take minutes."""
MAX_KINDS = 12
"""Different trials in one bound; each sampled one takes half a second and 25 MB."""


def composed_epsilon(runs: Sequence[Mechanism], delta: float) -> float:
    """Epsilon of all runs, by Renyi divergences if it or the losses are too large for a grid."""
    together = all_of(runs)
    if isinstance(together, Composition):
        epsilon = together.renyi_epsilon(delta)
        if _MEANINGLESS < epsilon < math.inf:
            return epsilon
    try:
        return together.epsilon(delta)
    except Unresolved:
        epsilon = together.renyi_epsilon(delta)
        if not math.isfinite(epsilon):
            raise
        return epsilon


def all_of(runs: Iterable[Mechanism]) -> Mechanism:
    """The composition of runs; equal runs are counted, and many similar ones are merged."""
    steps: dict[tuple[str, int], dict[tuple[float, float], int]] = {}
    mus: dict[float, int] = {}
    of_other_kinds: list[Mechanism] = []
    rho = 0.0
    several_runs = kinds(list(runs))
    full_batches = sum(run.gaussian_mu is not None for run, _ in several_runs)
    for run, times in several_runs:
        if isinstance(run, DpSgd) and (run.gaussian_mu is None or full_batches <= _MAX_PHASES):
            phases = steps.setdefault((run.neighbours, run.group_size), {})
            kind = run.noise_multiplier, run.sampling_rate
            phases[kind] = phases.get(kind, 0) + times * run.steps
        elif run.gaussian_mu is not None:
            mus[run.gaussian_mu] = mus.get(run.gaussian_mu, 0) + times
        elif isinstance(run, ZeroConcentratedDp):
            rho += times * run.rho
        else:
            of_other_kinds += [run] * times
    mechanisms: list[Mechanism] = []
    for protected, phases in steps.items():
        for (noise, rate), count in joined(phases, _MAX_PHASES).items():
            full_phases, remaining_steps = divmod(count, _MAX_STEPS)
            lengths = [_MAX_STEPS] * full_phases + ([remaining_steps] if remaining_steps else [])
            mechanisms += [DpSgd(noise, length, rate, *protected) for length in lengths]
    if mus:
        # Losses of Gaussian runs add up to that of one.
        mechanisms.append(
            GaussianMechanism(math.sqrt(math.fsum(n * mu * mu for mu, n in mus.items())))
        )
    if rho > 0.0:
        mechanisms.append(ZeroConcentratedDp(rho))
    mechanisms += of_other_kinds
    return mechanisms[0] if len(mechanisms) == 1 else Composition(tuple(mechanisms))


def dominating_few(runs: Iterable[Mechanism]) -> dict[Mechanism, Mechanism]:
    """Replaces each run by one that dominates it, so that few different runs remain.

    Runs are grouped by the logarithms of their parameters, in cells that grow until few remain. The
    run with the least noise, most steps and largest rate of a cell dominates all its runs.
    """
    candidates, merges = list(dict.fromkeys(runs)), []
    width = 1e-3
    while len(candidates) > MAX_KINDS and width < 1e3:
        cells: dict[Hashable, list[Mechanism]] = {}
        for run in candidates:
            kind, numbers = _parameters(run)
            cell = kind, tuple([math.floor(math.log(number) / width) for number in numbers])
            cells.setdefault(cell, []).append(run)
        merges.append(
            {
                run: dominating
                for runs in cells.values()
                for dominating in [_dominating(runs)]
                for run in runs
            }
        )
        candidates = list(dict.fromkeys(merges[-1].values()))
        width *= 1.5
    dominated_by = {run: run for run in candidates}
    for merged in reversed(merges):
        dominated_by = {run: dominated_by[merged_run] for run, merged_run in merged.items()}
    return dominated_by


def _parameters(run: Mechanism) -> tuple[Hashable, tuple[float, ...]]:
    """The kind of a run, and the numbers in which runs of a kind differ; all grow with its cost."""
    if run.gaussian_mu is not None:
        return "mu", (run.gaussian_mu,)
    if isinstance(run, DpSgd):
        kind = run.neighbours, run.group_size
        return kind, (1.0 / run.noise_multiplier, run.steps, run.sampling_rate)
    if isinstance(run, ZeroConcentratedDp):
        return "rho", (run.rho,)
    return run, ()  # no other run is known to dominate it


def _dominating(runs: list[Mechanism]) -> Mechanism:
    """A run of one kind that dominates runs of this kind."""
    representative = runs[0]
    kind, _ = _parameters(representative)
    largest = tuple(map(max, zip(*(_parameters(run)[1] for run in runs), strict=True)))
    if len(runs) == 1 or not largest:
        return representative
    if kind == "mu":
        return GaussianMechanism(*largest)
    if kind == "rho":
        return ZeroConcentratedDp(*largest)
    assert isinstance(representative, DpSgd)
    noise = min(run.noise_multiplier for run in runs if isinstance(run, DpSgd))
    return replace(
        representative, noise_multiplier=noise, steps=largest[1], sampling_rate=largest[2]
    )


def dominating_prior(prior: Mechanism) -> Mechanism:
    """A prior of few different mechanisms that dominates the given one."""
    if not isinstance(prior, Mixture):
        return prior
    alike = dominating_few(dict.fromkeys(prior.candidates))
    chances: dict[Mechanism, float] = {}
    for mechanism, chance in zip(prior.candidates, prior.chances, strict=True):
        chances[alike[mechanism]] = chances.get(alike[mechanism], 0.0) + chance
    if len(chances) == len(prior.candidates):
        return prior
    return Mixture(tuple(chances), tuple(min(chance, 1.0) for chance in chances.values()))
