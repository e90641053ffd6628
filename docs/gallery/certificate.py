from collections import Counter

import matplotlib.pyplot as plt
import numpy as np

import audit


def train(trial, records):
    noise = np.random.default_rng(trial.seed).normal()
    model = records[0].clip(-1, 1).sum() + trial.noise_multiplier * noise
    return audit.Outcome(-abs(model - trial.candidate["guess"]), model)


study = audit.Study(
    {"guess": [0.0, 1.0]}, "tnb:0,0.2", epsilon=3, delta=1e-5, steps=1, scored_on="public"
)
study.run(train, records=(np.ones(50), np.zeros(50)))
grounds = Counter(condition.ground.value for condition in study.certificate.conditions)
plt.bar_label(plt.barh(list(grounds), list(grounds.values())), padding=3)
plt.xticks(range(0, 15, 3))
plt.xlabel("conditions, by their ground")
print(study.certificate.statement)
