"""Probabilities of the tuned output in cells, with the rounding error of each."""

import numpy as np

from audit.numerics import FLOAT_ROUNDING, PROFILE_ACCURACY, FloatArray, safe_log
from audit.repetitions import Repetitions


def cell_masses(log_worse: FloatArray, repetitions: Repetitions) -> tuple[FloatArray, FloatArray]:
    """Probability that the best of K runs falls between consecutive outputs, and its rounding.

    `log_worse` [n] are log probabilities that one run is worse than each output, the best output
    first. Let x be the probability that one run is worse than all outputs in a cell, and p that of
    the cell. By theorem 2 of Xiang, Wang & Wang 2024, the best run is in the cell with probability
    phi(x + p) - phi(x). Differences are taken on the side of the smaller tail, so that a mass of
    1e-300 keeps its digits.
    """
    beaten = repetitions.one_minus_phi_at(log_worse)
    not_beaten = repetitions.some_phi_at(log_worse)
    use_beaten = beaten[1:] < not_beaten[:-1]
    masses = np.where(use_beaten, np.diff(beaten), -np.diff(not_beaten))
    rounding = FLOAT_ROUNDING * np.where(use_beaten, beaten[1:], not_beaten[:-1])
    return np.maximum(masses, 0.0), rounding


def scale(mass: FloatArray, epsilon: float) -> FloatArray:
    """e^epsilon times masses, without overflow; values above e are replaced by e."""
    return np.exp(np.minimum(epsilon + safe_log(mass), 1.0))


def rounded(masses: FloatArray, rounding: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds (lower, upper) on masses, from the result of `cell_masses`."""
    return masses - rounding, np.where(masses > 0, masses + rounding, 0.0)


def bounded_masses(
    log_worse: FloatArray, one_run: FloatArray, repetitions: Repetitions
) -> tuple[FloatArray, FloatArray]:
    """Bounds (lower, upper) on masses [n-1], if the probabilities of cells are sums.

    Sums have larger rounding errors than tails. phi' increases, so its values at both ends of a
    cell also bound the mass, without cancellation. `one_run` [n-1] is the probability of each cell
    in one run.
    """
    mass, rounding = cell_masses(log_worse, repetitions)
    slope = np.exp(repetitions.log_phi_prime_at(log_worse))
    lower = np.maximum(mass - 1e3 * rounding, slope[1:] * one_run * (1.0 - PROFILE_ACCURACY))
    upper = np.minimum(mass + 1e3 * rounding, slope[:-1] * one_run * (1.0 + PROFILE_ACCURACY))
    return np.minimum(lower, upper), upper


def divergence_of_cells(
    epsilon: float,
    without: tuple[FloatArray, FloatArray],
    with_canary: tuple[FloatArray, FloatArray],
) -> float:
    """The larger of both directions' hockey-stick divergences over cells, rounded down.

    The masses without and with the canary are bounds (lower, upper).
    """
    (p_low, p_high), (q_low, q_high) = without, with_canary
    # A cell whose other mass underflows is left out, because its ratio is unknown.
    forward = np.where(q_high > 0, p_low - scale(q_high, epsilon), 0.0)
    backward = np.where(p_high > 0, q_low - scale(p_high, epsilon), 0.0)
    return max(float(np.maximum(side, 0.0).sum()) for side in (forward, backward))
