"""Comparison with dp-recorder: each tool tests the other's faulty training functions.

dp-recorder (Re:cord-play, arXiv 2602.17454) compares the inputs of primitives that the developer
decorates. It tests the broken loops of `benchmarks.training_loops`; `audit.check` tests the kinds
of violations that dp-recorder's repository lists. It is on no package index, so pass a checkout.

    git clone https://github.com/ObliviousAI/dp-recorder
    python -m benchmarks.dp_recorder --source dp-recorder/src
"""

import argparse
import contextlib
import dataclasses
import io
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from torch import nn

import audit
from audit.loop.runs.records import TrainingSet
from benchmarks.training_loops.broken import BROKEN
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.loops import Loop
from benchmarks.training_loops.opacus_loops import OpacusLoop, Private

SAMPLES = 2_000

# Lines that dp-recorder needs in a loop: the decorator (5), the mechanism around the noise (6), the
# comparison of the released values (1). `audit.check` needs one, `watch(...)`.
INSTRUMENTATION = 12


class _NoWatch:
    """The loops' own calls of `watch` have no effect here."""

    def __call__(self, *_: Any) -> None:
        pass

    def claim(self, epsilon: float) -> None:
        pass

    def release(self, value: Any) -> Any:
        return value


@dataclasses.dataclass
class Instrument:
    """The mechanism of a loop, decorated as dp-recorder's README describes.

    Attributes:
        recorder: the module `dp_recorder.auditing.audit_primitives`.
        distance: the metric of dp-recorder for its inputs.
        replace: whether neighbours replace a record, which moves a sum by 2 C.
        noise: adds noise to the flat input of the current step.
    """

    recorder: Any
    distance: Callable[..., float]
    replace: bool
    noise: Callable[[np.ndarray], np.ndarray] | None = None

    def __post_init__(self) -> None:
        @self.recorder.audit_spec(
            kind="gaussian", input_arg="data", sensitivity_arg="sensitivity",
            metric_fn=self.distance,
        )  # fmt: skip
        def mechanism(data: Any, sensitivity: float, noise_multiplier: float) -> Any:
            assert self.noise is not None
            return self.noise(data)

        self.mechanism = mechanism

    def call(self, tensors: list[torch.Tensor], clip: float, sigma: float, noise: Any) -> Any:
        """The result of `noise(tensors)`, called by the decorated mechanism."""
        shapes = [t.shape for t in tensors]

        def split(flat: np.ndarray) -> list[torch.Tensor]:
            parts = np.split(flat, np.cumsum([s.numel() for s in shapes])[:-1])
            return [
                torch.as_tensor(p, dtype=torch.float32).view(s)
                for p, s in zip(parts, shapes, strict=True)
            ]

        def join(parts: list[torch.Tensor]) -> np.ndarray:
            return torch.cat([p.detach().flatten() for p in parts]).double().numpy()

        self.noise = lambda data: join(noise(split(data)))
        # The recorder allows 1e-9 for rounding; sums of float32 numbers need more.
        sensitivity = clip * (1.0 + 1e-4) * (2.0 if self.replace else 1.0)
        return split(self.mechanism(join(tensors), sensitivity=sensitivity, noise_multiplier=sigma))


def instrumented(loop: Any, instrument: Instrument) -> Any:
    """The loop, with a decorated mechanism that adds its noise."""
    if isinstance(loop, Loop):
        # The developer declares the loop's own constants.
        def noise(state: Any, total: list[torch.Tensor]) -> list[torch.Tensor]:
            return instrument.call(
                total, loop.clip, loop.noise_multiplier, lambda parts: loop.noise(state, parts)
            )

        return dataclasses.replace(loop, noise=noise)
    return loop


