"""The attack with three labels: enumeration, simulation, other samplers, and bounds."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

from audit import attacks, protocols, upper_bounds
from audit.accounting import GaussianMechanism
from audit.attacks import LabelAttack
from audit.numerics import FloatArray

DELTA = 1e-5
SMALL = LabelAttack(
    0.7,
    protocols.Adaptive("fixed:2", 0.5, 2.0),
    (2.0, 0.5, 1.5),
    (-0.5, -2.0, -1.2),
    tuned_to=1.0,
    spacing=1.0,
)


def enumerated(attack: LabelAttack, orders: FloatArray, mean: float) -> float:
    """P[the back is released] of two runs, by a sum over both labels and pieces of the line.

    `orders` [runs, 2, counts, 3] are those of the sampler, which is used here as a table.
    """
    u, middle, total = attack.spacing, orders.shape[2] // 2, 0.0
    density = attack.densities

    def pieces(label: int) -> list[tuple[float, int, bool, bool]]:
        # Ends of cells of rounded evidence (x - mu/2) / u, and the limits of the label.
        ends = {(k + 0.5) * u + attack.mu / 2.0 for k in range(-12, 12)}
        line = sorted(ends | {attack.front[label], attack.back[label]})
        found = []
        for low, high in itertools.pairwise([-math.inf, *line, math.inf]):
            mass = float(special.ndtr(high - mean) - special.ndtr(low - mean))
            inner = max(low, -30.0) / 2.0 + min(high, 30.0) / 2.0
            least, most = attack._moves[[0, -1]]
            move = int(np.clip(round((inner - attack.mu / 2.0) / u), least, most))
            found.append((mass, move, inner < attack.back[label], inner > attack.front[label]))
        return found

    lines = [pieces(label) for label in range(3)]
    places = np.argsort(orders, axis=-1)  # the place of every label in its order
    for first in range(3):
        chance = density[places[0, 0, middle, first]] / 3.0
        for mass, move, back, front in lines[first]:
            for second in range(3):
                place = places[1, int(back), middle + move, second]
                for mass2, _, back2, front2 in lines[second]:
                    if (back or back2) and not (front or front2):
                        total += chance * mass * density[place] / 3.0 * mass2
    return total


@pytest.mark.parametrize("limits", [(0.5, 2.0), (0.75, 1.33), (0.1, 3.0), (0.9, 5.0)])
def test_chances_are_sums_over_labels_and_outputs(limits: tuple[float, float]) -> None:
    attack = replace(SMALL, protocol=protocols.Adaptive("fixed:2", *limits))
    density = attack.densities
    assert density.mean() == pytest.approx(1.0)
    assert np.all((density >= limits[0] - 1e-12) & (density <= limits[1] + 1e-12))
    orders = attack._induction[2]
    for mean, chance in zip((0.0, 0.7), attack.chances, strict=True):
        assert enumerated(attack, orders, mean) == pytest.approx(chance, rel=1e-9)


def test_no_other_sampler_of_the_same_labels_leaks_more() -> None:
    orders = SMALL._induction[2]
    rng = np.random.default_rng(58)

    def gain(of: FloatArray) -> float:
        without, with_record = (enumerated(SMALL, of, mean) for mean in (0.0, 0.7))
        return without - math.e * with_record

    best, worse = gain(orders), 0
    for case in range(12):
        other = orders.copy()
        changed = rng.random(orders.shape[:3]) < (1.0 if case < 6 else 0.5)
        other[changed] = rng.permuted(orders[changed], axis=-1)
        assert gain(other) <= best + 1e-12
        worse += gain(other) < best - 1e-6
    assert worse > 6


def test_simulated_tunings_release_the_back_as_often_as_computed() -> None:
    attack = replace(
        SMALL,
        protocol=protocols.Adaptive("tnb:0,0.1", 0.5, 2.0),
        front=(3.5, 1.5, 2.8),
        spacing=0.25,
    )
    rng = np.random.default_rng(6)
    # Two exact binomial tests, which fail by chance with probability 2e-4.
    for mean, chance in zip((0.0, 0.7), attack.chances, strict=True):
        count = int(attack.play(rng, 40_000, mean).sum())
        assert stats.binomtest(count, 40_000, chance).pvalue > 1e-4
    assert attack.chances[0] > 2.0 * attack.chances[1]


@pytest.mark.slow
def test_the_attack_attains_more_than_earlier_ones_and_less_than_the_bound() -> None:
    protocol = protocols.Adaptive("tnb:0,0.01", 0.5, 2.0)
    limits = (5.498, 1.772, 4.119), (-3.893, -6.428, -5.875)
    attack = LabelAttack(0.24721, protocol, *limits, tuned_to=2.2987)
    # The attack with two labels attains 1.950. A finer lattice attains 2.300.
    assert attack.epsilon(DELTA) == pytest.approx(2.2987, abs=2e-4)
    assert attack.epsilon(0.5) == 0.0
    # With constant densities it is random search, whose worst order attains 1.449.
    free = replace(attack, protocol=protocols.Adaptive("tnb:0,0.01", 1.0, 1.0))
    assert free.epsilon(DELTA) < 1.449


@pytest.mark.slow
def test_the_search_finds_the_attack_and_a_finer_lattice_attains_more() -> None:
    protocol = protocols.Adaptive("tnb:0,0.01", 0.5, 2.0)
    attack = attacks.label_attack(0.24721, protocol, DELTA)
    bound = upper_bounds.tuning_cost(GaussianMechanism(0.24721), protocol, DELTA).epsilon
    assert attack.epsilon(DELTA) == pytest.approx(2.3001, abs=2e-4)
    assert attack.epsilon(DELTA) < bound


@pytest.mark.slow
def test_a_search_that_stays_at_its_start_is_followed_by_another() -> None:
    """At mu 1, the first search gained nothing over its start, 7.612."""
    protocol = protocols.Adaptive("tnb:0,0.01", 0.5, 2.0)
    attack = attacks.label_attack(1.0, protocol, DELTA)
    assert attack.epsilon(DELTA) == pytest.approx(7.7607, abs=2e-3)
    assert (
        attack.epsilon(DELTA)
        < upper_bounds.tuning_cost(GaussianMechanism(1.0), protocol, DELTA).epsilon
    )
