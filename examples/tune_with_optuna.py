"""An Optuna objective in a private study: the whole tuning is (3, 1e-5)-DP."""

import numpy as np
from sklearn.datasets import load_digits

from audit.integrations.optuna import PrivateStudy

images, labels = load_digits(return_X_y=True)
images = images / np.linalg.norm(images, axis=1, keepdims=True)
train, public = slice(0, 1200), slice(1200, None)  # the other 597 act as public records

study = PrivateStudy(
    protocol="geometric:0.2", direction="maximize", epsilon=3.0, delta=1e-5, steps=30, folder=None
)


def objective(trial):
    """Noisy full-batch gradient descent on softmax regression with gradients clipped to norm 1."""
    rate = trial.suggest_float("learning_rate", 5.0, 20.0, log=True)
    rng = np.random.default_rng(trial.user_attrs["seed"])
    x, y = images[train], labels[train]
    weights = np.zeros((x.shape[1], 10))
    for _ in range(trial.user_attrs["steps"]):
        odds = np.exp(x @ weights)
        errors = odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[y]
        # A record's gradient x e^T has norm |x| |e| = |e|.
        errors /= np.maximum(np.linalg.norm(errors, axis=1, keepdims=True), 1.0)
        noise = rng.normal(0.0, study.noise_multiplier, weights.shape)
        weights -= rate / len(x) * (x.T @ errors + noise)
    trial.set_user_attr("model", weights)
    return float(np.mean(np.argmax(images[public] @ weights, axis=1) == labels[public]))


best = study.optimize(objective)
print(f"noise multiplier {study.noise_multiplier:.3f}, computed before the first run")
if best.candidate is not None:
    print(f"learning rate {best.candidate['learning_rate']:.3g}: accuracy {best.score:.1%}")
print(study.certificate.statement)
