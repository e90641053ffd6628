"""One run on a lattice of likelihood ratios, and bounds made of chords between lattice points."""

from dataclasses import dataclass

import numpy as np

from audit import numerics
from audit.accounting import DominatingPair
from audit.accounting.composition import on_lattice
from audit.numerics import FloatArray
from audit.upper_bounds.region import ShiftedProfiles, mixture

# Masses of a run's loss below this are moved to its ends.
_SMALLEST = 1e-18
# Share of the value at 0 below which the chords begin, so that they keep their digits.
_FIRST = 1.0 - 1e-6


@dataclass(frozen=True)
class RatioLattice:
    """One run on a lattice of likelihood ratios r = dP'/dP.

    Attributes:
        first: the smallest log r, in units of the spacing.
        masses: P-probabilities [k] from there on.
        never: P-probability of r = 0.
        added: upper bounds on the rounding that a composition added to the sum of all
            P-probabilities and of all P'-probabilities.
    """

    first: int
    masses: FloatArray
    never: float
    added: tuple[float, float] = (0.0, 0.0)

    @staticmethod
    def of(
        pair: DominatingPair, spacing: float, reach: int, negligible: float = _SMALLEST
    ) -> "RatioLattice":
        """A run on a lattice within [-reach, reach] that dominates the run of the pair.

        The lattice includes 0. A smaller r is less private, so outputs with far r are moved down,
        those with the smallest r to r = 0, as are the rarest outputs, with a total probability of
        at most `negligible` on each side.
        """
        atoms = pair.atoms(spacing)
        if not len(atoms.loss):
            return RatioLattice(0, np.zeros(1), 1.0)
        start, log_mass = on_lattice(atoms, spacing)
        masses = np.exp(log_mass)[::-1]
        places = np.arange(len(masses)) - (start + len(masses) - 1)
        with_record = np.exp(log_mass[::-1] + spacing * places).sum()
        totals = np.array([masses.sum() + atoms.p_only, with_record + atoms.q_only])
        added, added_with = np.maximum(totals - 1.0, 0.0)
        below, above = np.cumsum(masses), np.cumsum(masses[::-1])[::-1]
        on_lattice_places = (below >= negligible) & (places >= -reach)
        largest = min(places[above >= negligible].max(initial=-reach), reach)
        moved = np.minimum(places[on_lattice_places], largest)
        smallest = int(moved.min(initial=0))
        on_places = np.zeros(max(int(moved.max(initial=0)), 0) - smallest + 1)
        np.add.at(on_places, moved - smallest, masses[on_lattice_places])
        never = float(atoms.p_only + masses[~on_lattice_places].sum())
        return RatioLattice(smallest, on_places, never, (float(added), float(added_with)))

    @property
    def last(self) -> int:
        """The largest log r, in units of the spacing."""
        return self.first + len(self.masses) - 1

    def least(self, mass: FloatArray) -> FloatArray:
        """Masses [n, k] of the outputs with the smallest r, with these total probabilities [n]."""
        before = self.never + np.append(0.0, np.cumsum(self.masses)[:-1])
        return np.clip(mass[:, None] - before, 0.0, self.masses)


def chords(pair: DominatingPair, t: FloatArray, psi: FloatArray, most: float) -> ShiftedProfiles:
    """The integral of psi(e^epsilon dP'/dP) dP as shifted profiles, rounded up by chords.

    Args:
        pair: (P, P').
        t: increasing points [n].
        psi: upper bounds [n] on a convex and decreasing function at these points.
        most: an upper bound on its value at 0.
    """
    keep = psi < _FIRST * most
    keep[-1] = True
    t, psi = t[keep], psi[keep]
    # (1/t, psi/t) is also convex and ends in the origin, and lines remain lines.
    hull = numerics.lower_hull(1.0 / t, numerics.safe_log(psi / t))
    inverse, height = 1.0 / t[hull], (psi / t)[hull]
    slopes = np.diff(height, prepend=0.0) / np.diff(inverse, prepend=0.0)
    # Where the chord's value at 0 exceeds `most`, the chord from a larger t to `most` is smaller.
    steep = max(int((slopes <= most).sum()), 1)
    inverse, height, slopes = inverse[:steep], height[:steep], slopes[:steep]
    # The chords as lines a - b t, the last of them to the value at 0.
    a = np.append(np.minimum(slopes, most), most)
    b = np.append(slopes * inverse - height, most * inverse[-1] - height[-1])
    return mixture(pair, a, numerics.safe_log(np.maximum(b, 0.0)))
