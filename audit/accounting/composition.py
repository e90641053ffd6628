"""Composition: distribution of the total privacy loss of many runs, rounded up.

The privacy loss of a composition is a sum of independent losses. Each distribution is first moved
to a grid: a mass between two grid points is split between them such that its probabilities under P
and P' are both preserved. This spreads the likelihood ratio, so the pair on the grid dominates the
original one in every f-divergence and in both directions ("connect the dots", Doroshenko et al.
2022). The sum is computed by Fourier transforms.

The rounding error of a transform is relative to the largest mass, but a small delta depends on
masses of about 1e-30. So each distribution is tilted before the transform, p(l) e^(theta l), for
several theta. Each loss is then read from the tilt with the smallest Chernoff bound there, which
keeps its relative accuracy throughout the window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from audit.accounting.conversion import Unresolved
from audit.accounting.pairs import LossPair, PrivacyLoss, PrivacyLossPmf
from audit.numerics import FloatArray, dot, memoize, product_of_powers, safe_log

_TAIL = 1e-40  # mass outside the window, on either side; it counts as delta
_CELLS = 1 << 17
COARSE_CELLS = 1 << 16
"""Half as many cells; the difference shows the discretisation error."""
_TILTS = 8
# Standard deviations between two tilts: halfway, a mass is e^-10 of the largest one.
_TILT_WIDTH, _MAX_TILTS = 9.0, 256
# If a mass between two tilts is less than e^-18 of its Chernoff bounds, a tilt is added there.
_MAX_GAP = 18.0
_FEW = 2048
_TOGETHER = 16  # spectra in memory at the same time
# More than _MANY distributions are first composed in groups, each on a small grid of its own:
# their windows are narrow, and a transform takes a twentieth of the time.
_MANY, _GROUP, _GROUP_CELLS = 64, 16, 1 << 14
_GROUP_TILTS, _GROUP_FEW = 4, 512
# If one grid would be too fine for all runs, blocks of this many runs are composed first.
_REPEATED = 64
_WRAPPED = math.log(1e-8)
_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)
_LARGEST_TRANSFORM = 1 << 21
# If even the last stage needs a longer transform, its cells are up to this much wider.
_COARSEST = 8.0
# Values of a sum of discrete losses up to which it is computed exactly.
_MAX_EXACT = 1 << 11
# Losses are narrow if others have a range of more than _NARROW of their standard deviations. They
# get this many cells around each of the others, for at most _MOST_LOSSES losses in total.
_NARROW, _NARROW_CELLS, _MOST_LOSSES = 1 << 12, 1 << 9, 1 << 18
_ALMOST_ALL = 1.0 - 1e-15
_MAX_CELLS = (_LARGEST_TRANSFORM >> 1) - 16  # of one distribution


def compose(parts: Sequence[tuple[PrivacyLoss, int]], cells: int = _CELLS) -> LossPair:
    """A pair that dominates the composition of several pairs, each with its number of runs.

    Args:
        parts: the privacy loss of one run of each mechanism, and the number of its runs.
        cells: grid cells across the window; the error shrinks with its square.

    Returns:
        A pair on a uniform grid of losses; `mirrored` is the other direction. The mass outside the
        window (1e-40 on either side) and the rounding errors of the transforms are added.

    Example:
        >>> from audit.accounting import LaplaceMechanism
        >>> (laplace,) = LaplaceMechanism(10.0).pairs
        >>> round(float(compose([(laplace, 20)]).profile(1.0)), 4)
        0.0023
    """
    return _composed(tuple((loss, count) for loss, count in parts), cells)


@memoize(4)  # several bounds of one base compose the same parts
def _composed(losses: tuple[tuple[PrivacyLoss, int], ...], cells: int) -> LossPair:
    if any(loss.atoms(math.inf).p_only >= 1.0 for loss, _ in losses):  # one run reveals everything
        return LossPair(PrivacyLossPmf(np.array([0.0]), np.array([-np.inf]), 1.0, 1.0))
    exact = _of_few_losses(losses)
    if exact is None:
        exact = _beside_narrow_losses(losses)
    if exact is not None:
        return exact
    while len(losses) > _MANY:
        # The composition of pairs that dominate their runs dominates, so groups may be rounded one
        # by one.
        groups = [losses[start : start + _GROUP] for start in range(0, len(losses), _GROUP)]
        losses = tuple(
            (_on_one_grid(group, _GROUP_CELLS, _GROUP_TILTS, _GROUP_FEW), 1) for group in groups
        )
    return _on_one_grid(losses, cells, _TILTS, _FEW)


def _on_one_grid(
    losses: tuple[tuple[PrivacyLoss, int], ...],
    cells: int,
    most_tilts: int,
    few: int,
    coarser: float = 1.0,
) -> LossPair:
    """Composition on one grid; `few` is the number of losses that locate the window.

    The cells are `coarser` times as wide as usual.
    """
    coarse = [(_coarse(loss.atoms(math.inf), few), count) for loss, count in losses]
    if all(len(atoms.loss) == 1 for atoms, _ in coarse):
        return _of_single_losses([(loss.atoms(math.inf), count) for loss, count in losses])
    cumulants = _Cumulants(coarse)
    low, high = cumulants.window()
    runs = sum(count for _, count in losses)
    if np.ptp(cumulants.deviations_at(low, high)) > _TILT_WIDTH * _MAX_TILTS:
        raise _unresolved(f"{runs} runs that reveal the data set")
    # Each run adds a variance of at most spacing^2/6. The total must stay a small fraction.
    # The few losses above have a larger variance.
    variance = sum(count * loss.atoms(math.inf).deviation ** 2 for loss, count in losses)
    finest = math.sqrt(0.3 * min(variance, math.sqrt(variance)) / runs)
    # A rare large loss limits the number of cells. A coarser grid is equally safe.
    widest = max(float(np.ptp(atoms.loss)) for atoms, _ in coarse)
    usual = max(min((high - low) / cells, finest), widest / _MAX_CELLS, 1e-18)
    spacing = float(coarser * usual)
    on_grid = [(loss.atoms(spacing), count) for loss, count in losses]
    grids = [_Grid(*on_lattice(atoms, spacing), count) for atoms, count in on_grid]
    # On the grid, each run can reach one cell beyond its own loss.
    slack = 2 + min(runs, cells // 8)
    lowest = max(math.floor(low / spacing) - slack, sum(grid.start * grid.count for grid in grids))
    highest = min(math.ceil(high / spacing) + slack, sum(grid.end * grid.count for grid in grids))
    # The transform has twice the window's length, and a tilt must leave little mass to wrap.
    longest = max(len(grid.log_p) for grid in grids)
    size = int(fft.next_fast_len(2 * max(highest - lowest, longest) + 8, real=True))
    if size > _LARGEST_TRANSFORM:
        if any(count > _REPEATED for _, count in losses):
            return _on_one_grid(_in_stages(losses), cells, most_tilts, few)
        coarser *= 1.01 * size / _LARGEST_TRANSFORM
        if coarser > _COARSEST:
            raise _unresolved(f"{runs} runs on {size} points")
        return _on_one_grid(losses, cells, most_tilts, few, coarser)
    wrapped = (highest - size) * spacing, (lowest + size) * spacing
    tilts = cumulants.tilts(most_tilts, low, high, *wrapped)
    log_mass, p_outside, q_outside = _sum_of(grids, spacing, lowest, highest, size, tilts)
    p_only, q_only = (
        -math.expm1(sum(count * math.log1p(-mass) for mass, count in side))
        for side in (
            [(atoms.p_only, count) for atoms, count in on_grid],
            [(atoms.q_only, count) for atoms, count in on_grid],
        )
    )
    with np.errstate(over="ignore"):  # a sum that is not 1 is refused
        total = float(np.exp(log_mass).sum()) + p_only
    # Rounding only adds mass, up to 1e-5 for 10^8 steps.
    if not -1e-6 < total - 1.0 < 1e-4:
        raise _unresolved(f"masses that sum to {total:g}")
    loss = np.asarray(spacing * np.arange(lowest, highest + 1), dtype=np.float64)
    # Mass outside of the window counts as outputs that reveal the data set.
    return LossPair(PrivacyLossPmf(loss, log_mass, p_only + p_outside, q_only + q_outside))


def _in_stages(losses: tuple[tuple[PrivacyLoss, int], ...]) -> tuple[tuple[PrivacyLoss, int], ...]:
    """The same runs with most of them composed in blocks.

    A grid must resolve a single run. A block of runs has a wider loss, so a coarser grid is enough
    for the next stage.
    """
    staged: list[tuple[PrivacyLoss, int]] = []
    for loss, count in losses:
        blocks, remainder = divmod(count, _REPEATED)
        if blocks:
            staged.append((compose([(loss, blocks)]), _REPEATED))
        if remainder:
            staged.append((loss, remainder))
    return tuple(staged)


def _of_few_losses(losses: tuple[tuple[PrivacyLoss, int], ...]) -> LossPair | None:
    """Exact composition of discrete losses whose sum has few values; None if it has many.

    The tilts of a transform would lose digits if losses of hundreds are far apart.
    """
    if sum(count for _, count in losses) < 2:
        return None
    discrete = [
        (_with_mass(loss.pmf), count) for loss, count in losses if isinstance(loss, LossPair)
    ]
    if any(len(pmf.loss) == 0 for pmf, _ in discrete):
        return None
    values = [math.comb(count + len(pmf.loss) - 1, count) for pmf, count in discrete]
    if len(discrete) < len(losses) or math.prod(values) > _MAX_EXACT:
        return None
    total, log_mass = np.zeros(1), np.zeros(1)
    for pmf, count in discrete:
        sums, masses = _powers(pmf, count)
        total = np.add.outer(total, sums).ravel()
        log_mass = np.add.outer(log_mass, masses).ravel()
    loss, place = np.unique(total, return_inverse=True)
    top = np.full(len(loss), -1e300)
    np.maximum.at(top, place, log_mass)
    masses = np.zeros(len(loss))
    np.add.at(masses, place, np.exp(log_mass - top[place]))
    p_only, q_only = (
        -math.expm1(sum(count * math.log1p(-min(mass, 1.0)) for mass, count in side))
        for side in (
            [(pmf.p_only, count) for pmf, count in discrete],
            [(pmf.q_only, count) for pmf, count in discrete],
        )
    )
    return LossPair(PrivacyLossPmf(loss, np.log(masses) + top, p_only, q_only))


def _beside_narrow_losses(losses: tuple[tuple[PrivacyLoss, int], ...]) -> LossPair | None:
    """Composition of discrete losses, whose sum has few values, with losses in narrow ranges.

    One grid for all would be too coarse for the narrow losses, such as those of a Gaussian
    mechanism with a small mu: it would spread them over a whole cell. So these have a grid of their
    own around every value of the others. None if the losses are not of this kind.
    """
    few = tuple((loss, count) for loss, count in losses if isinstance(loss, LossPair))
    narrow = tuple((loss, count) for loss, count in losses if not isinstance(loss, LossPair))
    if not few or not narrow:
        return None
    variance = sum(count * loss.atoms(math.inf).deviation ** 2 for loss, count in narrow)
    widths = (count * float(np.ptp(loss.pmf.loss)) for loss, count in few if len(loss.pmf.loss))
    if not 0.0 < math.sqrt(variance) * _NARROW < sum(widths):
        return None
    discrete = few[0][0] if few[0][1] == 1 and len(few) == 1 else _of_few_losses(few)
    if discrete is None or not 0 < len(discrete.pmf.loss) * _NARROW_CELLS <= _MOST_LOSSES:
        return None
    few_atoms, narrow_atoms = discrete.pmf, _on_one_grid(narrow, _NARROW_CELLS, _TILTS, _FEW).pmf
    total = np.add.outer(few_atoms.loss, narrow_atoms.loss).ravel()
    order = np.argsort(total, kind="stable")
    log_mass = np.add.outer(few_atoms.log_mass, narrow_atoms.log_mass).ravel()
    p_only, q_only = (
        -math.expm1(math.log1p(-min(a, _ALMOST_ALL)) + math.log1p(-min(b, _ALMOST_ALL)))
        if max(a, b) < _ALMOST_ALL
        else 1.0
        for a, b in (
            (few_atoms.p_only, narrow_atoms.p_only),
            (few_atoms.q_only, narrow_atoms.q_only),
        )
    )
    return LossPair(PrivacyLossPmf(total[order], log_mass[order], p_only, q_only))


def _with_mass(pmf: PrivacyLossPmf) -> PrivacyLossPmf:
    """The distribution without losses of probability 0, whose log mass times 0 would be NaN."""
    possible = pmf.log_mass > -math.inf
    return replace(pmf, loss=pmf.loss[possible], log_mass=pmf.log_mass[possible])


def _powers(pmf: PrivacyLossPmf, count: int) -> tuple[FloatArray, FloatArray]:
    """Sums and log masses of every multiset of `count` losses."""
    numbers = np.zeros((1, 0), dtype=np.int64)
    for _ in pmf.loss[1:]:
        # Every number of further equal losses that leaves at least none for the others.
        unassigned = count - numbers.sum(axis=1)
        rows = np.repeat(np.arange(len(numbers)), unassigned + 1)
        more = np.concatenate([np.arange(n + 1) for n in unassigned])
        numbers = np.column_stack([numbers[rows], more])
    numbers = np.column_stack([numbers, count - numbers.sum(axis=1)])
    ways = special.gammaln(count + 1) - special.gammaln(numbers + 1).sum(axis=1)
    return numbers @ pmf.loss, ways + numbers @ pmf.log_mass


def _of_single_losses(pmfs: list[tuple[PrivacyLossPmf, int]]) -> LossPair:
    """Exact composition of distributions with one finite loss each."""
    loss, log_mass = (
        math.fsum(count * float(values[0]) for values, count in sides)
        for sides in (
            [(atoms.loss, count) for atoms, count in pmfs],
            [(atoms.log_mass, count) for atoms, count in pmfs],
        )
    )
    p_only, q_only = (-math.expm1(min(log, 0.0)) for log in (log_mass, log_mass - loss))
    return LossPair(PrivacyLossPmf(np.array([loss]), np.array([log_mass]), p_only, q_only))


@dataclass(frozen=True)
class _Grid:
    """A distribution on the grid: first index, log masses, and the number of runs."""

    start: int
    log_p: FloatArray
    count: int

    @property
    def end(self) -> int:
        return self.start + len(self.log_p) - 1

    @property
    def index(self) -> NDArray[np.int64]:
        return np.arange(self.start, self.end + 1)


def _unresolved(what: str) -> Unresolved:
    return Unresolved(f"a composition must have losses that a grid resolves, got {what}")


def _sum_of(
    grids: list[_Grid], spacing: float, first: int, last: int, size: int, tilts: list[float]
) -> tuple[FloatArray, float, float]:
    """Distribution of the sum in the window from `first` to `last`, by transforms of `size` points.

    Wrapped mass is only added. Each loss uses the tilt with the smallest Chernoff bound. Returns
    log masses [last - first + 1], and Chernoff bounds on the P- and P'-mass outside.
    """
    index = np.arange(first, last + 1)
    place = index % size
    runs = sum(grid.count for grid in grids)
    log_mass: FloatArray = np.full(len(index), -np.inf)
    smallest = np.full(len(index), np.inf)
    below_p = below_q = above = math.inf
    for tilt in tilts:
        spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
        log_total = magnitude = 0.0
        for chunk in range(0, len(grids), _TOGETHER):
            spectra = []
            for grid in grids[chunk : chunk + _TOGETHER]:
                tilted = grid.log_p + tilt * spacing * grid.index
                top = float(tilted.max())
                weights = np.exp(tilted - top)
                total = float(weights.sum())
                masses = np.zeros(size)
                masses[grid.index % size] = weights / total
                spectra.append((fft.rfft(masses), grid.count))
                log_run = top + math.log(total)
                log_total += grid.count * log_run
                typical = abs(tilt) * spacing * float(dot(weights, np.abs(grid.index))) / total
                magnitude += grid.count * (abs(log_run) + typical)
            spectrum *= product_of_powers(spectra)
        sums = fft.irfft(spectrum, size)
        # Negative masses show the size of the rounding error; twice the largest is added to all.
        rounding = 2.0 * max(-float(sums.min()), 1e-19)
        chernoff = log_total - tilt * spacing * index
        is_sharper = chernoff < smallest
        sums = np.maximum(sums[place[is_sharper]], 0.0) + rounding
        # With a large tilt, the rounding of the exponents matters; masses may only be too large.
        # So do the masses that each run's probabilities lose when they are divided by their sum.
        exponents = magnitude + runs + abs(tilt) * spacing * np.abs(index[is_sharper])
        log_mass[is_sharper] = np.log(sums) + chernoff[is_sharper] + _ROUNDING * exponents
        smallest[is_sharper] = chernoff[is_sharper]
        if tilt > 0:
            above = min(above, chernoff[-1])
        if tilt < 0:
            below_p = min(below_p, chernoff[0])
        if tilt < -1:
            below_q = min(below_q, chernoff[0] - spacing * first)
    # No mass is outside if the window ends where the grid ends.
    if last == sum(grid.end * grid.count for grid in grids):
        above = -math.inf
    if first == sum(grid.start * grid.count for grid in grids):
        below_p = below_q = -math.inf
    p_outside = math.exp(min(above, 0.0)) + math.exp(min(below_p, 0.0))
    return log_mass, p_outside, math.exp(min(below_q, 0.0))


def _coarse(atoms: PrivacyLossPmf, few: int) -> PrivacyLossPmf:
    """The distribution on few losses, which is enough to find the window and the tilts."""
    width = float(np.ptp(atoms.loss))
    if len(atoms.loss) <= few or width == 0.0:
        return atoms
    lowest, log_mass = on_lattice(atoms, width / few)
    loss = np.asarray(width / few * (lowest + np.arange(len(log_mass))), dtype=np.float64)
    is_possible = np.isfinite(log_mass)
    return PrivacyLossPmf(loss[is_possible], log_mass[is_possible], atoms.p_only, atoms.q_only)


class _Cumulants:
    """K(theta) = log E_P[e^(theta loss)] of the composition, and its derivative, on a grid."""

    def __init__(self, pmfs: Sequence[tuple[PrivacyLossPmf, int]]) -> None:
        # theta = 0 is P and -1 is P'. The scale further out is the loss's standard deviation.
        variance = sum(count * atoms.deviation**2 for atoms, count in pmfs)
        scale = max(math.sqrt(variance), 1e-12)
        # Large losses may be so rare that they hardly change the standard deviation.
        largest = max(max(float(np.abs(atoms.loss).max()) for atoms, _ in pmfs), 1e-12)
        outer = np.geomspace(
            min(1e-7 / scale, 1e-2 / largest), min(1e7 / scale, 1e13 / largest), 561
        )
        theta = np.concatenate([-1.0 - outer[::-1], np.linspace(-1.0, 0.0, 41), outer])
        self.theta = theta
        self.value, self.slope = np.zeros_like(theta), np.zeros_like(theta)
        self.ends = [0.0, 0.0]
        for atoms, count in pmfs:
            weights = np.multiply.outer(theta, atoms.loss)
            weights += atoms.log_mass
            top = weights.max(axis=1, keepdims=True)
            weights -= top
            np.exp(weights, out=weights)
            total = weights.sum(axis=1)
            self.value += count * (np.log(total) + top[:, 0])
            self.slope += count * dot(weights, atoms.loss) / total
            self.ends[0] += count * float(atoms.loss.min())
            self.ends[1] += count * float(atoms.loss.max())

    def window(self) -> tuple[float, float]:
        """Losses beyond which P (above) and P' (below) have less mass than _TAIL, by Chernoff."""
        spent = math.log(1.0 / _TAIL)
        above, below = self.theta > 0, self.theta < -1
        high = float(np.min((self.value[above] + spent) / self.theta[above]))
        low = float(np.max((self.value[below] + spent) / (1.0 + self.theta[below])))
        return max(low, self.ends[0]), min(high, self.ends[1])

    def tilts(
        self, count: int, low: float, high: float, wrap_low: float, wrap_high: float
    ) -> list[float]:
        """Exponents theta whose mean losses cover the window, evenly in z.

        The Chernoff exponent theta K' - K of a normal loss is z^2/2 at z standard deviations. There
        are at least `count` exponents, and more if they would be too far apart for the masses
        between them to stay accurate. Exponents that would wrap more than 1e-8 of the mass into the
        window are left out.
        """
        z = self._deviations
        lowest, highest = self.deviations_at(low, high)
        usable = (self._beyond(wrap_high, 1.0) < _WRAPPED) & (
            self._beyond(wrap_low, -1.0) < _WRAPPED
        )
        if usable.any():
            lowest, highest = max(lowest, z[usable].min()), min(highest, z[usable].max())
        count = max(count, math.ceil((highest - lowest) / _TILT_WIDTH))
        tilts: list[float] = np.interp(np.linspace(lowest, highest, count), z, self.theta).tolist()
        place = 0
        while place + 1 < len(tilts):
            between = self._between(*tilts[place : place + 2])
            if between is None:
                place += 1
            else:
                tilts.insert(place + 1, between)
        return tilts

    def _between(self, low: float, high: float) -> float | None:
        """An exponent between two others that are too far apart; None if they are not.

        The masses are the smallest share of their Chernoff bounds at the loss at which the bounds
        of both exponents are equal. Exponents that are even in z are too far apart if the loss has
        several modes, such as that of a Laplace mechanism and a small Gaussian one together.
        """
        if low == high:
            return None
        at_low, at_high = np.interp([low, high], self.theta, self.value)
        loss = (at_high - at_low) / (high - low)
        heights = self.value - self.theta * loss
        best = int(np.argmin(heights))
        apart = at_low - low * loss - heights[best] > _MAX_GAP
        return float(self.theta[best]) if apart and low < self.theta[best] < high else None

    @cached_property
    def _deviations(self) -> FloatArray:
        """z of the normal losses with the same Chernoff exponents, for each theta."""
        rate = np.maximum(self.theta * self.slope - self.value, 0.0)
        return np.maximum.accumulate(np.sign(self.theta) * np.sqrt(2.0 * rate))

    def deviations_at(self, *losses: float) -> FloatArray:
        """z of some losses."""
        return np.interp(losses, self.slope, self._deviations)

    def _beyond(self, loss: float, side: float) -> FloatArray:
        """Chernoff bounds [n] on the log mass beyond a loss, for each tilt theta."""
        height = self.value - self.theta * loss
        outward = side * self.theta
        # For each tilt, the smallest height among the tilts further out.
        order = np.argsort(-outward)
        smallest = np.minimum.accumulate(height[order])
        log_tails = np.empty_like(height)
        log_tails[order] = smallest
        return log_tails - height


def on_lattice(atoms: PrivacyLossPmf, spacing: float) -> tuple[int, FloatArray]:
    """First index on the grid, and the log masses from there on."""
    place = np.floor(atoms.loss / spacing)
    lowest = int(place.min())
    cell = (place - lowest).astype(np.int64)
    gap = np.clip(atoms.loss - spacing * place, 0.0, spacing)
    # Both points together keep the P-mass and the P'-mass. So P'/P is only spread, and no profile
    # falls.
    # a + b = p and a e^-l + b e^-(l+h) = p e^-loss.
    upper = -np.expm1(-gap) / -math.expm1(-spacing)
    size = int(cell.max()) + 2
    top = np.full(size, -1e300)
    np.maximum.at(top, cell, atoms.log_mass)
    np.maximum.at(top, cell + 1, atoms.log_mass)
    masses = np.zeros(size)
    np.add.at(masses, cell, np.exp(atoms.log_mass - top[cell]) * (1.0 - upper))
    np.add.at(masses, cell + 1, np.exp(atoms.log_mass - top[cell + 1]) * upper)
    return lowest, safe_log(masses) + top
