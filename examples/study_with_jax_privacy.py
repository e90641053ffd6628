"""A study and a check of a loop with jax_privacy: Poisson sampling, clipped sums, saved keys."""

import jax
import jax_privacy
import numpy as np
import optax
from sklearn.datasets import load_digits

from audit import tuning

IMAGES, LABELS = load_digits(return_X_y=True)
IMAGES = (IMAGES / 16).astype(np.float32)
PRIVATE, PUBLIC = (IMAGES[:1200], LABELS[:1200]), (IMAGES[1200:], LABELS[1200:])
BUDGET = {"epsilon": 3.0, "delta": 1e-5, "steps": 40, "sampling_rate": 0.1}  # public
CLIP, BATCH = 1.0, 120  # a constant divisor, which is not computed from the records


def loss(weights, x, y, is_sampled):
    """Cross-entropy of the sampled records, summed."""
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ weights, y)
    return (is_sampled * losses).sum()


CLIPPED = jax_privacy.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=(1, 2, 3))
GRADIENTS = jax.jit(CLIPPED)


def train(trial, records):
    """One run; its score is the accuracy on public records."""
    generator, key = np.random.default_rng(trial.seed), jax.random.key(trial.seed)
    optimizer = optax.sgd(trial.candidate["learning_rate"] / BATCH, momentum=0.5)
    weights = jax.numpy.zeros((records[0].shape[1], 10))
    moments, first = optimizer.init(weights), 0
    if state := trial.load_state(generator=generator, moments=moments):
        weights, moments, key, first = (state[n] for n in ("weights", "moments", "key", "steps"))
    for step in range(first, trial.steps):
        is_sampled = (generator.random(len(records[0])) < trial.sampling_rate).astype(np.float32)
        total, (key, of_step) = GRADIENTS(weights, *records, is_sampled), jax.random.split(key)
        noise = CLIP * trial.noise_multiplier * jax.random.normal(of_step, total.shape)
        noisy = trial.watch.step(total + noise, weights)  # in a study, only the rehearsal looks
        updates, moments = optimizer.update(noisy, moments)
        weights = optax.apply_updates(weights, updates)
        if (step + 1) % 10 == 0:
            values = {"weights": weights, "moments": moments, "key": key}
            trial.save_state(step + 1, generator=generator, **values)
    score = np.mean(np.argmax(PUBLIC[0] @ weights, axis=1) == PUBLIC[1])
    return tuning.Outcome(float(score), np.asarray(weights))


if __name__ == "__main__":
    study = tuning.Study({"learning_rate": [2.0, 4.0, 8.0]}, "geometric:0.3", **BUDGET)
    study.rehearse(train, tuple(part[:100] for part in PUBLIC))  # checks the loop on public records
    best = study.run(train, records=PRIVATE)  # resumes a study that was interrupted
    print(f"{best.candidate}, accuracy {best.score:.1%}. {study.certificate.statement}")
    print(study.premises)
