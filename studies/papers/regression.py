"""Koskela, Redberg & Wang 2024, figure 5: private linear regression with a tuned penalty.

One run draws a penalty, tests privately whether the data are well conditioned for it, and if so
releases one draw from the posterior (OPS). The tuning makes a geometric number of runs. Its cost,
by three ways of accounting, determines how sharp the posterior may be. The figure also shows two
methods without tuning, which must be private for the worst data, and regression without privacy.

Notation of the proofs: records x with |x| <= 1 and |y| <= 1; A = X'X + penalty for the smaller of
two neighbouring data sets; theta is its solution; h = x'A^-1 x and r = y - x'theta for the record
that only the larger data set contains.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import special

from audit.accounting import DeltaUnreachable, GaussianMechanism, PrivacyProfile, calibrate_mu
from audit.numerics import FloatArray, safe_root
from audit.protocols import ProposeTestRelease
from audit.repetitions import parse_repetitions
from audit.upper_bounds.published import liu_talwar, propose_test_release
from audit.upper_bounds.registry import find
from studies.papers.result import COLOURS, Result, figure, legend, plot_means, style, tidy
from studies.papers.tunings import DELTA, mean_and_error, play_random_searches
from threat_models.datasets import load

_REPETITIONS = parse_repetitions("tnb:1,0.1")
_PENALTIES = np.geomspace(1.0, 1e4, 17)
# The part of one run's delta for the test, and the probability that the test is wrong; the tuning
# makes ten runs on average.
_SMALL = DELTA / 200.0
# mu of the two halves of the test, and the bound on h, each relative to the scale of the draw. We
# tried a few values; these are the best.
_EIGENVALUE_MU, _NORM_MU, _CURVATURE = 0.1, 0.5, 0.2
# Points of a profile.
_EPSILONS = 257
# Limit of the rounding error of the subtraction in `Draw.delta`; the profile is raised by it.
_ROUNDING = 1e-14
_NOT_PRIVATE = "not private"


@dataclass(frozen=True)
class Draw:
    """One draw from the posterior N(theta, (gamma A)^-1), for data that passed the test.

    If h <= curvature and gamma h r^2 <= scale^2, the privacy loss of the draw is in both directions
    at most U = (curvature + scale^2) / 2 + scale |Z| + curvature Z^2 / 2 for a normal Z. Proof:
    only the distribution of x'theta differs. In units of its standard deviation on the smaller data
    set, it is N(0, 1) there and N(m, 1 / (1 + h)) on the larger one, with m = sqrt(gamma h) r /
    (1 + h). The losses are
    -log(1 + h) / 2 + gamma h r^2 / (2 (1 + h)) - sqrt(gamma h) r Z + h Z^2 / 2 and
    log(1 + h) / 2 + m^2 / 2 + m Z / sqrt(1 + h) - h Z^2 / (2 (1 + h)).

    Attributes:
        scale: coefficient of |Z|, > 0.
        curvature: twice the coefficient of Z^2, > 0.
    """

    scale: float
    curvature: float

    def delta(self, epsilon: FloatArray) -> FloatArray:
        """The privacy profile E max(1 - e^(epsilon - U), 0) at epsilon [n]."""
        a, c = self.scale, self.curvature
        margin = epsilon - (c + a * a) / 2.0
        # U exceeds epsilon beyond the larger root of c z^2 / 2 + a z = margin.
        above = np.maximum(margin, 0.0)
        z = 2.0 * above / (a + np.sqrt(a * a + 2.0 * c * above))
        root = math.sqrt(1.0 + c)
        log_margin = margin + a * a / (2.0 * (1.0 + c)) - math.log1p(c) / 2.0
        log_tail = special.log_ndtr(-(root * z + a / root))
        return np.asarray(2.0 * (special.ndtr(-z) - np.exp(log_margin + log_tail)))

    @property
    def profile(self) -> PrivacyProfile:
        """The privacy profile as a mechanism, the base of a tuning."""
        highest = (self.curvature + self.scale**2) / 2.0 + 10.0 * self.scale + 50.0 * self.curvature
        epsilons = np.linspace(0.0, highest, _EPSILONS)
        deltas = np.clip(self.delta(epsilons) + _ROUNDING, 0.0, 1.0)
        return PrivacyProfile(epsilons, np.minimum.accumulate(deltas))


def _protocol(scale: float) -> ProposeTestRelease:
    """Random search over runs that test two Gaussian halves before they release."""
    test = GaussianMechanism(math.hypot(_EIGENVALUE_MU, _NORM_MU) * scale)
    return ProposeTestRelease(_REPETITIONS, test.epsilon(_SMALL), _SMALL, _SMALL)


def _by_liu_talwar(draw: Draw, protocol: ProposeTestRelease) -> float:
    test = protocol.test_epsilon, protocol.test_delta, protocol.failure
    bound = liu_talwar(propose_test_release(draw.profile, *test), protocol.repetitions, DELTA)
    return bound.epsilon


def _by_bound(name: str) -> Callable[[Draw, ProposeTestRelease], float]:
    def epsilon(draw: Draw, protocol: ProposeTestRelease) -> float:
        bound = find(name, ProposeTestRelease).function(draw.profile, protocol, DELTA)
        return bound.epsilon

    return epsilon


_ACCOUNTINGS: dict[str, Callable[[Draw, ProposeTestRelease], float]] = {
    "tested OPS, Liu & Talwar": _by_liu_talwar,
    "tested OPS, theorem 5.2": _by_bound("profile"),
    "tested OPS, region bound": _by_bound("region"),
}


@cache
def _largest_scale(
    epsilon: float, accounting: Callable[[Draw, ProposeTestRelease], float]
) -> float:
    """The scale of the sharpest draws for which the tuning costs at most epsilon, within 1 %."""

    def excess(log_scale: float) -> float:
        scale = math.exp(log_scale)
        try:
            return accounting(Draw(scale, _CURVATURE * scale), _protocol(scale)) - epsilon
        except DeltaUnreachable:
            return math.inf

    return math.exp(safe_root(excess, math.log(1e-4), math.log(10.0), 1e-2))


@dataclass(frozen=True)
class Problem:
    """A linear regression.

    Attributes:
        records: number of records.
        values: eigenvalues [d] of X'X, ascending.
        vectors: eigenvectors [d, d], as columns.
        sums: X'y [d].
        validation: records and answers that score the runs of a tuning.
        test: records and answers that measure the error of the chosen run.
    """

    records: int
    values: FloatArray
    vectors: FloatArray
    sums: FloatArray
    validation: tuple[FloatArray, FloatArray]
    test: tuple[FloatArray, FloatArray]

    def solution(self, penalty: FloatArray) -> FloatArray:
        """theta [n, d] for every penalty [n]."""
        return (self.vectors.T @ self.sums / (self.values + penalty[:, None])) @ self.vectors.T

    def posterior(
        self, penalty: FloatArray, gamma: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        """One draw [n, d] for every penalty [n] and sharpness gamma [n]."""
        spread = 1.0 / np.sqrt(gamma[:, None] * (self.values + penalty[:, None]))
        normal = rng.standard_normal(spread.shape)
        return self.solution(penalty) + (spread * normal) @ self.vectors.T


def _problem(dataset: str, data_root: str, records: int, validation: int) -> Problem:
    """The problem of predicting the middle of an image from its edge.

    An image is reduced to five by five grey tiles. x are the 16 tiles at the edge and a constant, y
    is the mean of the nine inner tiles, and constants scale both to |x| <= 1 and |y| <= 1.
    """

    def split(train: bool, size: int) -> tuple[FloatArray, FloatArray]:
        images = load(dataset, train, data_root or None, size).features.astype(np.float64)
        grey = images.reshape(len(images), -1, *images.shape[-2:]).mean(1)
        rows = [part.mean(1) for part in np.array_split(grey, 5, axis=1)]
        tiles = [part.mean(1) for row in rows for part in np.array_split(row, 5, axis=1)]
        board = 2.0 * np.stack(tiles, axis=1).reshape(-1, 5, 5) - 1.0
        edge = np.ones((5, 5), np.bool_)
        edge[1:4, 1:4] = False
        x = np.column_stack([board[:, edge], np.ones(len(board))]) / math.sqrt(17.0)
        return x, board[:, ~edge].mean(1)

    x, y = split(True, records)
    values, vectors = np.linalg.eigh(x.T @ x)
    held_x, held_y = split(False, validation)
    half = len(held_y) // 2
    return Problem(
        len(y),
        np.maximum(values, 0.0),
        vectors,
        x.T @ y,
        validation=(held_x[:half], held_y[:half]),
        test=(held_x[half:], held_y[half:]),
    )


def _error(theta: FloatArray, held_out: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Mean squared error [n] of models [n, d], whose answers are clipped to [-1, 1]."""
    x, y = held_out
    return np.asarray(((np.clip(theta @ x.T, -1.0, 1.0) - y) ** 2).mean(1))


