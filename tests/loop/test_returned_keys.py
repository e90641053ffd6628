"""Returned random keys of JAX: those that reveal the noise are reported, and no others."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import audit

jax = pytest.importorskip("jax")
SIGMA, STEPS = 1.0, 4


def data() -> Any:
    random = np.random.default_rng(0)
    return random.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 2


def train(records: Any, candidate: Any, seed: int, watch: Any, returned: str, chain: bool) -> Any:
    """Noisy sums of clipped rows, whose noise is drawn by a chain of keys or by one key."""
    first = key = jax.random.key(seed)
    x = jax.numpy.asarray(records.features)
    rows = x / jax.numpy.maximum(jax.numpy.linalg.norm(x, axis=1, keepdims=True), 1.0)
    weights = jax.numpy.zeros(3)
    watch.account(noise_multiplier=SIGMA, sampling_rate=1.0, steps=STEPS)
    for step in range(STEPS):
        if chain:
            key, used = jax.random.split(key)
        else:
            used = jax.random.fold_in(key, step)
        noisy = rows.sum(0) + SIGMA * jax.random.normal(used, (3,))
        weights = weights - 0.1 * watch.step(noisy, weights)
    keys = {"first": first, "last": key, "fresh": jax.random.key(7)}
    return {"weights": weights, "key": jax.random.key_data(keys[returned])}


@pytest.mark.parametrize(
    ("returned", "chain", "reported"),
    [
        ("first", True, True),
        ("last", True, False),  # the noise cannot be computed from a key that was split off later
        ("last", False, True),
        ("fresh", True, False),
    ],
)
def test_a_key_is_reported_if_the_noise_follows_from_it(
    returned: str, chain: bool, reported: bool
) -> None:
    loop = partial(train, returned=returned, chain=chain)
    result = audit.check(loop, data(), attack=False)
    assert result.premises is not None
    kinds = [f.kind for f in result.premises.findings]
    assert kinds == (["generator state"] if reported else []), str(result)


def in_compiled_code(noises: Any, step: int, shape: tuple[int, ...]) -> Any:
    return jax.random.normal(jax.random.fold_in(noises, step), shape)


def beside_compiled_noise(
    records: Any, candidate: Any, seed: int, watch: Any, noise_of_key: bool
) -> Any:
    """Compiled code draws the noise; the returned key draws numbers for an augmentation."""
    key, noises = jax.random.split(jax.random.key(seed))
    x = jax.numpy.asarray(records.features)
    compiled = jax.jit(in_compiled_code, static_argnums=2)
    weights = jax.numpy.zeros(3)
    watch.account(noise_multiplier=SIGMA, sampling_rate=1.0, steps=STEPS)
    for step in range(STEPS):
        drawn = jax.random.normal(jax.random.fold_in(key, step), (3,))
        turned = x * jax.numpy.where(drawn > 0, 1.0, -1.0)
        rows = turned / jax.numpy.maximum(jax.numpy.linalg.norm(turned, axis=1, keepdims=True), 1.0)
        noise = compiled(noises, step, (3,))
        if noise_of_key:
            noise = jax.random.normal(jax.random.fold_in(key, STEPS + step), (3,))
        weights = weights - 0.1 * watch.step(rows.sum(0) + SIGMA * noise, weights)
    return {"weights": weights, "key": jax.random.key_data(key)}


@pytest.mark.parametrize("noise_of_key", [False, True])
def test_a_key_of_other_draws_is_noted_if_compiled_code_draws_the_noise(noise_of_key: bool) -> None:
    result = audit.check(
        partial(beside_compiled_noise, noise_of_key=noise_of_key), data(), attack=False
    )
    assert result.premises is not None
    kinds = [f.kind for f in result.premises.findings]
    assert ("generator state" in kinds) == noise_of_key, str(result)
    assert any("a random key" in note for note in result.premises.notes) != noise_of_key


def batches_beside_compiled_noise(
    records: Any, candidate: Any, seed: int, watch: Any, batches_of_key: bool
) -> Any:
    """The returned key draws the initial weights, and the batches or an augmentation."""
    key, others = jax.random.split(jax.random.key(seed))
    x = jax.numpy.asarray(records.features)
    rows = x / jax.numpy.maximum(jax.numpy.linalg.norm(x, axis=1, keepdims=True), 1.0)
    compiled = jax.jit(in_compiled_code, static_argnums=2)
    weights = watch.start(jax.random.uniform(key, (3,)))
    watch.account(noise_multiplier=SIGMA, sampling_rate=0.5, steps=STEPS)
    for step in range(STEPS):
        used = jax.random.fold_in(key, step)
        turned = rows * jax.numpy.where(jax.random.uniform(used, (3,)) > 0.5, 1.0, -1.0)
        draw = used if batches_of_key else jax.random.fold_in(others, STEPS + step)
        batch = jax.jit(jax.random.bernoulli, static_argnums=2)(draw, 0.5, (len(x),))
        if batches_of_key:
            batch = jax.random.bernoulli(draw, 0.5, (len(x),))
        noisy = (turned * batch[:, None]).sum(0) + SIGMA * compiled(others, step, (3,))
        weights = weights - 0.1 * watch.step(noisy, weights)
    return {"weights": weights, "key": jax.random.key_data(key)}


@pytest.mark.parametrize("batches_of_key", [False, True])
def test_a_key_that_draws_batches_and_other_uniform_numbers_is_reported(
    batches_of_key: bool,
) -> None:
    loop = partial(batches_beside_compiled_noise, batches_of_key=batches_of_key)
    result = audit.check(loop, data(), attack=False)
    assert result.premises is not None
    kinds = [f.kind for f in result.premises.findings]
    assert ("generator state" in kinds) == batches_of_key, str(result)
    assert any("a random key" in note for note in result.premises.notes) != batches_of_key


def initial_weights_of_a_fixed_key(records: Any, candidate: Any, seed: int, watch: Any) -> Any:
    """Noise by the returned key, and initial weights by another one."""
    key, x = jax.random.key(seed), jax.numpy.asarray(records.features)
    rows = x / jax.numpy.maximum(jax.numpy.linalg.norm(x, axis=1, keepdims=True), 1.0)
    weights = watch.start(jax.random.normal(jax.random.key(0), (3,)))
    watch.account(noise_multiplier=SIGMA, sampling_rate=1.0, steps=STEPS)
    for step in range(STEPS):
        noise = jax.random.normal(jax.random.fold_in(key, step), (3,))
        weights = weights - 0.1 * watch.step(rows.sum(0) + SIGMA * noise, weights)
    return {"weights": weights, "key": jax.random.key_data(key)}


def test_a_key_of_the_noise_is_reported_although_another_one_draws_the_weights() -> None:
    result = audit.check(initial_weights_of_a_fixed_key, data(), attack=False)
    assert result.premises is not None
    assert [f.kind for f in result.premises.findings] == ["generator state"], str(result)
