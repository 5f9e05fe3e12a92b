"""``optimize`` next to other optimizers of ONNX models: nodes left, right or wrong results, CPU time, memory.

python -m benchmarks.peer_exports FOLDER            exports of torch to compare on, or put models there yourself
python -m benchmarks.optimizer_peers FOLDER [--tools NAME ...] [--record]

Needs no GPU. A tool whose package is not installed is left out: onnxsim, onnxslim, onnxscript, onnxoptimizer;
ONNX Runtime's own offline optimization and its transformers.optimizer come with onnxruntime. Each tool works on each
model in a process of its own with default options. Results are compared with the original's, unoptimized, on ONNX
Runtime's CPU: other batch sizes and lengths than the export's, padding on the left and on the right, a cache and none.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort

import cuvil_onnx
from benchmarks.compare_models import RESULTS
from benchmarks.optimize_scale import _machine, _memory
from cuvil_onnx.bench.process import run_job
from cuvil_onnx.bench.record import Record
from cuvil_onnx.bench.table import markdown_table

Feeds = dict[str, npt.NDArray[Any]]

TOLERANCE = 2e-3
"""Of the largest output; reordered float32 sums stay below 1e-5, what is wrong is off by tens of percent."""

SHAPES = ((1, 7, "none", 4), (3, 11, "left", 4), (3, 11, "right", 4), (2, 1, "none", 6), (2, 5, "none", 0))
"""Batch, tokens, padding and tokens in the cache of the inputs."""

MODEL_TYPES = {"bert": "bert", "gpt2": "gpt2", "llama": "gpt2", "t5": "t5", "vit": "vit", "whisper": "bart"}
"""What transformers.optimizer must be told; swin is closest to "vit", a UNet is "unet"."""


def with_cuvil(source: str, target: str) -> None:
    cuvil_onnx.optimize(source, target, verify=False)


def with_onnxsim(source: str, target: str) -> None:
    model, ok = import_module("onnxsim").simplify(onnx.load(source))
    if not ok:
        raise RuntimeError("onnxsim's own check failed")
    onnx.save(model, target)


def with_onnxslim(source: str, target: str) -> None:
    onnx.save(import_module("onnxslim").slim(source), target)


def with_onnxscript(source: str, target: str) -> None:
    model = ir.load(source)
    import_module("onnxscript.optimizer").optimize(model)
    made = import_module("onnxscript.rewriter.ort_fusions").optimize_for_ort(model)
    ir.save(made[0] if isinstance(made, tuple) else made, target)


def with_onnxoptimizer(source: str, target: str) -> None:
    onnxoptimizer = import_module("onnxoptimizer")
    passes = onnxoptimizer.get_fuse_and_elimination_passes()
    onnx.save(onnxoptimizer.optimize(onnx.load(source), passes), target)


def with_onnxruntime(source: str, target: str) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = target
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def with_transformers(source: str, target: str) -> None:
    family = Path(source).name.partition("_")[0]
    made = import_module("onnxruntime.transformers.optimizer").optimize_model(
        source, model_type=MODEL_TYPES.get(family, "unet" if family == "unet" else "vit")
    )
    made.save_model_to_file(target)


TOOLS: dict[str, tuple[str, Callable[[str, str], None]]] = {
    "cuvil": ("cuvil_onnx", with_cuvil),
    "onnxsim": ("onnxsim", with_onnxsim),
    "onnxslim": ("onnxslim", with_onnxslim),
    "onnxscript": ("onnxscript", with_onnxscript),
    "onnxoptimizer": ("onnxoptimizer", with_onnxoptimizer),
    "onnxruntime": ("onnxruntime", with_onnxruntime),
    "transformers": ("onnxruntime", with_transformers),
}
"""Name -> the distribution it comes in, and what it does."""


def feeds_of(model: onnx.ModelProto) -> Iterator[tuple[str, Feeds]]:
    """Inputs and what they are like; as many sets as the model's inputs make a difference for."""
    names = [i.name for i in model.graph.input]
    text, cached = "attention_mask" in names or "input_ids" in names, any(n.startswith("past_") for n in names)
    for batch, tokens, padding, past in SHAPES if text else ((1, 0, "none", 0), (3, 0, "none", 0)):
        if (cached or past == 4) or not text:
            label = f"batch {batch}" + (f", {tokens} tokens, {padding} padding" if text else "")
            yield label, _feeds(model, batch, tokens, padding, past if cached else 0)


def _feeds(model: onnx.ModelProto, batch: int, tokens: int, padding: str, past: int) -> Feeds:
    random = np.random.default_rng([batch, tokens, past])
    mask = np.ones((batch, past + tokens), np.int64)
    for row in range(batch if padding != "none" else 0):
        pad = min(row + 1, tokens - 1)
        mask[row, : pad if padding == "left" else None] = 0 if padding == "left" else 1
        if padding == "right":
            mask[row, past + tokens - pad :] = 0
    feeds: Feeds = {}
    for info in model.graph.input:
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if info.name == "attention_mask":
            feeds[info.name] = mask
        elif info.name == "position_ids":
            feeds[info.name] = np.maximum(mask.cumsum(-1) - 1, 0)[:, past:]
        elif info.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            feeds[info.name] = random.integers(1, 100, (batch, tokens if info.name == "input_ids" else 4))
        elif info.name.startswith("past_"):
            feeds[info.name] = random.standard_normal((batch, dims[1], past, dims[3]), np.float32)
        else:
            feeds[info.name] = random.standard_normal((batch, *dims[1:]), np.float32)
    return feeds


