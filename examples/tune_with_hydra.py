"""Hydra configures one job, the whole study; its runs are no jobs of their own.

python examples/tune_with_hydra.py epsilon=1 protocol=tnb:0,0.05
"""

from dataclasses import dataclass

import hydra
import numpy as np
from hydra.core.config_store import ConfigStore
from sklearn.datasets import load_digits

from audit import tuning


@dataclass
class Config:
    """What may be set on the command line; candidates may not, they are drawn."""

    epsilon: float = 2.0
    delta: float = 1e-5
    protocol: str = "tnb:0,0.2"
    steps: int = 30
    slowest: float = 0.1
    fastest: float = 10.0


ConfigStore.instance().store(name="study", node=Config)


def train(trial):
    """Noisy full-batch gradient descent on softmax regression, gradients clipped to norm 1."""
    images, labels = load_digits(return_X_y=True)
    images = images / np.linalg.norm(images, axis=1, keepdims=True)
    x, y = images[:1200], labels[:1200]  # the last 597 stand for public records
    rng, weights = np.random.default_rng(trial.seed), np.zeros((64, 10))
    for _ in range(trial.steps):
        chances = np.exp(x @ weights)
        errors = chances / chances.sum(axis=1, keepdims=True) - np.eye(10)[y]
        errors /= np.maximum(np.linalg.norm(errors, axis=1, keepdims=True), 1.0)
        noise = rng.normal(0.0, trial.noise_multiplier, weights.shape)
        weights -= trial.candidate["learning_rate"] / len(x) * (x.T @ errors + noise)
    right = np.argmax(images[1200:] @ weights, axis=1) == labels[1200:]
    return tuning.Outcome(score=float(right.mean()), model=weights)


@hydra.main(version_base=None, config_name="study")
def main(config: Config) -> None:
    """Tunes; one call, one job."""
    study = tuning.Study(
        space={"learning_rate": tuning.LogUniform(config.slowest, config.fastest)},
        protocol=config.protocol,
        epsilon=config.epsilon,
        delta=config.delta,
        steps=config.steps,
        scored_on="public",
        folder=None,
    )
    best = study.run(train)
    if best.candidate is not None:
        print(f"learning rate {best.candidate['learning_rate']:.3g}: {best.score:.1%} right")
    print(study.certificate.statement)


if __name__ == "__main__":
    main()
