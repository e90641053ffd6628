"""Rounding errors of Fourier transforms: the a-priori bound, and the measured value, both exactly.

The a-priori bound is proposition 29 of docs/theory.md. Exact masses are powers of
polynomials whose coefficients are integers.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import fft

from audit.accounting import composition
from audit.numerics import FloatArray, product_of_powers

UNIT = 0.5 * float(np.finfo(np.float64).eps)


def transform_error(size: int) -> float:
    """Largest error of a value of a transform whose inputs have absolute values that sum to 1."""
    return 13.0 * math.log2(size) * UNIT * (1.0 + 1e-12)


def error_of_powers(spectrum: np.ndarray, runs: int, size: int) -> float:
    """The a-priori bound on the error of every mass of `runs` equal runs."""
    e, products = transform_error(size), 3.0 * UNIT * 2.0 * runs
    sizes = np.abs(spectrum)
    with np.errstate(divide="ignore"):
        relative = np.minimum(runs * e / sizes + products, 1.0)
    errors = np.exp(runs * np.log(sizes + e) + products) * relative
    errors += e * np.abs(product_of_powers([(spectrum, runs)]))
    return 2.0 * float(errors.sum()) / size


def exact_power(masses: FloatArray, runs: int) -> list[int]:
    """Coefficients of the polynomial with some coefficients, to a power, times 2^(60 runs).

    One multiplication of large integers, in which every coefficient has bits of its own.
    """
    bits = 62 * runs
    packed = sum(int(mpmath.mpf(float(mass)) * 2**60) << bits * k for k, mass in enumerate(masses))
    power, mask = packed**runs, (1 << bits) - 1
    length = runs * (len(masses) - 1) + 1
    return [power >> bits * k & mask for k in range(length)]


def random_masses(rng: np.random.Generator, length: int) -> FloatArray:
    """Masses of many orders of magnitude, which are multiples of 2^-60 and sum to about 1."""
    masses = rng.dirichlet(np.ones(length)) * np.exp(-rng.uniform(0.0, 20.0, length))
    masses[int(rng.integers(length))] += rng.choice([0.0, 1.0, 30.0]) * masses.max()
    return np.asarray(np.floor(masses / masses.sum() * 2.0**53) / 2.0**53)


@pytest.mark.parametrize("size", [1024, 1536, 3125, 4374])
def test_every_value_of_a_transform_is_within_the_a_priori_bound(size: int) -> None:
    rng = np.random.default_rng(1)
    masses = random_masses(rng, size)
    values = fft.rfft(masses)
    with mpmath.workdps(30):
        numbers = [mpmath.mpf(float(mass)) for mass in masses]
        for k in rng.choice(len(values), 6, replace=False):
            turn = mpmath.expjpi(mpmath.mpf(-2 * int(k)) / size)
            exact = mpmath.polyval(numbers[::-1], turn)
            assert abs(mpmath.mpc(complex(values[k])) - exact) <= transform_error(size)


@pytest.mark.parametrize("runs", [2, 9, 30])
def test_masses_are_within_the_a_priori_bound_and_the_measured_one(runs: int) -> None:
    rng = np.random.default_rng(2)
    for length in (2, 5, 20):
        masses = random_masses(rng, length)
        exact = exact_power(masses, runs)
        size = int(fft.next_fast_len(2 * len(exact) + int(rng.integers(600)), real=True))
        padded = np.zeros(size)
        padded[:length] = masses
        spectrum = fft.rfft(padded)
        sums = fft.irfft(product_of_powers([(spectrum, runs)]), size)
        with mpmath.workdps(30):
            errors = [
                float(mpmath.mpf(float(mass)) - mpmath.mpf(number) / mpmath.mpf(2) ** (60 * runs))
                for mass, number in zip(sums, exact, strict=False)
            ]
        assert max(map(abs, errors)) <= error_of_powers(spectrum, runs, size)
        # What `_sum_of` adds: twice the largest negative mass, and a share for each run.
        added = 2.0 * max(-float(sums.min()), 1e-19) + composition._ROUNDING * runs * sums
        assert np.all(np.array(errors) + added[: len(errors)] >= 0.0)


@pytest.mark.parametrize(("runs", "length"), [(3, 12), (25, 8), (40, 3)])
def test_no_mass_of_a_composition_is_below_the_exact_one(runs: int, length: int) -> None:
    """For tilts that lie far apart and close together."""
    rng = np.random.default_rng(3)
    for tilts in ([0.0], [-30.0, 0.0, 30.0], [-20.0, -10.0, -5.0, 0.0, 5.0, 10.0, 20.0]):
        masses = random_masses(rng, length)
        masses = np.maximum(masses, 2.0**-53)
        exact = exact_power(masses, runs)
        grid = composition._Grid(0, np.log(masses), runs)
        size = int(fft.next_fast_len(2 * len(exact) + 8, real=True))
        log_mass, _, _ = composition._sum_of([grid], 0.05, 0, len(exact) - 1, size, tilts)
        with mpmath.workdps(30):
            logs = [
                float(mpmath.log(mpmath.mpf(number)) - 60 * runs * mpmath.log(2))
                for number in exact
            ]
        # The logarithms of the masses are given with a relative error of 1e-16 each.
        assert np.all(log_mass >= np.array(logs) - runs * 40.0 * UNIT)
