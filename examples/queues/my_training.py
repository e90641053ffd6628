"""The training function and the study of the scripts in this folder: replace them by your own."""

import numpy as np
from sklearn.datasets import load_digits

from audit import tuning

IMAGES, LABELS = load_digits(return_X_y=True)
PRIVATE, PUBLIC = slice(0, 1200), slice(1200, None)  # the last 597 act as public records
SAVE_EVERY = 10  # steps


def gradients(weights, x, y):
    """Gradient of the cross-entropy of each record, [n, 64 * 10]."""
    scores = np.exp(x @ weights - (x @ weights).max(axis=1, keepdims=True))
    errors = scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[y]
    return (x[:, :, None] * errors[:, None, :]).reshape(len(x), weights.size)  # also for no record


def train(trial, records):
    """One run of DP-SGD, which continues where an earlier attempt at it was cut."""
    (x, y), generator = records, np.random.default_rng(trial.seed)
    weights, first = np.zeros((x.shape[1], 10)), 0
    if state := trial.load_state(generator=generator):
        weights, first = state["weights"], state["steps"]
    for step in range(first, trial.steps):
        batch = generator.random(len(x)) < trial.sampling_rate
        rows = gradients(weights, x[batch], y[batch])
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        noise = trial.noise_multiplier * generator.normal(size=rows.shape[1])
        noisy = (rows.sum(axis=0) + noise).reshape(weights.shape)
        noisy = trial.watch.step(noisy, weights)  # in a study, only the rehearsal looks
        weights = weights - trial.candidate["learning_rate"] * noisy
        if (step + 1) % SAVE_EVERY == 0:
            trial.save_state(step + 1, generator=generator, weights=weights)
    is_correct = np.argmax(IMAGES[PUBLIC] / 16 @ weights, axis=1) == LABELS[PUBLIC]
    return tuning.Outcome(float(is_correct.mean()), weights)


def load_records():
    """The private records, which every worker reads or receives."""
    return IMAGES[PRIVATE] / 16, LABELS[PRIVATE]


def save(model, path):
    """Keeps the best model so far, so that an interruption does not repeat its training."""
    with open(path, "wb") as file:
        np.save(file, model)


load = np.load


def make_study(folder, **settings):
    """A study in a folder that all workers see; K has a limit, and so has the time."""
    defaults = {"protocol": "geometric:0.2@20", "epsilon": 3.0, "delta": 1e-5, "steps": 40}
    space = {"learning_rate": tuning.LogUniform(0.003, 0.1)}
    return tuning.Study(space, folder=folder, sampling_rate=0.1, **(defaults | settings))
