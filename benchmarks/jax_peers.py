"""Steps of DP-SGD in JAX: jax_privacy, and two forms written by hand, each compiled by `jit`.

"jax_ghost" computes gradient norms of Linear layers from activations and their gradients (ghost
norms), and "jax_vmap" computes every record's gradient, `vmap(grad)`, in microbatches, as
jax_privacy does. Every form takes many steps per call (`lax.scan`), of one run or of several
(`vmap`). The quickest of a few microbatches and numbers of runs is measured. Noise comes from JAX's
default generator; on a CPU, `rbg` was three times as slow. The smallest ratios of the engine to a
form in JAX are 1.2 for the MLP with 5,000 records (an Intel Xeon at a load of 6 to 9 on two
processors) and 11.8 for the ConvNet with 5,000 records (an AMD EPYC at a load of 9 on two
processors, "jax_ghost" in microbatches of 100).
"""

import functools
import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

PEERS = ("jax_privacy", "jax_ghost", "jax_vmap")
THREADS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""Value of XLA_FLAGS for one thread, which XLA reads when it starts."""
CLIP, NOISE, RATE = 1.0, 1.0, 0.01


def why_missing(peer: str, device: str) -> str | None:
    """The reason why a form cannot be measured here; None if it can."""
    if device != "cpu":
        return "JAX is measured on a CPU only"
    packages = ("jax", "optax", "jax_privacy") if peer == "jax_privacy" else ("jax", "optax")
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f'{package} is not installed; use: pip install ".[benchmarks]"'
    return None


class Network(NamedTuple):
    """The layers of a sequential model, and its parameters as pairs of a weight and a bias."""

    layers: list[nn.Module]
    parameters: list[tuple[Any, Any]]


def network(model: nn.Module) -> Network:
    """A sequential model of Conv2d, ReLU, MaxPool2d, Flatten and Linear in JAX.

    Records and kernels have their channels last.
    """
    import jax.numpy as jnp

    layers = [layer for layer in model.modules() if not isinstance(layer, nn.Sequential)]
    parameters = []
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            weight = layer.weight.detach().numpy()
            if weight.ndim == 4:
                weight = weight.transpose(2, 3, 1, 0)
            parameters.append((jnp.array(weight), jnp.array(layer.bias.detach().numpy())))
        elif not isinstance(layer, nn.ReLU | nn.MaxPool2d | nn.Flatten):
            raise NotImplementedError(type(layer).__name__)
    return Network(layers, parameters)


def convolution(layer: nn.Conv2d) -> dict[str, Any]:
    """The arguments of convolutions in JAX."""
    return {
        "window_strides": layer.stride,
        "padding": [(side, side) for side in layer.padding],
        "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
    }


def forward(layers: list[nn.Module], parameters: Any, x: Any, shifts: Any = None) -> Any:
    """Logits, and the inputs and outputs of the layers with parameters.

    `shifts` are added to the outputs of these layers: the gradient with respect to a shift is that
    of the output.
    """
    import jax
    from jax import lax

    inputs: list[Any] = []
    outputs: list[Any] = []
    for layer in layers:
        if isinstance(layer, nn.ReLU):
            x = jax.nn.relu(x)
        elif isinstance(layer, nn.Flatten):
            x = (x.transpose(0, 3, 1, 2) if x.ndim == 4 else x).reshape(len(x), -1)
        elif isinstance(layer, nn.MaxPool2d):
            size, stride = layer.kernel_size, layer.stride
            window, strides = (1, size, size, 1), (1, stride, stride, 1)
            x = lax.reduce_window(x, -np.inf, lax.max, window, strides, "VALID")
        else:
            weight, bias = parameters[len(inputs)]
            inputs.append(x)
            if isinstance(layer, nn.Linear):
                x = x @ weight.T + bias
            else:
                x = lax.conv_general_dilated(x, weight, **convolution(layer)) + bias
            if shifts is not None:
                x = x + shifts[len(outputs)]
            outputs.append(x)
    return x, (inputs, outputs)


def loss(layers: list[nn.Module], parameters: Any, x: Any, y: Any) -> Any:
    """Cross-entropy, summed over records."""
    import optax

    logits, _ = forward(layers, parameters, x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).sum()


def vmap_sum(layers: list[nn.Module], parameters: Any, x: Any, y: Any) -> Any:
    """The sum of clipped gradients by `vmap(grad)`."""
    import jax
    import jax.numpy as jnp

    def gradient(record: Any, label: Any) -> Any:
        return jax.grad(functools.partial(loss, layers))(parameters, record[None], label[None])

    gradients = jax.vmap(gradient)(x, y)
    squares = [(g**2).reshape(len(x), -1).sum(1) for g in jax.tree.leaves(gradients)]
    factors = jnp.minimum(1.0, CLIP / jnp.sqrt(sum(squares)))
    return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1), gradients)


def ghost_sum(layers: list[nn.Module], parameters: Any, x: Any, y: Any) -> Any:
    """The sum of clipped gradients by one backward pass, without gradients of Linear layers."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax import lax

    def shifted(shifts: Any) -> Any:
        logits, seen = forward(layers, parameters, x, shifts)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).sum(), seen

    _, (_, shapes) = jax.eval_shape(functools.partial(forward, layers), parameters, x)
    zeros = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    deltas, (inputs, _) = jax.grad(shifted, has_aux=True)(zeros)
    with_weights = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    kernels: list[Any] = []
    squared = jnp.zeros(len(x))
    for layer, activation, delta in zip(with_weights, inputs, deltas, strict=True):
        kernels.append(None)
        if isinstance(layer, nn.Linear):
            squared += (delta**2).sum(1) * ((activation**2).sum(1) + 1)
            continue
        # The gradients of kernels are smaller than the products of all pairs of positions.
        patches = lax.conv_general_dilated_patches(
            activation, layer.kernel_size, **convolution(layer)
        )
        kernels[-1] = jnp.einsum("mhwk,mhwo->mko", patches, delta)
        squared += (kernels[-1] ** 2).sum((1, 2)) + (delta.sum((1, 2)) ** 2).sum(1)
    factors = jnp.minimum(1.0, CLIP / jnp.sqrt(squared))
    sums = []
    for (weight, _), kernel, activation, delta in zip(
        parameters, kernels, inputs, deltas, strict=True
    ):
        if kernel is None:
            weighted = delta * factors[:, None]
            sums.append((weighted.T @ activation, weighted.sum(0)))
        else:
            height, width, channels, outputs = weight.shape
            total = jnp.tensordot(factors, kernel, 1).reshape(channels, height, width, outputs)
            sums.append((total.transpose(1, 2, 0, 3), jnp.tensordot(factors, delta.sum((1, 2)), 1)))
    return sums


