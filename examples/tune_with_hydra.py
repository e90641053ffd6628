"""Hydra configures one job: a whole private study with all its runs.

Run it with `python examples/tune_with_hydra.py epsilon=1 protocol=tnb:0,0.05`. Do not use
`--multirun` for candidates: the study must draw them.
"""

from dataclasses import dataclass

import hydra
import numpy as np
from hydra.core.config_store import ConfigStore
from sklearn.datasets import load_digits

from audit import tuning


@dataclass
class Config:
    """Settings of the study. The study draws the candidates, so they are not settings."""

    epsilon: float = 2.0
    delta: float = 1e-5
    protocol: str = "tnb:0,0.2"
    steps: int = 30
    lowest_rate: float = 0.1
    highest_rate: float = 10.0


ConfigStore.instance().store(name="study", node=Config)


def train(trial):
    """Noisy full-batch gradient descent on softmax regression with gradients clipped to norm 1."""
    images, labels = load_digits(return_X_y=True)
    images = images / np.linalg.norm(images, axis=1, keepdims=True)
    x, y = images[:1200], labels[:1200]  # the other 597 act as public records
    rng, weights = np.random.default_rng(trial.seed), np.zeros((64, 10))
    for _ in range(trial.steps):
        odds = np.exp(x @ weights)
        errors = odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[y]
        errors /= np.maximum(np.linalg.norm(errors, axis=1, keepdims=True), 1.0)
        noise = rng.normal(0.0, trial.noise_multiplier, weights.shape)
        weights -= trial.candidate["learning_rate"] / len(x) * (x.T @ errors + noise)
    is_correct = np.argmax(images[1200:] @ weights, axis=1) == labels[1200:]
    return tuning.Outcome(score=float(is_correct.mean()), model=weights)


@hydra.main(version_base=None, config_name="study")
def main(config: Config) -> None:
    """Runs the study."""
    study = tuning.Study(
        space={"learning_rate": tuning.LogUniform(config.lowest_rate, config.highest_rate)},
        protocol=config.protocol,
        epsilon=config.epsilon,
        delta=config.delta,
        steps=config.steps,
        scored_on="public",
        folder=None,
    )
    best = study.run(train)
    if best.candidate is not None:
        print(f"learning rate {best.candidate['learning_rate']:.3g}: accuracy {best.score:.1%}")
    print(study.certificate.statement)


if __name__ == "__main__":
    main()
