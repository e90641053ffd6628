"""Koskela, Redberg & Wang 2024, figure 5: private linear regression, its penalty tuned.

One run proposes a penalty, tests privately whether the data are well conditioned at it, and if so
releases one draw of the posterior (OPS). The penalty is tuned by a geometric number of runs; what
that costs, by three accountings, decides how sharp the draws may be. Beside it stand two ways
without tuning, which must be private for the worst data, and the regression without privacy.

The notation of the proofs: records x with |x| <= 1 and |y| <= 1, A = X'X + penalty for the smaller
of two neighbours, theta its solution, h = x'A^-1 x and r = y - x'theta of the record more.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import special, stats

from audit.accounting import GaussianMechanism, PrivacyProfile, Unreachable, calibrate_mu
from audit.numerics import safe_root
from audit.protocols import ProposeTestRelease
from audit.repetitions import parse_repetitions
from audit.reproduce.result import COLOURS, Result, figure, style, tidy
from audit.reproduce.training import DELTA, best_of_each
from audit.upper_bounds.published import liu_talwar, propose_test_release
from audit.upper_bounds.registry import find
from threat_models.datasets import load

Array = NDArray[np.float64]

_LAW = "tnb:1,0.1"
_PENALTIES = np.geomspace(1.0, 1e4, 17)
# Shares of one run's delta: of the test, and of its being wrong, each; the tuning makes ten runs.
_SMALL = DELTA / 200.0
# mu of the test's halves, and h, over the scale of the draw: what served best of a few.
_TEST_VALUE, _TEST_NORM, _CURVATURE = 0.1, 0.5, 0.2
_EPSILONS = 257
_OPEN = "not private"


@dataclass(frozen=True)
class Draw:
    """One draw of the posterior N(theta, (gamma A)^-1), for data that passed the test.

    Where h <= curvature and gamma h r^2 <= scale^2, the loss of the draw is, in either direction
    and as a function of a normal Z, at most U = (curvature + scale^2) / 2 + scale |Z| + curvature
    Z^2 / 2. For only the law of x'theta differs, N(0, 1) against N(m, 1 / (1 + h)) in units of
    the former with m = sqrt(gamma h) r / (1 + h), and the losses are
    -log(1 + h) / 2 + gamma h r^2 / (2 (1 + h)) - sqrt(gamma h) r Z + h Z^2 / 2 and
    log(1 + h) / 2 + m^2 / 2 + m Z / sqrt(1 + h) - h Z^2 / (2 (1 + h)).

    Attributes:
        scale: of the linear part, > 0.
        curvature: of the quadratic part, > 0.
    """

    scale: float
    curvature: float

    def delta(self, epsilon: Array) -> Array:
        """E max(1 - e^(epsilon - U), 0) [n]: a privacy profile."""
        a, c = self.scale, self.curvature
        rest = epsilon - (c + a * a) / 2.0
        # Where U passes epsilon, the larger root of c z^2 / 2 + a z = rest.
        above = np.maximum(rest, 0.0)
        z = 2.0 * above / (a + np.sqrt(a * a + 2.0 * c * above))
        root = math.sqrt(1.0 + c)
        log_rest = rest + a * a / (2.0 * (1.0 + c)) - math.log1p(c) / 2.0
        log_tail = special.log_ndtr(-(root * z + a / root))
        return np.asarray(2.0 * (special.ndtr(-z) - np.exp(log_rest + log_tail)))

    @property
    def profile(self) -> PrivacyProfile:
        """The profile as a base."""
        most = (self.curvature + self.scale**2) / 2.0 + 10.0 * self.scale + 50.0 * self.curvature
        epsilons = np.linspace(0.0, most, _EPSILONS)
        # Rounded up: what the subtraction above may lose.
        deltas = np.clip(self.delta(epsilons) + 1e-14, 0.0, 1.0)
        return PrivacyProfile(epsilons, np.minimum.accumulate(deltas))


def _test(scale: float) -> ProposeTestRelease:
    """The test of two Gaussian halves as a protocol, with the law of K."""
    test = GaussianMechanism(math.hypot(_TEST_VALUE, _TEST_NORM) * scale)
    return ProposeTestRelease(parse_repetitions(_LAW), test.epsilon(_SMALL), _SMALL, _SMALL)


def _by_liu_talwar(draw: Draw, protocol: ProposeTestRelease) -> float:
    test = protocol.test_epsilon, protocol.test_delta, protocol.failure
    found = liu_talwar(propose_test_release(draw.profile, *test), protocol.repetitions, DELTA)
    return math.inf if found.epsilon is None else found.epsilon


def _by_bound(name: str) -> Callable[[Draw, ProposeTestRelease], float]:
    def epsilon(draw: Draw, protocol: ProposeTestRelease) -> float:
        found = find(name, ProposeTestRelease).function(draw.profile, protocol, DELTA)
        return math.inf if found.epsilon is None else found.epsilon

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
    """The sharpest draws at which the whole tuning keeps epsilon, to within 1 %."""

    def missed(log_scale: float) -> float:
        scale = math.exp(log_scale)
        try:
            return accounting(Draw(scale, _CURVATURE * scale), _test(scale)) - epsilon
        except Unreachable:
            return math.inf

    return math.exp(safe_root(missed, math.log(1e-4), math.log(10.0), 1e-2))


@dataclass(frozen=True)
class Problem:
    """A regression, by its sums.

    Attributes:
        records: how many.
        values: eigenvalues [d] of X'X, ascending.
        vectors: eigenvectors [d, d], as columns.
        sums: X'y [d].
        chosen_by: records and answers that a tuning chooses by.
        judged_by: others, that say how good the choice is.
    """

    records: int
    values: Array
    vectors: Array
    sums: Array
    chosen_by: tuple[Array, Array]
    judged_by: tuple[Array, Array]

    def solution(self, penalty: Array) -> Array:
        """theta [n, d] of every penalty [n]."""
        return (self.vectors.T @ self.sums / (self.values + penalty[:, None])) @ self.vectors.T

    def posterior(self, penalty: Array, gamma: Array, rng: np.random.Generator) -> Array:
        """One draw [n, d] for every penalty [n] and sharpness gamma [n]."""
        spread = 1.0 / np.sqrt(gamma[:, None] * (self.values + penalty[:, None]))
        normal = rng.standard_normal(spread.shape)
        return self.solution(penalty) + (spread * normal) @ self.vectors.T


def _problem(dataset: str, data_root: str, records: int, validation: int) -> Problem:
    """What is in the middle of an image, from what is around it.

    An image is a square of five by five grey tiles. x are the 16 at its edge and a constant, and y
    the mean of the nine inside, all scaled by constants into |x| <= 1 and |y| <= 1.
    """

    def split(train: bool, size: int) -> tuple[Array, Array]:
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
        (held_x[:half], held_y[:half]),
        (held_x[half:], held_y[half:]),
    )


def _error(theta: Array, held: tuple[Array, Array]) -> Array:
    """Mean squared error [n] of models [n, d], their answers clipped to what y can be."""
    x, y = held
    return np.asarray(((np.clip(theta @ x.T, -1.0, 1.0) - y) ** 2).mean(1))


def _tested(problem: Problem, scale: float, tunings: int, rng: np.random.Generator) -> Array:
    """Errors [n] of tunings that released a model.

    A run tells a noisy smallest eigenvalue, which a record moves by at most 1, and a noisy
    log(1 + |theta|), which one moves by at most log(1 + 1 / (penalty + eigenvalue)) of the smaller
    neighbour. Lowered and raised by as much as the noise exceeds with chance `_SMALL` / 2, and the
    eigenvalue by 1 for a record less, they bound h and r; the run releases where h is small enough,
    and takes the gamma that they allow.
    """
    runs = parse_repetitions(_LAW).sample(rng, tunings)
    owner = np.repeat(np.arange(tunings), runs)
    penalty = rng.choice(_PENALTIES, len(owner))
    safe = -special.ndtri(_SMALL / 2.0)
    below, above = rng.normal([[-safe], [safe]], 1.0, (2, len(owner)))
    least = np.maximum(problem.values[0] + below / (_TEST_VALUE * scale) - 1.0, 0.0)
    h = 1.0 / (penalty + least)
    passes = h <= _CURVATURE * scale
    owner, penalty, h, above = owner[passes], penalty[passes], h[passes], above[passes]
    norm = np.linalg.norm(problem.solution(penalty), axis=1)
    r = (1.0 + norm) * np.exp(np.log1p(h) * above / (_TEST_NORM * scale))
    # The smaller neighbour may be the data less a record: its solution is longer by a factor 1 + h.
    gamma = scale**2 / (h * (r * (1.0 + h)) ** 2)
    models = problem.posterior(penalty, gamma, rng)
    best = best_of_each(owner, -_error(models, problem.chosen_by))
    return _error(models[best], problem.judged_by)


def _untuned(
    problem: Problem, epsilon: float, draws: int, rng: np.random.Generator
) -> dict[str, Array]:
    """Errors [n] of ways that look at no data before they choose the penalty.

    |theta| <= sqrt(n / penalty) for all data. The penalty makes its bias, were |theta| 1, what the
    noise adds.
    """
    mu = calibrate_mu(epsilon, DELTA, "exact")

    def longest(penalty: float) -> float:
        return 1.0 + math.sqrt((problem.records + 1.0) / penalty)

    def spread(penalty: float) -> float:
        # Of output perturbation: a record moves theta by at most |x| |r| / penalty.
        return longest(penalty) / (penalty * mu)

    def scale_at(penalty: float) -> float:
        # The largest whose draws keep epsilon, with the curvature that the penalty has.
        def missed(log_scale: float) -> float:
            drawn = Draw(math.exp(log_scale), 1.0 / penalty)
            return float(drawn.delta(np.array([epsilon]))[0]) - DELTA

        return math.exp(safe_root(missed, math.log(1e-6), math.log(100.0), 1e-3))

    def gamma_at(penalty: float) -> float:
        return scale_at(penalty) ** 2 * penalty / longest(penalty) ** 2

    def balanced(noise: Callable[[float], float]) -> float:
        """The penalty at which the noise's error is the bias."""

        def missed(log_penalty: float) -> float:
            return math.exp(log_penalty) - noise(math.exp(log_penalty))

        return math.exp(safe_root(missed, math.log(100.0 / epsilon), math.log(1e9), 1e-3))

    dimension = len(problem.values)
    output = balanced(lambda penalty: problem.records * spread(penalty) ** 2)
    posterior = balanced(lambda penalty: dimension / gamma_at(penalty))
    normal = rng.standard_normal((draws, dimension))
    noisy = problem.solution(np.array([output])) + spread(output) * normal
    sampled = problem.posterior(np.full(draws, posterior), np.full(draws, gamma_at(posterior)), rng)
    return {
        "output perturbation": _error(noisy, problem.judged_by),
        "OPS": _error(sampled, problem.judged_by),
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
        epsilons: totals.
        dataset: a data set's name; what is inside an image is told from its edge.
        data_root: its folder; empty for AUDIT_DATA_ROOT.
        records: to regress on.
        validation: records kept apart, half to choose by, half to judge.
        tunings: played for every point, and draws of what is not tuned.
        seed: of everything random.
    """
    problem = _problem(dataset, data_root, records, validation)
    none = np.array([1e-6])
    rows = []
    for epsilon in epsilons:
        rng = np.random.default_rng(seed)
        found = {_OPEN: _error(problem.solution(none), problem.judged_by)}
        found |= _untuned(problem, epsilon, tunings, rng)
        for name, accounting in _ACCOUNTINGS.items():
            scale = _largest_scale(epsilon, accounting)
            found[name] = _tested(problem, scale, tunings, np.random.default_rng([seed, 1]))
        rows += [
            {
                "epsilon": epsilon,
                "method": name,
                "error": errors.mean() if len(errors) else math.nan,
                "standard error": stats.sem(errors) if len(errors) > 1 else 0.0,
                "released": len(errors) if name != _OPEN else tunings,
            }
            for name, errors in found.items()
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
            axes.errorbar(
                rows["epsilon"],
                rows["error"],
                2.0 * rows["standard error"],
                color=COLOURS[number],
                ls="-" if "region" in str(name) else "--",
                marker="o",
                capsize=3,
                label=name,
            )
        axes.set(
            xlabel=r"$\varepsilon$ of the whole", ylabel="squared error", xscale="log", yscale="log"
        )
        axes.set_title(
            rf"{dataset}, $\delta$ = {DELTA:g}, two standard errors", fontsize="medium", loc="left"
        )
        tidy(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return page