def clipped_sum(peer: str, layers: list[nn.Module], batch: int) -> Callable[[Any, Any, Any], Any]:
    """A function from parameters, records and labels to the sum of clipped gradients.

    It takes `batch` records at a time, which must divide the number of records.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    if peer == "jax_privacy":
        import jax_privacy

        of_loss = functools.partial(loss, layers)
        return jax_privacy.clipped_grad(
            of_loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), microbatch_size=batch
        )
    of_batch = {"jax_ghost": ghost_sum, "jax_vmap": vmap_sum}[peer]

    def sum_of(parameters: Any, x: Any, y: Any) -> Any:
        if batch == len(x):
            return of_batch(layers, parameters, x, y)

        def add(total: Any, part: Any) -> Any:
            return jax.tree.map(jnp.add, total, of_batch(layers, parameters, *part)), None

        parts = x.reshape(-1, batch, *x.shape[1:]), y.reshape(-1, batch)
        return lax.scan(add, jax.tree.map(jnp.zeros_like, parameters), parts)[0]

    return sum_of


class Variant(NamedTuple):
    """A microbatch, and the number of runs that are trained together."""

    batch: int
    runs: int


def variants(records: int, has_convolutions: bool) -> Iterator[Variant]:
    """The variants of which the quickest is measured."""
    if records == 1:
        yield Variant(1, 1)
        yield Variant(1, 8)
        return
    # Several runs of a ConvNet take minutes per call.
    batches, runs = ((20, 100), (1,)) if has_convolutions else ((50, 500), (1, 8))
    for batch, together in itertools.product(batches, runs):
        if records % batch == 0:
            yield Variant(batch, together)
    if not has_convolutions:
        yield Variant(records, 1)


def trainer(
    peer: str, model: Network, x: Any, y: Any, steps: int, variant: Variant
) -> Callable[[], None]:
    """A function that trains the variant's runs for some steps, and waits for their end."""
    import jax
    import optax
    from jax import lax

    gradient = clipped_sum(peer, model.layers, variant.batch)
    sgd = optax.sgd(RATE)

    def of_jax_privacy(key: Any, x: Any, y: Any) -> Any:
        from jax_privacy import noise_addition

        privatizer = noise_addition.gaussian_privatizer(
            stddev=NOISE * gradient.sensitivity(), prng_key=key
        )

        def step(state: Any, _: Any) -> Any:
            parameters, noise_state, sgd_state = state
            noisy, noise_state = privatizer.update(gradient(parameters, x, y), noise_state)
            updates, sgd_state = sgd.update(noisy, sgd_state)
            return (optax.apply_updates(parameters, updates), noise_state, sgd_state), None

        state = model.parameters, privatizer.init(model.parameters), sgd.init(model.parameters)
        return lax.scan(step, state, None, steps)[0][0]

    def by_hand(key: Any, x: Any, y: Any) -> Any:
        def step(parameters: Any, step_key: Any) -> Any:
            total = gradient(parameters, x, y)
            noise = optax.tree.random_like(step_key, total, jax.random.normal)
            return jax.tree.map(
                lambda w, g, z: w - RATE * (g + NOISE * CLIP * z), parameters, total, noise
            ), None

        return lax.scan(step, model.parameters, jax.random.split(key, steps))[0]

    of_run = of_jax_privacy if peer == "jax_privacy" else by_hand
    keys = jax.random.split(jax.random.key(0), variant.runs)
    # The data are arguments: as constants, XLA would spend long on them.
    of_runs = jax.vmap(of_run, in_axes=(0, None, None)) if variant.runs > 1 else of_run
    train = jax.jit(of_runs)

    def call() -> None:
        jax.block_until_ready(train(keys if variant.runs > 1 else keys[0], x, y))

    return call


def quickest(
    peer: str, model: nn.Module, x: Tensor, y: Tensor, steps: int
) -> tuple[Callable[[], None], int]:
    """The quickest variant's function, and its number of runs."""
    if hasattr(os, "sched_setaffinity"):
        # XLA starts a thread per processor that it may use, when it is imported.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import jax.numpy as jnp

    converted = network(model)
    features = x.numpy().transpose(0, 2, 3, 1) if x.dim() == 4 else x.numpy()
    data = jnp.array(features), jnp.array(y.numpy())
    has_convolutions = any(isinstance(layer, nn.Conv2d) for layer in converted.layers)
    tried = []
    for variant in variants(len(x), has_convolutions):
        call = trainer(peer, converted, *data, steps, variant)
        call()  # compiles
        start = time.process_time()
        call()
        tried.append(((time.process_time() - start) / variant.runs, call, variant.runs))
    _, call, runs = min(tried, key=lambda measured: measured[0])
    return call, runs
