"""Noise: Philox's known answers, equal bits from all implementations, and distributions.

Each statistical test has a false-alarm rate of 1e-4.
"""

import functools
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
import scipy.stats as st
import torch
from scipy.special import ndtr, ndtri
from toy import ALARM, assert_uncorrelated, run_batch

import threat_models
from audit.dpsgd import DpSgdSettings, make_engine, noise
from audit.dpsgd.extensions import load_extension

torch.set_num_threads(1)
ALL = 2**32 - 1
# From Random123's file of known answers (Salmon et al. 2011): key, counter, the four words.
KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL, ALL), (ALL, ALL, ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
WIDTHS = ("DEFAULT", "AVX2", "AVX512")


@pytest.fixture(params=WIDTHS)
def extension(request: pytest.FixtureRequest) -> Any:
    narrower = WIDTHS.index(request.param)
    if torch.backends.cpu.get_cpu_capability() not in WIDTHS[narrower:] and narrower:
        pytest.skip(f"a processor without {request.param}")
    found = load_extension("noise", request.param)
    if found is None:
        pytest.skip("no compiler when this was installed")
    return found


@pytest.mark.parametrize(("key", "counter", "words"), KNOWN)
def test_known_answers(
    key: tuple[int, int], counter: tuple[int, int, int, int], words: tuple[int, int, int, int]
) -> None:
    assert tuple(noise.philox(key, counter, 1)[0, :, 0]) == words


@pytest.mark.parametrize(("key", "counter", "words"), KNOWN)
def test_known_answers_compiled(
    extension: str,
    key: tuple[int, int],
    counter: tuple[int, int, int, int],
    words: tuple[int, int, int, int],
) -> None:
    found = np.empty(64, np.uint32)
    extension.words(key, counter, found.ctypes.data, 64)
    assert tuple(found[::16]) == words
    # Later numbers use consecutive counters.
    for size in (1, 15, 64, 100, 1000):
        found = np.zeros(size + 1, np.uint32)
        extension.words(key, counter, found.ctypes.data, size)
        expected = noise.philox(key, counter, 16).ravel()
        np.testing.assert_array_equal(found[:size], expected[:size])
        assert found[size] == 0  # nothing is written past the end


@pytest.mark.parametrize("size", [1, 63, 64, 362, 4321])
def test_all_implementations_give_the_same_bits(
    extension: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    seeds = np.array([0, 1, 2**32, 2**64 - 1], dtype=np.uint64)
    scales = np.array([1.0, 0.3, 1e-30, 1e30], dtype=np.float32)
    found = []
    for path in (extension, None):
        monkeypatch.setattr(noise, "_compiled", path)
        numbers, taken = torch.zeros(4, size), torch.zeros(4, size, dtype=torch.bool)
        noise.fill_normals(numbers, seeds, 0, 7, scales)
        noise.fill_batches(taken, seeds, 1, 7, 0.3)
        found.append((numbers.view(torch.int32), taken))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("is_shared", [True, False])
def test_fused_step_equals_its_parts(
    extension: str, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    """The weights' bits equal those of separate operations; the product equals up to rounding."""
    monkeypatch.setattr(noise, "_compiled", extension)
    generator = torch.Generator().manual_seed(0)
    runs, sizes = 3, ((7, 785), (7, 1), (1, 5000))
    normal = functools.partial(torch.randn, generator=generator)
    gradient = [(normal(runs, m), normal(1 if is_shared else runs, n)) for m, n in sizes]
    state = [normal(runs, m * n) for m, n in sizes]
    factors, descent = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([-0.1, -0.2, -0.3])
    seeds, scales = np.array([1, 2, 3], np.uint64), np.array([0.5, 1, 2], np.float32)
    released = torch.empty(runs, sum(w.shape[1] for w in state))
    noise.fill_normals(released, seeds, 0, 7, scales)
    expected, products, moved = [], torch.zeros(runs, dtype=torch.float64), []
    for w, (left, right), p in zip(
        state, gradient, released.split([w.shape[1] for w in state], dim=1), strict=True
    ):
        product = (left[:, :, None] * right[:, None]).flatten(1)
        p += (right[:, None] * (left * factors[:, None])[:, :, None]).flatten(1)
        products += (product.double() * p.double()).sum(1)
        moved.append(p)
        expected.append(w + p * descent[:, None])
    found, first = noise.descend(state, gradient, factors, descent, seeds, 7, scales)
    for w, wanted in zip(state, expected, strict=True):
        assert torch.equal(w, wanted)
    assert torch.equal(first, moved[0][:, 0])
    torch.testing.assert_close(found.double(), products, rtol=1e-5, atol=1e-3)


def drawn(seeds: np.ndarray, stream: int = 0, step: int = 0, size: int = 1 << 12) -> np.ndarray:
    numbers = torch.empty(len(seeds), size)
    ones = np.ones(len(seeds), np.float32)
    noise.fill_normals(numbers, np.asarray(seeds, dtype=np.uint64), stream, step, ones)
    return numbers.double().numpy()


def test_numbers_follow_box_and_muller() -> None:
    words = noise.philox((5, 6), (0, 0, 0, 0), 1000).astype(np.float64)
    radius = np.sqrt(-2 * np.log((np.floor(words[:, 0::2] / 2) + 0.5) * 2.0**-31))
    angle = 2 * np.pi * words[:, 1::2] * 2.0**-32
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).ravel()
    found = noise.normals(noise.philox((5, 6), (0, 0, 0, 0), 1000), np.float32(1))
    # The error is relative to the radius, because the sine may be nearly 0.
    assert np.abs(found - expected).max() < 2e-6


def test_extreme_words_give_finite_numbers() -> None:
    ends = np.array([0, 1, 2**31, ALL - 1, ALL], dtype=np.uint32)
    words = np.zeros((len(ends) ** 2, 4, 16), np.uint32)
    words[:, 0::2] = np.repeat(ends, len(ends))[:, None, None]
    words[:, 1::2] = np.tile(ends, len(ends))[:, None, None]
    found = noise.normals(words, np.float32(1))
    assert np.isfinite(found).all()
    assert np.abs(found).max() == pytest.approx(np.sqrt(64 * np.log(2)), rel=1e-6)


@pytest.mark.parametrize("count", [1 << 24, pytest.param(10**9, marks=pytest.mark.slow)])
def test_moments(count: int) -> None:
    # The first eight moments are within their standard errors. Truncation at 6.66 changes the
    # eighth by 1e-4; its standard error for 10^9 numbers is 0.04.
    runs, size = 16, 1 << 13
    steps = -(-count // (runs * size))
    sums, buffer = np.zeros(8), np.empty((runs, size))
    for step in range(steps):
        z = drawn(np.arange(runs), step=step, size=size)
        np.copyto(buffer, z)
        for i in range(8):
            sums[i] += buffer.sum()
            buffer *= z
    even = [1.0, 3.0, 15.0, 105.0, 945.0, 10395.0, 135135.0, 2027025.0]
    for power, total in enumerate(sums, start=1):
        mean = even[power // 2 - 1] if power % 2 == 0 else 0.0
        error = np.sqrt((even[power - 1] - mean**2) / (steps * runs * size))
        assert abs(total / (steps * runs * size) - mean) < st.norm.isf(ALARM / 16) * error


# The tests of dieharder that its authors rate as good and that take at most a minute.
BATTERY = (0, 2, 3, 8, 9, 10, 11, 12, 13, 15, 16, 100, 101, 206, 207, 208, 209)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dieharder") is None, reason="needs dieharder (apt, brew)")
@pytest.mark.parametrize("number", BATTERY)
def test_dieharder(number: int) -> None:
    # The words of many runs and steps: consecutive seeds, 1,024 words of each at a time.
    command = ["dieharder", "-d", str(number), "-g", "200", "-D", "test_name", "-D", "pvalues"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as battery:
        words, step = np.empty((1 << 10, 1 << 10), np.uint32), 0
        try:
            while True:
                for run, row in enumerate(words):
                    noise._compiled.words((run, 0), (0, step, 0, 0), row.ctypes.data, len(row))
                battery.stdin.write(words)  # type: ignore[call-overload]
                step += 1
        except BrokenPipeError:
            pass
        printed = battery.stdout.read().decode()
    found = [float(line.split("|")[1]) for line in printed.splitlines() if "|" in line]
    assert found
    assert min(found) > ALARM / len(BATTERY) / len(found)


@pytest.mark.thorough
def test_distribution_including_tails() -> None:
    z = np.concatenate([drawn(np.arange(16), step=step, size=1 << 16).ravel() for step in range(4)])
    assert st.kstest(z, "norm", method="asymp").pvalue > ALARM
    below = ndtri(np.concatenate([[1e-6, 1e-5, 1e-4, 1e-3], np.linspace(0.01, 0.49, 49)]))
    edges = np.concatenate([below, -below[::-1]])
    counts = np.bincount(np.searchsorted(edges, z), minlength=len(edges) + 1)
    masses = np.diff(np.concatenate([[0.0], st.norm.cdf(edges), [1.0]]))
    assert st.chisquare(counts, masses * len(z)).pvalue > ALARM


def test_the_two_numbers_of_a_pair_are_independent() -> None:
    # Radius, angle and sum of squares, in which an error of Box & Muller would show.
    z = drawn(np.arange(64), size=1 << 14).reshape(-1, 4, 16)
    x, y = z[:, 0::2].ravel(), z[:, 1::2].ravel()
    assert st.kstest((x**2 + y**2) / 2, "expon").pvalue > ALARM
    assert st.kstest(np.arctan2(y, x), st.uniform(-np.pi, 2 * np.pi).cdf).pvalue > ALARM
    limit = st.norm.isf(ALARM / 8) / np.sqrt(len(x))
    for one, two in ((x, y), (x**2, y**2), (np.abs(x), y), (x, np.abs(y))):
        assert abs(np.corrcoef(one, two)[0, 1]) < limit


def test_runs_steps_and_streams_are_independent() -> None:
    # Consecutive seeds, steps and streams, and seeds that differ in one bit, are the hardest cases.
    bits = [1 << i for i in range(64)]
    for rows in (
        drawn(np.arange(200)),
        drawn(np.array([0, *bits], dtype=np.uint64)),
        np.concatenate([drawn([9], step=step) for step in range(200)]),
        np.concatenate([drawn([9], stream=stream) for stream in range(50)]),
    ):
        assert_uncorrelated(rows[:, :2000])
        assert_uncorrelated(
            ndtr(np.abs(rows[:, :2000]))
        )  # absolute values, mapped to uniform numbers


def test_numbers_of_a_run_are_uncorrelated_at_every_lag() -> None:
    z = drawn([3], size=1 << 20)[0]
    spectrum = np.fft.rfft(z, 2 * len(z))
    correlations = np.fft.irfft(np.abs(spectrum) ** 2)[1 : 1 << 16] / len(z)
    limit = st.norm.isf(ALARM / 2 / len(correlations))
    assert np.abs(correlations).max() < 1.05 * limit / np.sqrt(len(z))


def test_batches_sample_records_independently() -> None:
    taken = torch.empty(500, 300, dtype=torch.bool)
    counts = []
    for step in range(4):
        noise.fill_batches(taken, np.arange(500, dtype=np.uint64), 1, step, 0.3)
        sample = (taken.double().numpy() - 0.3) / np.sqrt(0.21)
        assert_uncorrelated(sample)
        counts.append(int(taken.sum()))
    low, high = st.binom(150_000, 0.3).ppf([ALARM / 8, 1 - ALARM / 8])
    assert all(low <= count <= high for count in counts)
    assert len(set(counts)) > 1


def test_every_precision_has_the_same_noise() -> None:
    threat = threat_models.build("ETCV", "dirac")
    settings = DpSgdSettings(5, 1.0, (0.3, 0.7), (0.1,), model="logistic")
    pack = run_batch(5, True, candidates=2)
    single, double = (
        make_engine("batched", threat, settings, precision=precision).run(pack)
        for precision in ("float32", "float64")
    )
    np.testing.assert_allclose(single.lambda_a, double.lambda_a, rtol=1e-5)
