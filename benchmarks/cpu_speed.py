"""Optimized models on ONNX Runtime's CPU provider against the originals, both with all of its own optimizations.

python -m benchmarks.cpu_speed [MODEL ...] [--files FILE ...] [--record]

Needs no GPU and no provider of ours: the functions of the fused ops are inlined by ONNX Runtime. One thread; runs of
the two take turns, and CPU seconds are counted, so that other programs on the machine disturb little. The result is the
median over turns of the time of ours divided by that of the original in the same turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import onnxruntime as ort

import cuvil_onnx
from benchmarks.compare_models import RESULTS
from benchmarks.optimize_scale import _machine
from benchmarks.optimizer_peers import feeds_of
from cuvil_onnx.bench.record import Record
from cuvil_onnx.bench.table import markdown_table
from models import zoo

MIN_TURNS = 7


@dataclass(frozen=True)
class Speed:
    """Median CPU milliseconds of a run, and the median over turns of their quotient, ours by the original's."""

    ours: float
    original: float
    quotient: float


def session(path: Path) -> ort.InferenceSession:
    """The model on one CPU thread with every optimization of ONNX Runtime."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measure(original: Path, ours: Path, feed: dict[str, npt.NDArray[Any]], seconds: float) -> Speed:
    """Both models on one feed for about ``seconds``, in turns, after a run each that does not count."""
    sessions = [session(ours), session(original)]
    single = max(_cpu_seconds(s, feed, 1) for s in sessions for _ in range(2))
    repeat = max(1, round(0.02 / max(single, 1e-6)))  # the clock is too coarse for one short run
    times: list[tuple[float, float]] = []
    end = time.process_time() + seconds
    while len(times) < MIN_TURNS or time.process_time() < end:
        # Who goes first alternates: the second run finds the caches as the first one left them.
        order = (0, 1) if len(times) % 2 else (1, 0)
        found = {which: _cpu_seconds(sessions[which], feed, repeat) for which in order}
        times.append((found[0], found[1]))
    return Speed(
        1e3 * statistics.median(a for a, _ in times),
        1e3 * statistics.median(b for _, b in times),
        statistics.median(a / b for a, b in times),
    )


def _cpu_seconds(model: ort.InferenceSession, feed: dict[str, npt.NDArray[Any]], repeat: int) -> float:
    start = time.process_time()
    for _ in range(repeat):
        model.run(None, feed)
    return (time.process_time() - start) / repeat


def cases(names: list[str], files: list[Path]) -> Iterator[tuple[str, onnx.ModelProto, dict[str, npt.NDArray[Any]]]]:
    """Name, model and feed of what is asked for; models whose weights are not installed are left out."""
    for name in names:
        model = zoo.get(name)
        try:
            yield name, model.build(), model.inputs(model.batches[0], 0)
        except (zoo.MissingModelError, ImportError) as error:
            print(f"{name}: left out, {error}", file=sys.stderr)
    for path in files:
        loaded = onnx.load(path)
        yield path.stem, loaded, next(feed for _, feed in feeds_of(loaded))


def compare(model: onnx.ModelProto, feed: dict[str, npt.NDArray[Any]], seconds: float) -> Speed:
    """Optimizes a model and measures it next to the original."""
    with tempfile.TemporaryDirectory(prefix="cuvil-cpu-") as place:
        original, ours = Path(place) / "original.onnx", Path(place) / "ours.onnx"
        onnx.save(model, original)
        cuvil_onnx.optimize(original, ours, verify=False)
        return measure(original, ours, feed, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(zoo.all_models())}; all when left out")
    parser.add_argument("--files", nargs="+", type=Path, default=[], help="models of benchmarks.peer_exports")
    parser.add_argument("--seconds", type=float, default=4.0, help="of CPU time for each model")
    parser.add_argument("--record", action="store_true", help="write the figures under benchmarks/results/cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    record = Record("cpu_speed", _machine(), {"onnxruntime": ort.__version__, "cuvil_onnx": cuvil_onnx.__version__})
    rows = [["model", "original ms", "optimized ms", "optimized / original"]]
    for name, model, feed in cases(args.models or ([] if args.files else list(zoo.all_models())), args.files):
        try:
            speed = compare(model, feed, args.seconds)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr)
            continue
        print(f"{name:26s} {speed.original:9.3f} -> {speed.ours:9.3f} ms  x {speed.quotient:.3f}", flush=True)
        rows.append([name, f"{speed.original:.3f}", f"{speed.ours:.3f}", f"{speed.quotient:.3f}"])
        record.add(f"cpu/{name}/optimized", speed.ours, "ms")
        record.add(f"cpu/{name}/original", speed.original, "ms")
        record.add(f"cpu/{name}/x_original_time", speed.quotient, "quotient")
    print(markdown_table(rows))
    if args.record:
        print(f"recorded: {record.write(args.out)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
