"""The largest leak of report noisy max that we found: `python -m studies.noisy_max` prints it.

Each of the m values may change by 1. The event that one of k given candidates wins leaks most if
their values decrease and all others increase, a relative change of 2. The largest leak that we
found has equal values inside the event and equal values outside; a search over all values of up to
six candidates found no larger one.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from scipy import optimize, special

from audit.accounting import solve_epsilon
from audit.numerics import FloatArray

_GRID = np.linspace(-16.0, 16.0, 4001)
_GAPS = np.linspace(-9.0, 9.0, 73)


def chance_of_event(inside: FloatArray, outside: FloatArray) -> float:
    """Probability that the largest of noisy values is one of those in the event.

    Args:
        inside: values [k] in the event, in standard deviations of the Gaussian noise, in [-9, 9].
        outside: the other values [m - k].
    """
    log_below = special.log_ndtr(_GRID - inside[:, None])
    log_density = -0.5 * np.square(_GRID - inside[:, None]) - 0.5 * np.log(2.0 * np.pi)
    log_others_below = log_below.sum(axis=0) - log_below
    log_others_below += special.log_ndtr(_GRID - outside[:, None]).sum(axis=0)
    return float(np.exp(log_density + log_others_below).sum() * (_GRID[1] - _GRID[0]))


def equal_values(gap: float, k: int, outside: int) -> float:
    """`chance_of_event` of k values at `gap` and the others at 0."""
    log = -0.5 * np.square(_GRID - gap) - 0.5 * np.log(2.0 * np.pi)
    log += (k - 1) * special.log_ndtr(_GRID - gap) + outside * special.log_ndtr(_GRID)
    return float(k * np.exp(log).sum() * (_GRID[1] - _GRID[0]))


def leak(epsilon: float, k: int, outside: int, sigma: float) -> float:
    """The largest delta at epsilon of the event that one of k equal values wins.

    The other values are equal to each other; the maximum is over the gap between both.
    """

    def lost(gap: float) -> float:
        moved = equal_values(gap - 2.0 / sigma, k, outside)
        return float(np.exp(epsilon)) * moved - equal_values(gap, k, outside)

    at = int(np.argmin([lost(gap) for gap in _GAPS]))
    ends = _GAPS[max(at - 1, 0)], _GAPS[min(at + 1, len(_GAPS) - 1)]
    largest = optimize.minimize_scalar(lost, bounds=ends, method="bounded")
    return max(-float(largest.fun), 0.0)


def attained(candidates: int, sigma: float, delta: float) -> tuple[float, int]:
    """The largest epsilon at delta of an event, and the number of values in this event.

    The numbers of values that are tried are 1 and the multiples of a tenth of all.
    """
    sizes = {max(1, round(share * candidates)) for share in np.linspace(0.1, 0.9, 9)}

    def epsilon_of(k: int) -> float:
        return solve_epsilon(lambda epsilon: leak(epsilon, k, candidates - k, sigma), delta)

    return max((epsilon_of(k), k) for k in sizes | {1} if k < candidates)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the largest leak that was found, by number of candidates."""
    argparse.ArgumentParser(description=__doc__, allow_abbrev=False).parse_args(argv)
    print("sigma = 4, delta = 1e-6: candidates, epsilon attained, values in the event")
    for count in (2, 3, 10, 100, 1000, 10**5):
        print(count, *attained(count, 4.0, 1e-6))


if __name__ == "__main__":
    main()
