"""Gaussian noise and Poisson-sampled batches of R runs.

On a CPU every number is a function of the run's seed, the step and its position (`_noise.c`), so no
run needs a generator: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
3") and the transform of Box & Muller (1958). Every processor computes the same bits. Without a
compiler, numpy computes them at a thirtieth of the speed. A normal number has 31 bits of radius and
32 of angle; its absolute value is at most 6.66, which N(0, 1) exceeds with probability 3e-11.

A GPU uses one torch generator per run.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.dpsgd import streams
from audit.dpsgd.extensions import load_extension
from audit.dpsgd.parameters import OuterProduct, Parameters

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]

NOISE_STREAM, _BATCHES = 0, 1
_DEVICES = ("cpu",)
_GROUP = 16


_compiled = load_extension("noise", torch.backends.cpu.get_cpu_capability())


def gaussian_steps(
    seeds: NDArray[np.uint64],
    scales: NDArray[np.float64],
    steps: int,
    like: Tensor,
    size: int,
    steps_at_once: int,
) -> Iterator[Tensor]:
    """Yields, for every step, N(0, scale^2) noise of R runs, [R, size].

    The next iteration overwrites the tensor. It has the dtype and device of `like`; on a CPU it is
    drawn in float32. A GPU draws the noise of `steps_at_once` steps together.
    """
    if like.device.type not in _DEVICES:
        generators, stds = (
            streams.generators(seeds, NOISE_STREAM, str(like.device)),
            scales.tolist(),
        )

        def fill(run: int, rows: Tensor) -> None:
            rows.normal_(0, stds[run], generator=generators[run])

        yield from _in_blocks(like.new_empty(len(seeds), steps_at_once, size), steps, fill)
        return
    numbers = torch.empty(len(seeds), size)
    is_single = like.dtype == torch.float32
    exact = torch.from_numpy(scales)[:, None]
    with np.errstate(over="ignore"):  # a run with infinite noise diverges, which is reported
        factors = scales.astype(np.float32) if is_single else np.ones(len(seeds), np.float32)
    for step in range(steps):
        fill_normals(numbers, seeds, NOISE_STREAM, step, factors)
        yield numbers if is_single else numbers.to(like.dtype) * exact


def poisson_steps(
    seeds: NDArray[np.uint64],
    rate: float,
    steps: int,
    device: torch.device,
    size: int,
    steps_at_once: int,
) -> Iterator[Tensor]:
    """Yields the Poisson-sampled records, [R, size], of each step; a GPU draws several at once."""
    if device.type not in _DEVICES:
        generators = streams.generators(seeds, _BATCHES, str(device))
        buffer = torch.empty(len(seeds), steps_at_once, size, dtype=torch.float64, device=device)

        def fill(run: int, rows: Tensor) -> None:
            rows.uniform_(generator=generators[run])

        yield from (drawn < rate for drawn in _in_blocks(buffer, steps, fill))
        return
    for step in range(steps):
        taken = torch.empty(len(seeds), size, dtype=torch.bool)
        fill_batches(taken, seeds, _BATCHES, step, rate)
        yield taken


def fill_normals(
    numbers: Tensor, seeds: NDArray[np.uint64], stream: int, step: int, scales: Floats
) -> None:
    """Overwrites a float32 tensor [R, size] with normal numbers of R runs of the given scales."""
    runs, size = numbers.shape
    if _compiled is None:
        groups = -(-size // (4 * _GROUP))
        for row, seed, scale in zip(numbers, seeds.tolist(), scales, strict=True):
            words = philox(_key(seed), (0, step, stream, 0), groups)
            row.copy_(torch.from_numpy(normals(words, scale)[:size]))
        return
    seeds, scales = np.ascontiguousarray(seeds), np.ascontiguousarray(scales)
    addresses = (scales.ctypes.data, numbers.data_ptr())
    _compiled.normals(seeds.ctypes.data, runs, stream, step, *addresses, size)


def extension() -> Any:
    """The compiled extension `_noise.c`; None without a compiler."""
    return _compiled


def can_descend(weights: Tensor) -> bool:
    """Whether `descend` supports such weights: it needs a compiler, float32 and a CPU."""
    on_cpu = weights.device.type in _DEVICES
    return _compiled is not None and on_cpu and weights.dtype == torch.float32


def descend(
    state: Parameters,
    gradient: Sequence[OuterProduct],
    factors: Tensor,
    descent: Tensor,
    seeds: NDArray[np.uint64],
    step: int,
    scales: Floats,
) -> tuple[Tensor, Tensor]:
    """One step of R runs on at most one record: p = noise + factor * gradient, w += descent * p.

    Every weight is updated as soon as its noise is drawn, so p is never stored. `state` has the
    weights w, one [R, size] per parameter. `factors` is 1 where the record is in the batch and 0
    elsewhere, `descent` has the negative learning rates, and `scales` the noise's standard
    deviations, [R] each. Returns <p, gradient> and the first coordinate of p, [R] each.
    """
    # The extension receives addresses only, so these tensors must stay referenced.
    factored = [(left.contiguous(), right.contiguous()) for left, right in gradient]
    table = np.array(
        [
            (w.data_ptr(), left.data_ptr(), right.data_ptr(), left.shape[1], right.shape[1],
             len(right) < len(w))
            for w, (left, right) in zip(state, factored, strict=True)
        ],
        np.uint64,
    )  # fmt: skip
    products, firsts = torch.empty(2, len(seeds))
    _compiled.descend(
        seeds.ctypes.data, len(seeds), NOISE_STREAM, step, scales.ctypes.data, factors.data_ptr(),
        descent.data_ptr(), table.ctypes.data, len(table), products.data_ptr(), firsts.data_ptr(),
    )  # fmt: skip
    return products, firsts


def fill_batches(
    taken: Tensor, seeds: NDArray[np.uint64], stream: int, step: int, rate: float
) -> None:
    """Overwrites [R, size] bool with the records of R runs; the rate is rounded to 64 bits."""
    runs, size = taken.shape
    below = int(rate * 2**64)
    if _compiled is None:
        groups = -(-size // (2 * _GROUP))
        for row, seed in zip(taken, seeds.tolist(), strict=True):
            words = philox(_key(seed), (0, step, stream, 0), groups).astype(np.uint64)
            long = words[:, 0::2] << np.uint64(32) | words[:, 1::2]
            row.copy_(torch.from_numpy((long < np.uint64(below)).ravel()[:size]))
        return
    seeds = np.ascontiguousarray(seeds)
    _compiled.batches(seeds.ctypes.data, runs, stream, step, below, taken.data_ptr(), size)


def philox(key: tuple[int, int], counter: tuple[int, int, int, int], groups: int) -> Words:
    """Random words of Philox4x32-10, [groups, 4, 16], by group of 16 counters, word and counter."""
    positions = np.arange(groups * _GROUP, dtype=np.uint64) + np.uint64(counter[0])
    c = [positions & _LOW, *(np.full_like(positions, word) for word in counter[1:])]
    low, high = key
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> _HALF) ^ c[1] ^ np.uint64(low),
            b & _LOW,
            (a >> _HALF) ^ c[3] ^ np.uint64(high),
            a & _LOW,
        ]
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    words = np.stack([output.reshape(groups, _GROUP) for output in c], axis=1)
    return words.astype(np.uint32)


_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
# Minimax polynomials: of (ln(1 + t) - t + t^2 / 2) / t^3 on [sqrt(1/2) - 1, sqrt(2) - 1], with
# error 6e-9 of the logarithm; of (sin a / a - 1) / a^2 and (cos a - 1 + a^2 / 2) / a^4 on
# [0, pi / 4], with error 4e-9.
_LOGARITHM = (
    -7.634429838e-2, 1.276155034e-1, -1.316019507e-1, 1.420176247e-1, -1.662335648e-1,
    2.000122667e-1, -2.500082106e-1, 3.333333171e-1,
)  # fmt: skip
_SINE = (-1.951729790e-4, 8.332178136e-3, -1.666665494e-1)
_COSINE = (2.443315515e-5, -1.388731624e-3, 4.166664568e-2)


def normals(words: Words, scale: np.float32) -> Floats:
    """Normal numbers [groups * 64] of words [groups, 4, 16], bit for bit as by `_noise.c`."""
    radii, angles = words[:, 0::2], words[:, 1::2]
    single, integer = np.float32, np.int32
    u = ((radii >> np.uint32(1)).astype(integer).astype(single) + single(0.5)) * single(2.0**-31)
    bits = u.view(integer)
    e = (bits - integer(0x3F3504F3)) >> integer(23)
    t = (bits - (e << integer(23))).view(single) - single(1)
    y = (_polynomial(_LOGARITHM, t) * t - single(0.5)) * (t * t) + t
    y = e.astype(single) * single(6.931471806e-1) + y
    r = np.sqrt(y * single(-2)) * single(scale)

    shifted = angles + np.uint32(0x20000000)
    quarter = (shifted >> np.uint32(30)).astype(integer)
    within_quarter = (shifted & np.uint32(0x3FFFFFFF)).astype(integer) - integer(0x20000000)
    a = within_quarter.astype(single) * single(1.462918079e-9)
    q = a * a
    sine = _polynomial(_SINE, q) * q * a + a
    cosine = (_polynomial(_COSINE, q) * q - single(0.5)) * q + single(1)
    is_odd = quarter & 1 == 1
    x, y = np.where(is_odd, sine, cosine), np.where(is_odd, cosine, sine)
    x = np.where((quarter + 1) & 2, -x, x) * r
    y = np.where(quarter & 2, -y, y) * r
    return np.stack([x, y], axis=2).ravel()


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    y = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        y = y * x + np.float32(coefficient)
    return y


def _key(seed: int) -> tuple[int, int]:
    return seed % 2**32, seed >> 32


def _in_blocks(
    buffer: Tensor, steps: int, fill: Callable[[int, Tensor], object]
) -> Iterator[Tensor]:
    """Yields [R, size] for every step from a buffer [R, steps at once, size], filled run by run."""
    at_once = buffer.shape[1]
    for start in range(0, steps, at_once):
        rows = min(at_once, steps - start)
        for run, numbers in enumerate(buffer):
            fill(run, numbers[:rows])
        for row in range(rows):
            yield buffer[:, row]