def _tested(problem: Problem, scale: float, tunings: int, rng: np.random.Generator) -> FloatArray:
    """Errors [n] of the tunings that released a model.

    A run releases two noisy numbers. The first is the smallest eigenvalue, which a record changes
    by at most 1. The second is log(1 + |theta|), which a record changes by at most log(1 + 1 /
    (penalty + eigenvalue)) of the smaller data set. Except with probability `_SMALL` / 2 each, they
    bound h and r after the eigenvalue is lowered and the norm raised by a quantile of their noise,
    and the eigenvalue by 1 for a missing record. A run releases a model if h is small enough, with
    the largest gamma that both bounds allow.
    """
    quantile = -special.ndtri(_SMALL / 2.0)

    def train(penalty: FloatArray) -> tuple[FloatArray, FloatArray]:
        below, above = rng.normal([[-quantile], [quantile]], 1.0, (2, len(penalty)))
        least = np.maximum(problem.values[0] + below / (_EIGENVALUE_MU * scale) - 1.0, 0.0)
        h = 1.0 / (penalty + least)
        passes = h <= _CURVATURE * scale
        penalty, h, above = penalty[passes], h[passes], above[passes]
        norm = np.linalg.norm(problem.solution(penalty), axis=1)
        r = (1.0 + norm) * np.exp(np.log1p(h) * above / (_NORM_MU * scale))
        # Without a record, the solution is longer by a factor of at most 1 + h.
        gamma = scale**2 / (h * (r * (1.0 + h)) ** 2)
        models = np.full((len(passes), len(problem.values)), np.nan)
        models[passes] = problem.posterior(penalty, gamma, rng)
        scores = np.full(len(passes), -np.inf)
        scores[passes] = -_error(models[passes], problem.validation)
        return models, scores

    _, models, _ = play_random_searches(_REPETITIONS, _PENALTIES, train, tunings, rng)
    return _error(models, problem.test)


