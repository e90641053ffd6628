"""Composition: the law of the total privacy loss of many runs, rounded to the safe side.

The loss of a composition is the sum of independent losses. Each law is first moved to a grid: a
mass whose loss lies between two grid points is split between them so that its P- and its
P'-probability both stay. That is a spread of the likelihood ratio, so the pair on the grid
dominates the true one, in every f-divergence and in both directions (the "connect the dots" of
Doroshenko et al. 2022). Sums are convolutions by Fourier transform.

A transform's rounding is relative to the largest mass, while a small delta is decided by masses of
1e-30. So the law is tilted, p(l) e^(theta l), before it is transformed, for several theta; each
loss is read off where its Chernoff bound is smallest, and keeps its digits throughout the window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from audit.accounting.conversion import Unresolved
from audit.accounting.pairs import LossPair, PrivacyLoss, PrivacyLossPmf
from audit.arrays import FloatArray
from audit.numerics import memoize, product_of_powers

_TAIL = 1e-40  # mass left outside the window, on either side: counted as a full leak
_CELLS = 1 << 17
COARSE_CELLS = 1 << 16
"""Half as many: what they change is what the grid is worth."""
_TILTS = 8
# Standard deviations between two tilts: half as far out a mass is e^-10 of the largest.
_TILT_WIDTH, _MAX_TILTS = 9.0, 256
_FEW = 2048
_TOGETHER = 16  # spectra that are held at once
# More laws than so many are composed in groups of a few first, each on a small grid of its own:
# there its window is narrow, and a transform costs a twentieth.
_MANY, _GROUP, _GROUP_CELLS = 64, 16, 1 << 14
_GROUP_TILTS, _GROUP_FEW = 4, 512
# Where one grid is too fine for all runs, fewer are composed first, and so many times that next.
_REPEATED = 64
_WRAPPED = math.log(1e-8)
_LARGEST_TRANSFORM = 1 << 21
_MAX_CELLS = (_LARGEST_TRANSFORM >> 1) - 16  # of one law


def compose(parts: Sequence[tuple[PrivacyLoss, int]], cells: int = _CELLS) -> LossPair:
    """The pair of (P1^n1 x P2^n2 x ..., P1'^n1 x ...), dominated by the result.

    Args:
        parts: laws of one run and how often each is run.
        cells: grid cells across the window; the error shrinks with its square.

    Returns:
        A pair on a uniform grid of losses; `mirrored` is the other direction. What is outside the
        window (1e-40 on either side) and what the transforms round is added to its masses.

    Example:
        >>> from audit.accounting import LaplaceMechanism
        >>> (laplace,) = LaplaceMechanism(10.0).pairs
        >>> round(float(compose([(laplace, 20)]).profile(1.0)), 4)
        0.0023
    """
    return _composed(tuple((law, count) for law, count in parts), cells)


@memoize(4)  # bounds of one base ask for the same; equal mechanisms do, too
def _composed(parts: tuple[tuple[PrivacyLoss, int], ...], cells: int) -> LossPair:
    while len(parts) > _MANY:
        groups = [parts[first : first + _GROUP] for first in range(0, len(parts), _GROUP)]
        parts = tuple(
            (_on_one_grid(group, _GROUP_CELLS, _GROUP_TILTS, _GROUP_FEW), 1) for group in groups
        )
    return _on_one_grid(parts, cells, _TILTS, _FEW)


def _on_one_grid(
    parts: tuple[tuple[PrivacyLoss, int], ...], cells: int, most_tilts: int, few: int
) -> LossPair:
    """The same on one grid, by so many tilts, its window found from so few losses of each law."""
    coarse = [(_coarse(law.atoms(math.inf), few), count) for law, count in parts]
    if all(len(atoms.loss) == 1 for atoms, _ in coarse):
        return _of_single_losses([(law.atoms(math.inf), count) for law, count in parts])
    cumulants = _Cumulants(coarse)
    low, high = cumulants.window()
    runs = sum(count for _, count in parts)
    # Every run spreads its loss by spacing^2/6 at most; together that must stay a small part.
    finest = math.sqrt(0.3 * cumulants.deviation / runs)
    # Where nearly nothing ever happens that would be too fine for what does: coarser is as safe.
    widest = max(float(np.ptp(atoms.loss)) for atoms, _ in coarse)
    spacing = float(max(min((high - low) / cells, finest), widest / _MAX_CELLS, 1e-18))
    laws = [(law.atoms(spacing), count) for law, count in parts]
    grids = [_Grid(*_on_grid(atoms, spacing), count) for atoms, count in laws]
    # On the grid every run can reach a cell beyond its own loss.
    slack = 2 + min(runs, cells // 8)
    first = max(math.floor(low / spacing) - slack, sum(one.start * one.count for one in grids))
    last = min(math.ceil(high / spacing) + slack, sum(one.end * one.count for one in grids))
    # Twice the window, and a tilt must leave little to wrap around it.
    longest = max(len(one.log_p) for one in grids)
    size = int(fft.next_fast_len(2 * max(last - first, longest) + 8, real=True))
    if size > _LARGEST_TRANSFORM:
        if not any(count >= _REPEATED for _, count in parts):
            raise _unresolved(f"{runs} runs on {size} points")
        return _on_one_grid(_in_stages(parts), cells, most_tilts, few)
    wrapped = (last - size) * spacing, (first + size) * spacing
    tilts = cumulants.tilts(most_tilts, low, high, *wrapped)
    log_mass, p_outside, q_outside = _sum_of(grids, spacing, first, last, size, tilts)
    p_only, q_only = (
        -math.expm1(sum(count * math.log1p(-part) for part, count in side))
        for side in (
            [(atoms.p_only, count) for atoms, count in laws],
            [(atoms.q_only, count) for atoms, count in laws],
        )
    )
    total = float(np.exp(log_mass).sum()) + p_only
    if not abs(total - 1.0) < 1e-6:
        raise _unresolved(f"masses that sum to {total:g}")
    loss = np.asarray(spacing * np.arange(first, last + 1), dtype=np.float64)
    return LossPair(PrivacyLossPmf(loss, log_mass, p_only + p_outside, q_only + q_outside))


def _in_stages(parts: tuple[tuple[PrivacyLoss, int], ...]) -> tuple[tuple[PrivacyLoss, int], ...]:
    """The same runs, most of them composed already, each stage on a coarser grid than the last.

    One grid for all runs must be fine enough for a single one. A composition of some of them is
    wider, so a coarser grid resolves the next stage.
    """
    found: list[tuple[PrivacyLoss, int]] = []
    for law, count in parts:
        together, rest = divmod(count, _REPEATED)
        if together:
            found.append((compose([(law, together)]), _REPEATED))
        if rest:
            found.append((law, rest))
    return tuple(found)


def _of_single_losses(parts: list[tuple[PrivacyLossPmf, int]]) -> LossPair:
    """The composition of laws with one finite loss each: their sum, exactly."""
    loss, log_mass = (
        math.fsum(count * float(values[0]) for values, count in sides)
        for sides in (
            [(atoms.loss, count) for atoms, count in parts],
            [(atoms.log_mass, count) for atoms, count in parts],
        )
    )
    p_only, q_only = (-math.expm1(min(log, 0.0)) for log in (log_mass, log_mass - loss))
    return LossPair(PrivacyLossPmf(np.array([loss]), np.array([log_mass]), p_only, q_only))


@dataclass(frozen=True)
class _Grid:
    """A law on the grid: its first index, log masses from there on, and how often it is run."""

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
    """The law of the sum on the grid, and what P and P' have outside.

    Args:
        grids: the laws of the single runs.
        spacing: of the grid.
        first: first index of the window.
        last: last index of the window.
        size: points of the transforms; what wraps around only adds to the masses.
        tilts: exponents theta; at every loss the one with the smallest Chernoff bound is used.

    Returns:
        Log masses [last - first + 1], and Chernoff bounds on the P- and P'-mass outside.
    """
    index = np.arange(first, last + 1)
    place = index % size
    log_mass: FloatArray = np.full(len(index), -np.inf)
    smallest = np.full(len(index), np.inf)
    below_p = below_q = above = math.inf
    for tilt in tilts:
        spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
        log_total = 0.0
        for chunk in range(0, len(grids), _TOGETHER):
            spectra = []
            for one in grids[chunk : chunk + _TOGETHER]:
                tilted = one.log_p + tilt * spacing * one.index
                top = float(tilted.max())
                weights = np.exp(tilted - top)
                total = float(weights.sum())
                law = np.zeros(size)
                law[one.index % size] = weights / total
                spectra.append((fft.rfft(law), one.count))
                log_total += one.count * (top + math.log(total))
            spectrum *= product_of_powers(spectra)
        sums = fft.irfft(spectrum, size)
        # Rounding shows where it makes masses negative: twice the worst of it is added everywhere.
        rounding = 2.0 * max(-float(sums.min()), 1e-19)
        chernoff = log_total - tilt * spacing * index
        here = chernoff < smallest
        sums = np.maximum(sums[place[here]], 0.0) + rounding
        log_mass[here] = np.log(sums) + chernoff[here]
        smallest[here] = chernoff[here]
        if tilt > 0:
            above = min(above, chernoff[-1])
        if tilt < 0:
            below_p = min(below_p, chernoff[0])
        if tilt < -1:
            below_q = min(below_q, chernoff[0] - spacing * first)
    # Nothing is outside where the window ends with the grid itself.
    if last == sum(one.end * one.count for one in grids):
        above = -math.inf
    if first == sum(one.start * one.count for one in grids):
        below_p = below_q = -math.inf
    p_outside = math.exp(min(above, 0.0)) + math.exp(min(below_p, 0.0))
    return log_mass, p_outside, math.exp(min(below_q, 0.0))


def _coarse(atoms: PrivacyLossPmf, few: int) -> PrivacyLossPmf:
    """The same law on few losses: enough to find the window and the tilts."""
    width = float(np.ptp(atoms.loss))
    if len(atoms.loss) <= few or width == 0.0:
        return atoms
    first, log_mass = _on_grid(atoms, width / few)
    loss = np.asarray(width / few * (first + np.arange(len(log_mass))), dtype=np.float64)
    kept = np.isfinite(log_mass)
    return PrivacyLossPmf(loss[kept], log_mass[kept], atoms.p_only, atoms.q_only)


class _Cumulants:
    """K(theta) = log E_P[e^(theta loss)] of the composition, and its derivative, on a grid."""

    def __init__(self, parts: Sequence[tuple[PrivacyLossPmf, int]]) -> None:
        # 0 is P itself, -1 is P'; further out by what the loss varies.
        variance = sum(count * _variance(atoms) for atoms, count in parts)
        self.deviation = max(math.sqrt(variance), 1e-12)
        outer = np.geomspace(1e-7, 1e7, 561) / self.deviation
        theta = np.concatenate([-1.0 - outer[::-1], np.linspace(-1.0, 0.0, 41), outer])
        self.theta = theta
        self.value, self.slope = np.zeros_like(theta), np.zeros_like(theta)
        self.ends = [0.0, 0.0]
        for atoms, count in parts:
            weights = np.multiply.outer(theta, atoms.loss)
            weights += atoms.log_mass
            top = weights.max(axis=1, keepdims=True)
            weights -= top
            np.exp(weights, out=weights)
            total = weights.sum(axis=1)
            self.value += count * (np.log(total) + top[:, 0])
            self.slope += count * (weights @ atoms.loss) / total
            self.ends[0] += count * float(atoms.loss.min())
            self.ends[1] += count * float(atoms.loss.max())

    def window(self) -> tuple[float, float]:
        """Losses beyond which P above, and P' below, have less than the tail (Chernoff)."""
        spent = math.log(1.0 / _TAIL)
        above, below = self.theta > 0, self.theta < -1
        high = float(np.min((self.value[above] + spent) / self.theta[above]))
        low = float(np.max((self.value[below] + spent) / (1.0 + self.theta[below])))
        return max(low, self.ends[0]), min(high, self.ends[1])

    def tilts(
        self, count: int, low: float, high: float, wrap_low: float, wrap_high: float
    ) -> list[float]:
        """Exponents theta [count] whose mean losses cover the window, evenly by how rare these are.

        The Chernoff exponent I = theta K' - K of a normal loss is z^2/2, z standard deviations out.
        More exponents than asked for where they would be further apart than masses keep digits.
        Exponents that put more than 1e-8 where it wraps around into the window are left out.
        """
        rate = np.maximum(self.theta * self.slope - self.value, 0.0)
        z = np.maximum.accumulate(np.sign(self.theta) * np.sqrt(2.0 * rate))
        least, most = np.interp([low, high], self.slope, z)
        usable = (self._beyond(wrap_high, 1.0) < _WRAPPED) & (
            self._beyond(wrap_low, -1.0) < _WRAPPED
        )
        if usable.any():
            least, most = max(least, z[usable].min()), min(most, z[usable].max())
        count = min(max(count, math.ceil((most - least) / _TILT_WIDTH)), _MAX_TILTS)
        tilts: list[float] = np.interp(np.linspace(least, most, count), z, self.theta).tolist()
        return tilts

    def _beyond(self, loss: float, side: float) -> FloatArray:
        """Chernoff bound on the log mass [n] beyond a loss, under every tilt theta."""
        height = self.value - self.theta * loss
        further = side * self.theta
        # The smallest height among tilts further out than each, in order of `further`.
        order = np.argsort(-further)
        smallest = np.minimum.accumulate(height[order])
        found = np.empty_like(height)
        found[order] = smallest
        return found - height


def _variance(atoms: PrivacyLossPmf) -> float:
    mass = np.exp(atoms.log_mass)
    mean = float(mass @ atoms.loss / mass.sum())
    return float(mass @ (atoms.loss - mean) ** 2 / mass.sum())


def _on_grid(atoms: PrivacyLossPmf, spacing: float) -> tuple[int, FloatArray]:
    """Masses on the grid: the first index, and the log masses from there on."""
    place = np.floor(atoms.loss / spacing)
    first = int(place.min())
    cell = (place - first).astype(np.int64)
    gap = np.clip(atoms.loss - spacing * place, 0.0, spacing)
    # a + b = p and a e^-l + b e^-(l+h) = p e^-loss.
    upper = -np.expm1(-gap) / -math.expm1(-spacing)
    size = int(cell.max()) + 2
    top = np.full(size, -1e300)
    np.maximum.at(top, cell, atoms.log_mass)
    np.maximum.at(top, cell + 1, atoms.log_mass)
    masses = np.zeros(size)
    np.add.at(masses, cell, np.exp(atoms.log_mass - top[cell]) * (1.0 - upper))
    np.add.at(masses, cell + 1, np.exp(atoms.log_mass - top[cell + 1]) * upper)
    with np.errstate(divide="ignore"):
        return first, np.log(masses) + top
