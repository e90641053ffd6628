"""Ray Tune executes K runs whose number and candidates were drawn before it starts."""

import contextlib
import io
import tempfile

import numpy as np
import ray
from ray import tune
from sklearn.datasets import load_digits

from audit import repetitions, tuning, upper_bounds

EPSILON, DELTA, PROTOCOL, STEPS = 2.0, 1e-5, "tnb:0,0.2", 30
NOISE = upper_bounds.calibrate_noise(
    PROTOCOL, target_epsilon=EPSILON, target_delta=DELTA, steps=STEPS
)


def train(config):
    """Noisy full-batch gradient descent on softmax regression with gradients clipped to norm 1."""
    candidate = config["candidate"]
    images, labels = load_digits(return_X_y=True)
    images = images / np.linalg.norm(images, axis=1, keepdims=True)
    x, y = images[:1200], labels[:1200]  # the other 597 act as public records
    rng, weights = np.random.default_rng(candidate["seed"]), np.zeros((64, 10))
    for _ in range(STEPS):
        odds = np.exp(x @ weights)
        errors = odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[y]
        errors /= np.maximum(np.linalg.norm(errors, axis=1, keepdims=True), 1.0)
        noise = rng.normal(0.0, NOISE, weights.shape)
        weights -= candidate["learning_rate"] / len(x) * (x.T @ errors + noise)
    is_correct = np.argmax(images[1200:] @ weights, axis=1) == labels[1200:]
    return {"score": float(is_correct.mean()), "weights": weights.tolist()}


def candidates():
    """Draws K candidates from the system's entropy, without a seed. K must stay secret."""
    rng = np.random.default_rng()
    space = tuning.Space.parse({"learning_rate": tuning.LogUniform(0.1, 10.0)})
    count = int(repetitions.parse_repetitions(PROTOCOL).sample(rng, 1)[0])
    return [space.at(space.draw(rng)) | {"seed": int(rng.integers(2**63))} for _ in range(count)]


if __name__ == "__main__":
    drawn = candidates()
    # Ray prints and stores the score and model of every run. Losing runs must not be revealed, so
    # the folder is deleted and the output is discarded.
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        ray.init(_temp_dir=folder, include_dashboard=False, log_to_driver=False),
    ):
        # Runs every candidate once, without a search algorithm, early stopping or a time limit.
        results = tune.Tuner(
            train,
            param_space={"candidate": tune.grid_search(drawn)},
            tune_config=tune.TuneConfig(metric="score", mode="max"),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
    assert len(results) == len(drawn)  # a failed run counts and loses
    best = results.get_best_result()  # the only run that may be released
    rate, score = best.config["candidate"]["learning_rate"], best.metrics["score"]
    print(f"learning rate {rate:.3g}: accuracy {score:.1%}, ({EPSILON:g}, {DELTA:g})-DP in total")