def _untuned(
    problem: Problem, epsilon: float, draws: int, rng: np.random.Generator
) -> dict[str, FloatArray]:
    """Errors [n] of methods that choose the penalty without looking at the data.

    |theta| <= sqrt(n / penalty) for all data. The penalty is such that its bias, if |theta| is 1,
    equals the error due to noise.
    """
    mu = calibrate_mu(epsilon, DELTA, "exact")

    def largest_residual(penalty: float) -> float:
        return 1.0 + math.sqrt((problem.records + 1.0) / penalty)

    def spread(penalty: float) -> float:
        # Output perturbation: a record moves theta by at most |x| |r| / penalty.
        return largest_residual(penalty) / (penalty * mu)

    def gamma_at(penalty: float) -> float:
        def excess(log_scale: float) -> float:
            drawn = Draw(math.exp(log_scale), 1.0 / penalty)
            return float(drawn.delta(np.array([epsilon]))[0]) - DELTA

        scale = math.exp(safe_root(excess, math.log(1e-6), math.log(100.0), 1e-3))
        return scale**2 * penalty / largest_residual(penalty) ** 2

    def balanced(noise_error: Callable[[float], float]) -> float:
        """The penalty whose bias equals the error due to noise."""

        def excess(log_penalty: float) -> float:
            return math.exp(log_penalty) - noise_error(math.exp(log_penalty))

        return math.exp(safe_root(excess, math.log(100.0 / epsilon), math.log(1e9), 1e-3))

    dimension = len(problem.values)
    output = balanced(lambda penalty: problem.records * spread(penalty) ** 2)
    posterior = balanced(lambda penalty: dimension / gamma_at(penalty))
    normal = rng.standard_normal((draws, dimension))
    noisy = problem.solution(np.array([output])) + spread(output) * normal
    sampled = problem.posterior(np.full(draws, posterior), np.full(draws, gamma_at(posterior)), rng)
    return {
        "output perturbation": _error(noisy, problem.test),
        "OPS": _error(sampled, problem.test),
    }


