"""A custom canary and score: functions that are given by their dotted names.

python -m audit.run --threat NTCV --canary my_canary.all_white --score my_canary.confidence
"""

import numpy as np

import threat_models
from canaries import InputCanary
from threat_models import Observation


def all_white():
    """A white image with the label 9."""
    return InputCanary(np.ones((1, 8, 8), np.float32), label=9, name="all white")


def confidence(observation):
    """Scores of R runs, [R]: models with a smaller loss on the canary score higher."""
    canary = all_white()
    return -observation.loss(canary.features[None], np.array([canary.label]))


class Known(Observation):
    """Two runs with fixed losses."""

    def loss(self, features, labels):
        assert features.shape == (1, 1, 8, 8)
        return np.array([2.0, 0.5])


def test_a_threat_model_uses_both():
    model = threat_models.build(
        "NTCV",
        "my_canary.all_white",
        score="my_canary.confidence",
        dataset="DIGITS",
        train_size=5,
        validation_size=5,
    )
    assert model.canary == all_white()
    scores = model.score(Known(np.zeros(2), np.zeros(2)))
    assert scores.tolist() == [-2.0, -0.5]
