"""How much lies side by side on a device: runs of a pack, records of a chunk, steps of noise.

Nothing but rounding depends on it.
"""

from collections.abc import Callable

import torch

# On a CPU: numbers that the state of a pack, and one chunk of records, may have to stay in cache
# (3 MB and 32 MB of it; larger and smaller ones were both slower).
_CPU_STATE_FLOATS = 800_000
_CPU_CHUNK_FLOATS = 8_000_000
# Fewer runs than 4 leave a step to Python's own time, more than 1,024 gained nothing.
_CPU_RUNS = (4, 1024)
# On a GPU a pack may have a quarter of the memory: its state, the chunk in work, and room for what
# torch keeps between calls.
_GPU_SHARE = 4
# More runs than this gained nothing, and a block of trials seldom has more runs.
_GPU_RUNS = 4096
# Offsets inside a kernel of torch are 32-bit numbers.
_GPU_CHUNK_FLOATS = 2**31
# A chunk should still hold so many records of every run: with fewer, products become narrow.
_RECORDS_PER_RUN = {"cpu": 16, "cuda": 64}
# So many random numbers of a run a GPU draws at once: every call is a launch of a kernel, and one
# per run and step would cost an hour a row of the paper's table 2.
_GPU_NOISE = 1 << 18


class MemoryPolicy:
    """The sizes for one device.

    Args:
        device: a CPU or a GPU.
        number_bytes: of a number as trained.
    """

    def __init__(self, device: torch.device, number_bytes: int) -> None:
        self._device = device
        self._number_bytes = number_bytes

    def chunk_floats(self) -> int:
        """How many numbers a chunk of records of all runs may need."""
        if self._device.type == "cpu":
            return _CPU_CHUNK_FLOATS
        return min(_floor_to_power_of_two(self._gpu_floats()), _GPU_CHUNK_FLOATS)

    def runs_per_pack(
        self, parameters: int, steps: int, batch: int | None, record_floats: int | None
    ) -> int:
        """How many runs run side by side: from the cache on a CPU, from the memory on a GPU.

        Args:
            parameters: of a run.
            steps: of a run.
            batch: records that batches are sampled from; None where each step takes all.
            record_floats: what a record of a run needs in a chunk; None where there are none.
        """
        kind = self._device.type
        if kind == "cpu":
            count = _CPU_STATE_FLOATS // parameters
        else:
            # Weights, velocity, p_i and the sums of two chunks; noise; batches, in float64.
            per_run = parameters * (6 + self.steps_at_once(parameters, steps))
            if batch is not None:
                per_run += 2 * batch * self.steps_at_once(batch, steps)
            count = _floor_to_power_of_two(self._gpu_floats() / per_run)
        if record_floats is not None:
            together = self.chunk_floats() // (_RECORDS_PER_RUN[kind] * record_floats)
            count = min(count, together if kind == "cpu" else _floor_to_power_of_two(together))
        if kind == "cpu":
            return min(max(count, _CPU_RUNS[0]), _CPU_RUNS[1])
        return min(count, _GPU_RUNS)

    def steps_at_once(self, width: int, steps: int) -> int:
        """For how many steps a run's random numbers are drawn at once, `width` of them a step."""
        return 1 if self._device.type == "cpu" else min(steps, max(1, _GPU_NOISE // width))

    def _gpu_floats(self) -> float:
        """Numbers that a pack's share of the GPU's memory holds.

        Of all of it, not of what is free: that changes from block to block, and so would the
        rounding of results.
        """
        _, total = torch.cuda.mem_get_info(self._device)
        return total / (_GPU_SHARE * self._number_bytes)

    def in_packs(
        self, count: int, per_pack: int, record_floats: int, run_pack: Callable[[slice, int], None]
    ) -> None:
        """Runs `count` runs in packs.

        A pack that does not fit the memory is halved and tried again, and its chunks with it; the
        next call begins with whole ones, so that it depends on no other.

        Args:
            count: of all runs.
            runs: of a pack.
            record_floats: the smallest chunk there can be.
            run: takes the runs of a pack, and how many numbers a chunk may need.
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
            # The error is gone by now, and with it the tensors of the pack that it held on to.
            per_pack = max(size // 2, 1)
            chunk_floats = max(chunk_floats // 2, record_floats)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()


def _floor_to_power_of_two(number: float) -> int:
    """So that a little more or less memory does not change the rounding of results."""
    return 1 << max(0, int(number).bit_length() - 1)


def _is_out_of_memory(error: Exception) -> bool:
    texts = ("DefaultCPUAllocator", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        text in str(error) for text in texts
    )