@contextlib.contextmanager
def decorated_optimizers(loop: Any, instrument: Instrument) -> Iterator[None]:
    """Context in which the decorated mechanism calls Opacus's `add_noise`."""
    kind = loop.optimizer_class if isinstance(loop, OpacusLoop) else DPOptimizer
    original = kind.add_noise

    def add_noise(optimizer: Any) -> None:
        def noise(parts: list[torch.Tensor]) -> list[torch.Tensor]:
            for p, part in zip(optimizer.params, parts, strict=True):
                p.summed_grad = part
            original(optimizer)
            return [p.grad for p in optimizer.params]

        sums = [p.summed_grad for p in optimizer.params]
        made = instrument.call(
            sums, float(optimizer.max_grad_norm), float(optimizer.noise_multiplier), noise
        )
        for p, part in zip(optimizer.params, made, strict=True):
            p.grad = part.view_as(p)

    with mock.patch.object(kind, "add_noise", add_noise):
        yield


def released(value: Any) -> Any:
    """The value that a loop returned, as lists of numbers."""
    if isinstance(value, nn.Module):
        return [v.detach().double().numpy().tolist() for v in value.state_dict().values()]
    if isinstance(value, dict):
        return {k: released(v) for k, v in value.items()}
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [released(v) for v in value]
    return value


def samples_batches(loop: Any) -> bool:
    """Whether batches are random, so that neighbours must have the same number of records."""
    return getattr(loop, "sampling_rate", 1.0) < 1.0 or isinstance(loop, Private)


def neighbours(records: TrainingSet, replace: bool) -> Iterator[TrainingSet]:
    """Data sets with an added record or another last record, one for each label and size.

    The record is an outlier if features are real numbers. With random batches, the number of
    records must not change, because the batches would.
    """
    features, labels = records.features, records.labels
    for label in np.unique(labels):
        for scale in (1.0, 100.0) if features.dtype.kind == "f" else (1,):
            extra = features[:1] * scale if features.dtype.kind == "f" else features[-1:]
            kept = records.without_last() if replace else records
            yield kept.with_record(TrainingSet(extra, np.array([label])))


def find(recorder: Any, distance: Any, control: Control, statistical: bool) -> dict[str, Any]:
    """The result of dp-recorder: recording, replay on every neighbour, statistical audit."""
    start = time.process_time()
    records = TrainingSet.of(control.data())
    replace = samples_batches(control.train)
    instrument = Instrument(recorder, distance, replace)
    loop = instrumented(control.train, instrument)
    how = ""

    def play(auditor: Any, data: TrainingSet) -> None:
        torch.manual_seed(1)
        with auditor, decorated_optimizers(control.train, instrument):
            recorder.ensure_equality(released=released(loop(data, None, 1, _NoWatch())))

    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        for neighbour in neighbours(records, replace):
            auditor = recorder.Auditor()
            try:
                play(auditor, records)
                auditor.set_replay()
                play(auditor, neighbour)
                auditor.validate_records()
                if statistical:
                    auditor.run_distributional_audit(n_samples=SAMPLES)
                    auditor.compute_overall_pld()
                    shown = auditor.get_overall_current_guarantee(delta=1e-5)
                    claimed = claim_of(control, records)
                    if claimed is not None and shown > claimed:
                        how = f"epsilon {shown:.3g} where {claimed:.3g} is claimed"
            except (AssertionError, RuntimeError, ValueError) as error:
                how = str(error).splitlines()[0] if str(error) else type(error).__name__
            if how:
                break
    return {"found": bool(how), "how": how, "seconds": round(time.process_time() - start, 1)}


def claim_of(control: Control, records: TrainingSet) -> float | None:
    """The epsilon that the loop's accountant states at delta 1e-5."""
    stated: list[Any] = []

    class Watch:
        def __call__(self, optimizer: Any, model: Any, accountant: Any) -> None:
            stated.append(accountant)

        def claim(self, epsilon: float) -> None:
            stated.append(epsilon)

        def release(self, value: Any) -> Any:
            return value

    control.train(records, None, 1, Watch())
    if not stated:
        return None
    if isinstance(stated[0], float | int):
        return float(stated[0])
    accountant = getattr(stated[0], "accountant", stated[0])
    return float(accountant.get_epsilon(delta=1e-5)) if accountant.history else None