def expected_of(path: Path) -> list[tuple[str, Feeds, list[npt.NDArray[Any]]]]:
    """The original's results; inputs that it does not run on are left out."""
    session = _session(str(path), ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    found = []
    for label, feeds in feeds_of(onnx.load(path, load_external_data=False)):
        try:
            found.append((label, feeds, session.run(None, feeds)))
        except Exception as error:
            print(f"{path.name}: the original does not run with {label}: {_line(error)}", file=sys.stderr)
    return found


def judge(target: Path, expected: list[tuple[str, Feeds, list[npt.NDArray[Any]]]]) -> str:
    """ "right", or in a few words what is wrong."""
    try:
        session = _session(str(target), ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    except Exception as error:
        return f"does not load: {_line(error)}"
    for label, feeds, want in expected:
        try:
            got = session.run(None, feeds)
        except Exception as error:
            return f"does not run with {label}: {_line(error)}"
        for a, b in zip(got, want, strict=True):
            if a.shape != b.shape:
                return f"another shape with {label}"
            scale = float(np.abs(b).max(initial=0.0)) or 1.0
            difference = float(np.abs(a - b).max(initial=0.0)) / scale
            if not difference <= TOLERANCE:
                return f"off by {difference:.2g} with {label}"
    return "right"


def _session(path: str, level: ort.GraphOptimizationLevel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[-120:]


def _work(job: Mapping[str, Any]) -> dict[str, Any]:
    """One tool on one model; the job of a child process."""
    name, run = TOOLS[job["tool"]]
    with tempfile.TemporaryDirectory() as place:  # imports, and what is made once
        small = Path(place) / "small.onnx"
        text = "small (float[N,4] x) => (float[N,4] y) { a = Relu(x) y = Neg(a) }"
        graph = onnx.parser.parse_graph(text)
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), small)
        try:
            run(str(small), str(Path(place) / "out.onnx"))
        except Exception as error:
            print(f"{name} on a small model: {_line(error)}", file=sys.stderr)
    before, start, cpu = _memory("VmRSS"), time.perf_counter(), time.process_time()
    run(job["source"], job["target"])
    seconds = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - start}
    return seconds | {"peak_mb": _memory("VmHWM") - before}


def compare(path: Path, tools: list[str]) -> dict[str, dict[str, Any]]:
    """What each tool makes of one model."""
    expected = expected_of(path)
    found: dict[str, dict[str, Any]] = {}
    for tool in tools:
        with tempfile.TemporaryDirectory(prefix="cuvil-peers-") as place:
            target = Path(place) / "out.onnx"
            job = {"tool": tool, "source": str(path), "target": str(target)}
            result = run_job("benchmarks.optimizer_peers", job, Path(place), stock=tool != "cuvil")
            if "error" in result or not target.exists():
                found[tool] = {"verdict": f"fails: {result.get('error', 'nothing was written')}"}
                continue
            result["nodes"] = len(onnx.load(target, load_external_data=False).graph.node)
            result["verdict"] = judge(target, expected)
            found[tool] = result
        print(f"{path.stem:28s} {tool:14s} {_row(found[tool])}", flush=True)
    return found


def _row(result: Mapping[str, Any]) -> str:
    if "nodes" not in result:
        return str(result["verdict"])
    return f"{result['nodes']:5d} nodes {result['cpu_s']:6.1f} s {result['peak_mb']:6.0f} MiB  {result['verdict']}"


def record(results: Mapping[str, Mapping[str, Mapping[str, Any]]], versions: dict[str, str]) -> Record:
    """All figures; the best peer is the one with the fewest nodes whose results are right."""
    made = Record("optimizer_peers", _machine(), versions)
    for model, tools in results.items():
        right = [r["nodes"] for tool, r in tools.items() if tool != "cuvil" and r["verdict"] == "right"]
        if right:
            made.add(f"optimizer/{model}/best_peer_nodes", min(right), "nodes")
        for tool, result in tools.items():
            prefix = f"optimizer/{model}" if tool == "cuvil" else f"optimizer/{model}/{tool}"
            made.add(f"{prefix}/right", result["verdict"] == "right", "bool")
            for key, unit in (("nodes", "nodes"), ("cpu_s", "s"), ("peak_mb", "MiB")):
                if key in result:
                    made.add(f"{prefix}/{key}", result[key], unit)
    return made


def _table(results: Mapping[str, Mapping[str, Mapping[str, Any]]], tools: list[str]) -> str:
    rows = [["model", *tools]]
    for model, found in results.items():
        cells = [
            (str(r["nodes"]) if "nodes" in r else "-") + ("" if r["verdict"] == "right" else " (!)")
            for r in found.values()
        ]
        rows.append([model, *cells])
    return markdown_table(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="models, *.onnx")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--record", action="store_true", help="write the figures under benchmarks/results/cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    versions = {"python": platform.python_version()}
    tools = []
    for tool in args.tools:
        try:
            version = cuvil_onnx.__version__ if tool == "cuvil" else importlib.metadata.version(TOOLS[tool][0])
        except importlib.metadata.PackageNotFoundError:
            print(f"{tool} is not installed", file=sys.stderr)
            continue
        tools.append(tool)
        versions[TOOLS[tool][0]] = version
    results = {}
    for path in sorted(args.folder.glob("*.onnx")):
        results[path.stem] = compare(path, tools)
    print(_table(results, tools))
    if args.record and results:
        print(f"recorded: {record(results, versions).write(args.out)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith("job.json"):
        Path(sys.argv[2]).write_text(json.dumps(_work(json.loads(Path(sys.argv[1]).read_text()))))
    else:
        sys.exit(main())
