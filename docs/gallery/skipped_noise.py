import matplotlib.pyplot as plt
import numpy as np

import audit

released = []


def train(records, candidate, seed, watch):
    random, model = np.random.default_rng(seed), np.zeros(8)
    watch.account(noise_multiplier=2.0, sampling_rate=0.5, steps=4)
    for step in range(4):
        x = records.features[random.random(len(records)) < 0.5]
        total = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)).sum(axis=0)
        noise = 2 * random.normal(size=8) if step > 0 else np.zeros(8)  # the mistake
        released.append((step + 1, np.std(noise)))
        model = model + watch.step(total + noise, model)
    return model


data = np.random.default_rng(0).normal(size=(40, 8)), np.zeros(40, dtype=int)
result = audit.check(train, data, attack=False)
plt.scatter(*np.array(released[:800]).T, alpha=0.2)
plt.xticks(range(1, 5))
plt.xlabel("step")
plt.ylabel("noise that the loop adds")
print(str(result).splitlines()[0])
