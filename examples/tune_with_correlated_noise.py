"""Private tuning over runs with correlated noise (a banded matrix mechanism), with an audit.

DP-FTRL and BandMF add noise that is correlated between steps: later noise cancels a part of the
earlier noise. One run is a Gaussian mechanism, so every bound of this package applies to a tuning
over such runs. This script tunes a linear model on scikit-learn's digits, compares independent
noise at the same privacy, and audits the tuning with lambda_c, the log-likelihood ratio of the
released run, shifted and scaled. Neighbouring data sets differ in one record, whose gradients are
zero in one of them (zero-out).

`python examples/tune_with_correlated_noise.py FOLDER` takes about half a minute on one core.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import audit
from audit import lower_bounds, repetitions, tuning, upper_bounds

STEPS, BANDS = 32, 8  # a record participates in every eighth step, so four times
PROTOCOL, EPSILON, DELTA = "geometric:0.2", 3.0, 1e-5
RATES = [1.0, 2.0, 4.0, 8.0, 16.0]

IMAGES, LABELS = load_digits(return_X_y=True)
IMAGES = IMAGES / np.linalg.norm(IMAGES, axis=1, keepdims=True)
PRIVATE, PUBLIC = slice(0, 1200), slice(1200, None)  # the last 597 act as public records
GROUP = 1200 // BANDS  # a constant: under zero-out neighbours the number of records is public
CANARY_GROUP = 3
CANARY_WEIGHT = (0, 0)  # pixel 0 is blank in all digits, so no record has a gradient there


def strategy():
    """Strategy matrix C [STEPS, STEPS], lower triangular with BANDS diagonals and unit columns.

    It is the square root of the matrix of prefix sums, cut off after BANDS diagonals: the banded
    square root factorization of Kalinin and Lampert 2024 (arXiv 2405.13763).
    """
    coefficients = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1, BANDS)))
    matrix = sum(c * np.eye(STEPS, k=-lag) for lag, c in enumerate(coefficients))
    return matrix / np.linalg.norm(matrix, axis=0)


def participation(group):
    """The steps of a group, [STEPS] zeros and ones: every eighth step."""
    return (np.arange(STEPS) % BANDS == group).astype(float)


def sensitivity(matrix):
    """How far one record with gradients of norm 1 moves C G, [STEPS, weights], at most.

    Two columns of C that are at least BANDS steps apart have no row in common. The squared
    distance is therefore the sum of the squared norms of the columns of the record's steps.
    Gradients may depend on earlier outputs (Denisov et al. 2022, arXiv 2202.08312, theorem 2.1).
    """
    norms = (matrix**2).sum(0)
    return max(np.sqrt(norms @ participation(group)) for group in range(BANDS))


def clipped_sum(x, y, weights):
    """Sum of the gradients of the cross-entropy, each clipped to norm 1, [64, 10]."""
    odds = np.exp(x @ weights)
    errors = odds / odds.sum(1, keepdims=True) - np.eye(10)[y]
    # A gradient is the product of a record of norm 1 and its errors, so it has their norm.
    errors /= np.maximum(np.linalg.norm(errors, axis=1, keepdims=True), 1.0)
    return x.T @ errors


def run(seed, rate, noise, matrix, canary=False):
    """One run: noisy gradient descent whose noise is C^-1 z with z ~ N(0, noise^2).

    Returns:
        The weights [64, 10], and the noisy sums of the canary's weight, [STEPS].
    """
    rng, weights = np.random.default_rng(seed), np.zeros((64, 10))
    correlated = np.linalg.solve(matrix, rng.normal(0.0, noise, (STEPS, weights.size)))
    watched = np.empty(STEPS)
    for step in range(STEPS):
        x, y = IMAGES[PRIVATE][step % BANDS :: BANDS], LABELS[PRIVATE][step % BANDS :: BANDS]
        total = clipped_sum(x, y, weights) + correlated[step].reshape(64, 10)
        if canary and step % BANDS == CANARY_GROUP:
            total[CANARY_WEIGHT] += 1.0
        watched[step] = total[CANARY_WEIGHT]
        weights = weights - rate / GROUP * total
    return weights, watched


def accuracy(weights):
    """Accuracy on public records."""
    return float((np.argmax(IMAGES[PUBLIC] @ weights, 1) == LABELS[PUBLIC]).mean())


def likelihood_ratio(watched, matrix, noise):
    """lambda_c of a run: N(0, 1) without the canary, and N(mu, 1) with it.

    C times the noisy sums has independent noise. The most powerful test of a known shift of
    independent Gaussian noise is the inner product with the shift (Neyman and Pearson).
    """
    shift = matrix @ participation(CANARY_GROUP)
    return float(shift @ matrix @ watched / (noise * np.linalg.norm(shift)))


def audited(noise, matrix, trials):
    """lambda_c of the released runs of `trials` tunings, half of them with the canary.

    Each tuning draws K and the candidates, trains, and releases its best run. The best has the
    highest public accuracy or, if the adversary chose the score, the highest lambda_c.

    Returns:
        For both scores: a list of lambda_c without the canary, and one with it.
    """
    rng = np.random.default_rng(0)
    found = {"accuracy": ([], []), "lambda_c": ([], [])}
    draws = repetitions.parse_repetitions(PROTOCOL).sample(rng, trials)
    for trial, count in enumerate(draws):
        is_in, runs = trial % 2, []
        for _ in range(int(count)):
            weights, watched = run(rng.integers(2**63), rng.choice(RATES), noise, matrix, is_in)
            runs.append((accuracy(weights), likelihood_ratio(watched, matrix, noise)))
        found["accuracy"][is_in].append(max(runs)[1])
        found["lambda_c"][is_in].append(max(ratio for _, ratio in runs))
    return found


def main(folder, trials=1000, repeats=10):
    """Tunes, compares independent noise, audits, and saves the certificate."""
    matrix = strategy()
    mu = upper_bounds.calibrate_mu_for_tuning(PROTOCOL, target_epsilon=EPSILON, target_delta=DELTA)
    noise, base = sensitivity(matrix) / mu, audit.GaussianMechanism(mu)
    print(f"sensitivity {sensitivity(matrix):.2f}, noise {noise:.3f}: one run is {mu:.3f}-GDP")

    def train(trial):
        weights, _ = run(trial.seed, trial.candidate["learning_rate"], noise, matrix)
        return tuning.Outcome(score=accuracy(weights), model=weights)

    study = tuning.Study(
        {"learning_rate": RATES}, PROTOCOL, EPSILON, DELTA, base=base, scored_on="public"
    )
    best = study.run(train)
    print(f"best: learning rate {best.candidate['learning_rate']}, accuracy {best.score:.1%}")
    print(study.certificate.statement)
    for ending in ("json", "txt", "html"):
        study.certificate.save(Path(folder) / f"certificate.{ending}")

    print(f"accuracy at the same epsilon, mean of {repeats} runs:")
    for rate in RATES:
        correlated, independent = (
            np.mean([accuracy(run(seed, rate, noise, kind)[0]) for seed in range(repeats)])
            for kind in (matrix, np.eye(STEPS))
        )
        print(
            f"  learning rate {rate:4}: correlated {correlated:.1%}, independent {independent:.1%}"
        )

    # The canary changes one weight, which no prediction uses. Accuracy therefore selects as if
    # lambda_c were one Gaussian number. If lambda_c selects, it is the largest of K such numbers.
    rank_sum = lower_bounds.RankSum()
    cases = {
        "accuracy": (base.epsilon(DELTA), lower_bounds.GaussianCurve(rule=rank_sum)),
        "lambda_c": (
            upper_bounds.reduced_exact(base, PROTOCOL, DELTA).epsilon,
            lower_bounds.LiftedCurve(PROTOCOL, rule=rank_sum),
        ),
    }
    print(f"epsilon that {trials} audited tunings with this canary prove with 95 % confidence:")
    for score, scores in audited(noise, matrix, trials).items():
        exact, curve = cases[score]
        out_scores, in_scores = map(np.array, scores)
        bound = audit.lower_bound(out_scores=out_scores, in_scores=in_scores, delta=DELTA).epsilon
        shaped = curve(out_scores, in_scores, DELTA).epsilon
        print(
            f"  best by {score}: {bound:.2f}, with the known shape {shaped:.2f}, exact {exact:.2f}"
        )
    print(f"  best by any score: at most {study.total_epsilon:.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