# --- the kinds of violations that dp-recorder's repository lists, as training functions ---


def _numbers(records: Any) -> np.ndarray:
    return np.asarray(records.features, float).reshape(len(records.labels), -1)[:, 0]


def private_mean(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """The mean uses the number of records as if it were public."""
    watch.claim(1.0)
    x = np.clip(_numbers(records), -1.0, 1.0)
    return float((x.sum() + np.random.default_rng(seed).laplace()) / len(x))


def inferred_domain(records: Any, candidate: Any, seed: int, watch: Any) -> list[float]:
    """The classes are those that occur in the records."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    classes = np.unique(records.labels)
    counts = [(np.asarray(records.labels) == c).sum() for c in classes]
    return [float(n + random.laplace()) for n in counts]


def spent_twice(records: Any, candidate: Any, seed: int, watch: Any) -> list[float]:
    """Two queries, each of which uses all of epsilon."""
    watch.claim(1.0)
    random = np.random.default_rng(seed)
    total = np.clip(_numbers(records), 0.0, 1.0).sum()
    return [float(total + random.laplace()), float(len(records.labels) + random.laplace())]


def nan_passes(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """Clipping does not remove NaN."""
    watch.claim(1.0)
    total = np.clip(_numbers(records), -5.0, 5.0).sum()
    return float(total + np.random.default_rng(seed).laplace(scale=5.0))


def no_scale(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """The computed sensitivity is zero, and so is the noise."""
    watch.claim(1.0)
    total = np.clip(_numbers(records), -1.0, 1.0).sum()
    return float(total + np.random.default_rng(seed).laplace(scale=0.0))


def not_clipped(records: Any, candidate: Any, seed: int, watch: Any) -> float:
    """The sum is taken of the raw values, not of the clipped ones."""
    watch.claim(1.0)
    return float(_numbers(records).sum() + np.random.default_rng(seed).laplace(scale=5.0))


VIOLATIONS: dict[str, Callable[..., Any]] = {
    "the number of records taken as public": private_mean,
    "domain inferred from the records": inferred_domain,
    "budget spent twice": spent_twice,
    "NaN passes the clipping": nan_passes,
    "noise of scale zero": no_scale,
    "sum of values that are not clipped": not_clipped,
}


def violations() -> list[dict[str, Any]]:
    """The result of `audit.check` at its default settings for each kind of violation."""
    features = np.linspace(-1.0, 1.0, 20)[:, None]
    rows = []
    for name, train in VIOLATIONS.items():
        start = time.process_time()
        result = audit.check(train, (features, np.arange(20) % 3), jobs=1)
        rows.append(
            {
                "name": name,
                "found": result.exit_code == 1,
                "how": result.words,
                "seconds": round(time.process_time() - start, 1),
            }
        )
    return rows


def main() -> None:
    """Prints one line for each faulty function, and the number that dp-recorder reports."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--source", type=Path, help="the folder src of a checkout of dp-recorder")
    parser.add_argument("--statistical", action="store_true", help="run its statistical audit, too")
    parser.add_argument("--out", type=Path, help="a json file of all results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results: dict[str, Any] = {"violations": violations()}
    for row in results["violations"]:
        print(f"{row['name']:45} {row['found']!s:6} {row['seconds']:5} s  {row['how']}", flush=True)
    if options.source is not None:
        sys.path.insert(0, str(options.source.resolve()))
        from dp_recorder.auditing import audit_primitives, metrics

        results["loops"] = []
        for name, control in BROKEN.items():
            if "black box" in name:  # It has no noise that could be decorated.
                continue
            row = find(audit_primitives, metrics.dist_l2, control, options.statistical)
            results["loops"].append({"name": name} | row)
            print(f"{name:45} {row['found']!s:6} {row['seconds']:5} s  {row['how']}", flush=True)
        found = sum(row["found"] for row in results["loops"])
        print(f"dp-recorder reports {found} of {len(results['loops'])} broken loops")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
