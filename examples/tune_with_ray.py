"""Ray Tune carries out what was drawn before it saw anything: K runs, and their candidates."""

import contextlib
import io
import tempfile

import numpy as np
import ray
from ray import tune
from sklearn.datasets import load_digits

from audit import repetitions, tuning, upper_bounds

EPSILON, DELTA, LAW, STEPS = 2.0, 1e-5, "tnb:0,0.2", 30
NOISE = upper_bounds.calibrate_noise(LAW, target_epsilon=EPSILON, target_delta=DELTA, steps=STEPS)


def train(config):
    """Noisy full-batch gradient descent on softmax regression, gradients clipped to norm 1."""
    candidate = config["candidate"]
    images, labels = load_digits(return_X_y=True)
    images = images / np.linalg.norm(images, axis=1, keepdims=True)
    x, y = images[:1200], labels[:1200]  # the last 597 stand for public records
    rng, weights = np.random.default_rng(candidate["seed"]), np.zeros((64, 10))
    for _ in range(STEPS):
        chances = np.exp(x @ weights)
        errors = chances / chances.sum(axis=1, keepdims=True) - np.eye(10)[y]
        errors /= np.maximum(np.linalg.norm(errors, axis=1, keepdims=True), 1.0)
        noise = rng.normal(0.0, NOISE, weights.shape)
        weights -= candidate["learning_rate"] / len(x) * (x.T @ errors + noise)
    right = np.argmax(images[1200:] @ weights, axis=1) == labels[1200:]
    return {"score": float(right.mean()), "weights": weights.tolist()}


def candidates():
    """K of them, drawn from the system's entropy. No seed, and K is told to nobody."""
    rng = np.random.default_rng()
    space = tuning.Space.parse({"learning_rate": tuning.LogUniform(0.1, 10.0)})
    count = int(repetitions.parse_repetitions(LAW).sample(rng, 1)[0])
    return [space.at(space.draw(rng)) | {"seed": int(rng.integers(2**63))} for _ in range(count)]


if __name__ == "__main__":
    drawn = candidates()
    # Ray prints and keeps every run, with its score and model. Losers must not stay: all of it goes
    # to a folder that is deleted, and what is printed to nowhere.
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        ray.init(_temp_dir=folder, include_dashboard=False, log_to_driver=False),
    ):
        # A list, each once: no search algorithm, no scheduler that stops trials, no time limit.
        results = tune.Tuner(
            train,
            param_space={"candidate": tune.grid_search(drawn)},
            tune_config=tune.TuneConfig(metric="score", mode="max"),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
    assert len(results) == len(drawn)  # a run that failed counts, and loses
    best = results.get_best_result()  # the only one that may be released
    rate, score = best.config["candidate"]["learning_rate"], best.metrics["score"]
    print(f"learning rate {rate:.3g}: {score:.1%} right, ({EPSILON:g}, {DELTA:g})-DP in all")
