"""A study of federated rounds: a round is a step, and a user is a record."""

import numpy as np

import audit
from audit import tuning

EXPECTED_USERS = 20  # per round; a constant, which is not the number of users that took part


def local_update(weights, x, y, rate):
    updated = weights.copy()
    for _ in range(3):  # steps on the device of the user
        updated -= rate * x.T @ (x @ updated - y) / len(y)
    return updated - weights


def train(trial, users):
    features, targets = users  # [users, records of a user, 5] and [users, records of a user]
    generator, weights = np.random.default_rng(trial.seed), np.zeros(5)
    for _ in range(trial.steps):  # rounds
        total = trial.noise_multiplier * generator.normal(size=5)
        for user in np.flatnonzero(generator.random(len(features)) < trial.sampling_rate):
            update = local_update(weights, features[user], targets[user], trial.candidate["rate"])
            total += update / max(np.linalg.norm(update), 1.0)  # one clipped update per user
        weights = weights + total / EXPECTED_USERS
    return audit.Outcome(
        -float(np.sum((weights - 1) ** 2)), weights
    )  # in place of a score on public records


if __name__ == "__main__":
    study = audit.Study(
        {"rate": tuning.LogUniform(0.1, 1.0)},
        "geometric:0.3",
        3.0,
        1e-5,
        steps=20,
        sampling_rate=0.1,
    )
    features = np.random.default_rng(0).normal(size=(200, 4, 5))
    best = study.run(train, records=(features, features.sum(axis=2)))
    print(best.candidate, study.certificate.statement)
