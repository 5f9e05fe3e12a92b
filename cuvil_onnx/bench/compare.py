"""Compares stock ONNX Runtime with cuvil on one model, each variant in a process of its own."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

from cuvil_onnx.bench import variants
from cuvil_onnx.bench.accuracy import largest_difference
from cuvil_onnx.bench.arrays import load_arrays, save_arrays
from cuvil_onnx.bench.process import run_job, run_python
from cuvil_onnx.bench.progress import Progress
from cuvil_onnx.bench.worker import Job, Result
from cuvil_onnx.errors import CuvilError

Array = npt.NDArray[Any]


class UnfitInputsError(CuvilError):
    """The model itself does not run on the inputs of the comparison."""


@dataclass
class Row:
    """A measured variant. Differences are to the given model in fp32 on ONNX Runtime's CPU provider."""

    key: str
    label: str
    result: Result
    max_abs_err: float = float("nan")
    max_rel_err: float = float("nan")

    @property
    def ok(self) -> bool:
        return self.result.error is None


@dataclass
class Comparison:
    """One row a key, the fastest of its candidates; ``failures`` are candidates that could not run, and why."""

    model: str
    precision: str
    device: str
    inputs: dict[str, str]
    rows: list[Row]
    failures: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def get(self, key: str) -> Row | None:
        """The row of a key, None when no candidate could run."""
        return next((row for row in self.rows if row.key == key), None)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON, which has no infinity and no NaN: None stands for them."""
        return {key: _json_value(value) for key, value in asdict(self).items()}


def compare(
    model: onnx.ModelProto,
    optimized: Any,
    feed: Mapping[str, Array],
    *,
    name: str,
    precision: str = "fp32",
    gpu: str | None = None,
    outputs: list[str] | None = None,
    budget_s: float = 3.0,
    count_kernels: bool = True,
    progress: bool = True,
) -> Comparison:
    """Measures every variant on ``feed``.

    ``optimized`` is the result of ``cuvil_onnx.optimize``; ``gpu`` is the card's name, None compares on the CPU;
    ``outputs`` are those that count (None: all of the graph's). Raises UnfitInputsError when the model itself does
    not run.
    """
    names = outputs or [o.name for o in model.graph.output]
    for output in model.graph.output:
        if output.name in names and not output.type.HasField("tensor_type"):
            raise CuvilError(f"output {output.name!r} is no tensor: it cannot be compared")
    shapes = {k: f"{v.dtype}{list(v.shape)}" for k, v in feed.items()}
    with tempfile.TemporaryDirectory(prefix="cuvil-compare-") as folder:
        work = _Work(Path(folder), names, budget_s, count_kernels and gpu is not None)
        given, ours = str(work.folder / "given.onnx"), str(work.folder / "optimized.onnx")
        _save(model, Path(given))
        optimized.save(ours)
        save_arrays(work.feed, feed)
        planned = _plan(model, given, ours, gpu, precision, work)
        # On the GPU each variant has a process of its own; on the CPU they share one and take turns.
        groups = [[v] for v in planned] if gpu else [planned]
        bar = Progress(len(groups) + 1, progress)
        bar.step("reference in fp32 on the CPU")
        [(reference, expected)] = work.measure(variants.on_cpu(given, ours)[:1], budget_s=0.0)
        if reference.error:
            raise UnfitInputsError(
                f"the model does not run on ONNX Runtime's CPU provider with these inputs: {reference.error}"
            )
        rows: list[Row] = []
        failures: list[str] = []
        succeeded: set[str] = set()
        for group in groups:
            bar.step(", ".join(v.label for v in group))
            if group[0].instead_of in succeeded:
                continue
            for variant, (result, got) in zip(group, work.measure(group), strict=True):
                if result.error:
                    failures.append(f"{variant.label}: {result.error}")
                else:
                    succeeded.add(variant.label)
                    rows.append(Row(variant.key, variant.label, result, *largest_difference(got, expected)))
        bar.finish()
    device = gpu or "CPU"
    return Comparison(name, precision, device, shapes, _fastest(rows), failures, reference.versions)


def _plan(
    model: onnx.ModelProto, given: str, ours: str, gpu: str | None, precision: str, work: _Work
) -> list[variants.Variant]:
    if gpu is None:
        return variants.on_cpu(given, ours)
    has_conv = any(node.op_type == "Conv" for node in model.graph.node)
    return variants.on_gpu(given, work.prepare(given, precision), ours, has_conv=has_conv, precision=precision)


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_value(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_json_value(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fastest(rows: list[Row]) -> list[Row]:
    """One row a key: the fastest candidate, in the order in which keys were measured."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.key not in best or row.result.p50 < best[row.key].result.p50:
            best[row.key] = row
    return list(best.values())


class _Work:
    """The temporary folder of one comparison, and the processes started in it."""

    def __init__(self, folder: Path, output_names: list[str], budget_s: float, count_kernels: bool) -> None:
        self.folder, self.feed = folder, str(folder / "feed.npz")
        self._names, self._budget_s, self._count_kernels = output_names, budget_s, count_kernels

    def prepare(self, model: str, precision: str) -> list[tuple[str, str]]:
        command = ["-m", "cuvil_onnx.bench.prepare", model, str(self.folder), precision]
        try:
            done = run_python(command, stock=True)
        except subprocess.TimeoutExpired:
            return [("as given", model)]
        if done.returncode:
            return [("as given", model)]
        return [(label, path) for label, path in json.loads(done.stdout.splitlines()[-1])]

    def measure(
        self, group: Sequence[variants.Variant], budget_s: float | None = None
    ) -> list[tuple[Result, dict[str, Array]]]:
        """Result and outputs of each variant of a group, measured in one process."""
        files = [str(self.folder / f"outputs{i}.npz") for i in range(len(group))]
        jobs = [
            Job(
                variant.model,
                self.feed,
                file,
                variant.providers,
                self._names,
                ours=variant.ours,
                bound=variant.bound,
                budget_s=self._budget_s if budget_s is None else budget_s,
                count_kernels=self._count_kernels,
            )
            for variant, file in zip(group, files, strict=True)
        ]
        job = {"jobs": [asdict(j) for j in jobs]}
        done = run_job("cuvil_onnx.bench.worker", job, self.folder, stock=not group[0].ours)
        if "error" in done:
            return [(Result(error=done["error"]), {}) for _ in group]
        results = [Result(**result) for result in done["results"]]
        return [(r, {} if r.error else load_arrays(f)) for r, f in zip(results, files, strict=True)]


def _save(model: onnx.ModelProto, path: Path) -> None:
    try:
        onnx.save(model, path)
    except Exception:  # above 2 GB
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, path, save_as_external_data=True, location="given.data")
