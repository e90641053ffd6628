"""Random numbers that depend only on a run's seed."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from audit.dpsgd.extensions import load_extension

if TYPE_CHECKING:
    import torch

Words = NDArray[np.uint64]


# The portable extension, because only torch, which is slow to import, knows what others would run.
_compiled = load_extension("noise", "DEFAULT")
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MERSENNE_WORDS = 624


def _mix(z: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection that mixes all bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def words(seeds: Words, stream: int, count: int) -> Words:
    """Random 64-bit words [R, count] by SplitMix64, as a function of (seed, stream, index)."""
    counter = np.arange(1, count + 1, dtype=np.uint64) * _GAMMA
    return _mix(_keys(seeds, stream)[:, None] + counter)


def _keys(seeds: Words, stream: int) -> Words:
    """The start of each run's counter, [R]. Mixed seeds share no sequence with nearby ones."""
    return _mix(_mix(seeds) + np.uint64(stream + 1))


def uniforms(seeds: Words, stream: int) -> NDArray[np.float64]:
    """One uniform number in (0, 1) per run, with 53 bits, [R]."""
    high = words(seeds, stream, 1)[:, 0] >> np.uint64(11)
    return (high.astype(np.float64) + 0.5) * 2.0**-53


def normals(seeds: Words, stream: int) -> NDArray[np.float64]:
    """One standard normal number per run, [R], by inversion.

    One bit determines the sign and 53 other bits the magnitude, so both tails are resolved down to
    a probability of 2^-55.
    """
    return _by_inversion(words(seeds, stream, 1)[:, 0])


def normal_rows(seeds: Words, stream: int, count: int) -> NDArray[np.float64]:
    """Standard normal numbers of every run, [R, count]; `_noise.c` agrees to a relative 2e-15."""
    if _compiled is None:
        return _by_inversion(words(seeds, stream, count))
    keys, rows = _keys(seeds, stream), np.empty((len(seeds), count))
    _compiled.normal_rows(keys.ctypes.data, len(keys), rows.ctypes.data, count)
    return rows


def _by_inversion(word: Words) -> NDArray[np.float64]:
    tail = ((word >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54
    z = ndtri(tail)
    return np.where(word & np.uint64(1), z, -z)


def generators(seeds: Words, stream: int, device: str) -> "list[torch.Generator]":
    """One torch generator per run.

    On a CPU torch seeds its Mersenne twister with only 32 bits: among 43,000 runs, two would share
    their noise with probability 0.2. This function sets the whole state instead.
    """
    import torch

    made = [torch.Generator(device=device) for _ in seeds]
    if torch.device(device).type != "cpu":
        for generator, word in zip(made, words(seeds, stream, 1)[:, 0], strict=True):
            generator.manual_seed(int(word))
        return made
    for generator, row in zip(made, words(seeds, stream, _MERSENNE_WORDS), strict=True):
        generator.set_state(torch.from_numpy(mersenne_state(row)))
    return made


def mersenne_state(key: Words) -> NDArray[np.uint8]:
    """The state, [5056] bytes, of a torch CPU generator from a key of [624] words of 32 bits."""
    state = np.zeros(1, _STATE)
    state["left"] = 1  # no word of the key is unused, so the generator twists first
    state["seeded"] = 1
    state["key"] = key & np.uint64(0xFFFFFFFF)
    return state.view(np.uint8)


# The layout of torch's CPUGeneratorImplState: the twister, then two cached normal numbers.
_STATE = np.dtype(
    [
        ("seed", "u8"),
        ("left", "i4"),
        ("seeded", "i4"),
        ("next", "u8"),
        ("key", "u8", _MERSENNE_WORDS),
        ("cached_normals", "u1", 40),
    ]
)
