"""Validation of torch devices, and sizes of packs, chunks and blocks chosen for their memory.

A *pack* is the set of runs that an engine trains together. A chunk of records and a block of noise
are what it computes at once. Results depend on these sizes only through rounding.
"""

from collections.abc import Callable

import torch

from audit.errors import InvalidInput

# On a CPU the state of a pack (3 MB) and one chunk of records (32 MB) should stay in the cache.
# Larger and smaller sizes were both slower.
_CPU_STATE_FLOATS = 800_000
_CPU_CHUNK_FLOATS = 8_000_000
# With fewer than 4 runs, Python's overhead dominates a step; more than 1,024 were not faster.
_CPU_RUNS = (4, 1024)
# On a GPU a pack may use a quarter of the memory; the rest is for the current chunk and for torch's
# memory cache.
_GPU_SHARE = 4
# More runs than this were not faster, and few blocks of trials have more.
_GPU_RUNS = 4096
# torch's kernels use 32-bit offsets.
_GPU_CHUNK_FLOATS = 2**31
# Minimum number of records per run in a chunk: with fewer, matrix products become too narrow.
_RECORDS_PER_RUN = {"cpu": 16, "cuda": 64}
# Random numbers per run that a GPU draws in one kernel launch. One launch per run and step would
# take an hour per row of the paper's table 2.
_GPU_NOISE = 1 << 18


def check_device(name: str) -> torch.device:
    """The torch device of that name, if it is a CPU or an available CUDA device."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidInput(
            f"device must be cpu or an available CUDA device, got {name}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"device must be cpu or cuda, got {name}")
    return device


class MemoryPolicy:
    """Sizes of packs, chunks and noise blocks for one device, and bytes per trained number."""

    def __init__(self, device: torch.device, number_bytes: int) -> None:
        self._device = device
        self._number_bytes = number_bytes

    def chunk_floats(self) -> int:
        """Maximum number of floats that a chunk of records of all runs may need."""
        if self._device.type == "cpu":
            return _CPU_CHUNK_FLOATS
        return min(_floor_to_power_of_two(self._gpu_floats()), _GPU_CHUNK_FLOATS)

    def runs_per_pack(
        self, parameters: int, steps: int, sampled_records: int | None, record_floats: int | None
    ) -> int:
        """The number of runs in a pack, limited by the cache of a CPU or the memory of a GPU.

        Parameters and steps are those of one run. `sampled_records` is the number of records that
        batches are sampled from, or None, and `record_floats` the floats that a record of one run
        needs in a chunk; None without records.
        """
        kind = self._device.type
        if kind == "cpu":
            count = _CPU_STATE_FLOATS // parameters
        else:
            # Weights, velocity, p_i and the sums of two chunks; noise; batches, in float64.
            per_run = parameters * (6 + self.steps_at_once(parameters, steps))
            if sampled_records is not None:
                per_run += 2 * sampled_records * self.steps_at_once(sampled_records, steps)
            count = _floor_to_power_of_two(self._gpu_floats() / per_run)
        if record_floats is not None:
            together = self.chunk_floats() // (_RECORDS_PER_RUN[kind] * record_floats)
            count = min(count, together if kind == "cpu" else _floor_to_power_of_two(together))
        if kind == "cpu":
            return min(max(count, _CPU_RUNS[0]), _CPU_RUNS[1])
        return min(count, _GPU_RUNS)

    def steps_at_once(self, width: int, steps: int) -> int:
        """The number of steps whose random numbers, `width` per run, are drawn at once."""
        return 1 if self._device.type == "cpu" else min(steps, max(1, _GPU_NOISE // width))

    def _gpu_floats(self) -> float:
        """The number of floats in a pack's share of the GPU's total memory.

        The free memory would change from block to block, and with it the rounding of results.
        """
        _, total = torch.cuda.mem_get_info(self._device)
        return total / (_GPU_SHARE * self._number_bytes)

    def run_in_packs(
        self, count: int, per_pack: int, record_floats: int, run_pack: Callable[[slice, int], None]
    ) -> None:
        """Trains `count` runs in packs of at most `per_pack`.

        `run_pack` takes the positions of a pack's runs and the maximum floats of a chunk. If a pack
        does not fit in memory, the pack and its chunks are halved and tried again. The next call
        starts with the full sizes, so that calls do not depend on each other.
        """
        chunk_floats, start = self.chunk_floats(), 0
        while start < count:
            size = min(per_pack, count - start)
            try:
                run_pack(slice(start, start + size), chunk_floats)
            except (MemoryError, RuntimeError) as error:
                smallest = size == 1 and chunk_floats <= record_floats
                if not _is_out_of_memory(error) or smallest:
                    raise
            else:
                start += size
                continue
            # Here the error no longer exists, so the pack's tensors that it referenced are freed.
            per_pack = max(size // 2, 1)
            chunk_floats = max(chunk_floats // 2, record_floats)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()


def _floor_to_power_of_two(number: float) -> int:
    """The largest power of two up to `number`, so that similar devices round results equally."""
    return 1 << max(0, int(number).bit_length() - 1)


def _is_out_of_memory(error: Exception) -> bool:
    texts = ("DefaultCPUAllocator", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        text in str(error) for text in texts
    )