def figure_5(
    epsilons: Sequence[float] = (1.0, 2.0, 4.0, 8.0, 16.0),
    dataset: str = "FASHION",
    data_root: str = "",
    records: int = 5000,
    validation: int = 1000,
    tunings: int = 400,
    seed: int = 1,
) -> Result:
    """Error of private linear regression over the total epsilon, by method and accounting.

    Args:
        epsilons: total epsilons.
        dataset: name of a data set; the middle of each image is predicted from its edge.
        data_root: folder of the data sets; AUDIT_DATA_ROOT if empty.
        records: number of training records.
        validation: number of held-out records, half for validation and half for testing.
        tunings: number of tunings per point, and of draws of the methods without tuning.
        seed: seed of all random draws.
    """
    problem = _problem(dataset, data_root, records, validation)
    rows = []
    for epsilon in epsilons:
        error_of_method = {_NOT_PRIVATE: _error(problem.solution(np.array([1e-6])), problem.test)}
        error_of_method |= _untuned(problem, epsilon, tunings, np.random.default_rng(seed))
        for name, accounting in _ACCOUNTINGS.items():
            scale = _largest_scale(epsilon, accounting)
            error_of_method[name] = _tested(
                problem, scale, tunings, np.random.default_rng([seed, 1])
            )
        rows += [
            {
                "epsilon": epsilon,
                "method": name,
                **mean_and_error(errors, "error"),
                "released": len(errors) if name != _NOT_PRIVATE else tunings,
            }
            for name, errors in error_of_method.items()
        ]
    table = pd.DataFrame(rows)
    lines = [
        f"epsilon {row['epsilon']:4g}, {row['method']:26} squared error {row['error']:.5f} "
        f"+- {row['standard error']:.5f}, released {row['released']} of {tunings}"
        for row in rows
    ]
    return Result(table, _draw(table, dataset), lines=tuple(lines))


def _draw(table: pd.DataFrame, dataset: str) -> Figure:
    with style():
        page = figure()
        axes = page.subplots()
        for number, (name, rows) in enumerate(table.groupby("method", sort=False)):
            dashes = "-" if "region" in str(name) else "--"
            look = {"color": COLOURS[number], "ls": dashes, "label": name}
            plot_means(axes, rows, "epsilon", "error", **look)
        axes.set(xlabel=r"$\varepsilon$ of the tuning", ylabel="squared error")
        axes.set(xscale="log", yscale="log")
        title = rf"{dataset}, $\delta$ = {DELTA:g}, two standard errors"
        axes.set_title(title, fontsize="medium", loc="left")
        tidy(axes)
        legend(axes)
    return page
