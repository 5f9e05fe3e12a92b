"""Time and memory of ``optimize`` on models of 100,000 nodes, on BERT-base, and on a model larger than 2 GB.

python -m benchmarks.optimize_scale                      all, recorded under benchmarks/results/cpu
python -m benchmarks.optimize_scale --nodes 5000 regions ladder    some, smaller, printed only

Needs no GPU. Each model is optimized in a process of its own, without verification. CPU time is the process's own;
elapsed time depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper

import cuvil_onnx
from benchmarks.compare_models import RESULTS
from benchmarks.scale_models import GENERATORS
from cuvil_onnx.bench.process import run_job
from cuvil_onnx.bench.record import Record
from models import bert_base

RECORDED_NODES = 100_000
LAYERS, SIZE = 34, 4096
"""Of the large model: weights of 64 MiB, 2.3 GB in all."""


def external_model(folder: Path) -> Path:
    """A chain of products whose weights lie in a file of 2.3 GB."""
    weights, nodes, x, offset = [], [], "x", 0
    array = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32) * 0.01
    with (folder / "weights").open("wb") as file:
        for layer in range(LAYERS):
            array[0, 0] = layer
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights"), ("offset", offset), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            offset += file.write(array.tobytes())
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [x, tensor.name], [f"p{layer}"]))
            nodes.append(helper.make_node("Relu", [f"p{layer}"], [f"r{layer}"]))
            x = f"r{layer}"
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", SIZE]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "large", infos[:1], infos[1:], weights)
    path = folder / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def _measure(job: dict[str, Any]) -> dict[str, Any]:
    """Optimizes and saves one model; the job of a child process."""
    cuvil_onnx.optimize(GENERATORS["regions"](50), verify=False)  # imports, and what is made once
    before = _memory("VmRSS")
    start, cpu = time.perf_counter(), time.process_time()
    with mock.patch("cuvil_onnx.pipeline.time.perf_counter", time.process_time):
        result = cuvil_onnx.optimize(job["model"], job["output"], precision=job["precision"], verify=False)
    seconds = result.report.trace.seconds
    return {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - start,
        "rules_cpu_s": sum(value for name, value in seconds.items() if name.endswith(" rules")),
        "nodes": result.report.after.nodes,
        "peak_mb": _memory("VmHWM") - before,
        "fired": result.report.trace.counts,
    }


def _memory(field: str) -> float:
    """MiB of this process, now (VmRSS) or at most (VmHWM); mapped pages of files count."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(field))


def _optimize(name: str, nodes: int) -> dict[str, Any]:
    """What `_measure` says of one model, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="cuvil-scale-") as place:
        folder = Path(place)
        if name in GENERATORS:
            model = _saved(GENERATORS[name](nodes), folder)
        else:
            model = _saved(bert_base.build(), folder) if name == "bert_base" else external_model(folder)
        precision = "fp16" if name.endswith("fp16") else "fp32"
        job = {"model": str(model), "output": str(folder / "out.onnx"), "precision": precision}
        return run_job("benchmarks.optimize_scale", job, folder, stock=False)


UNITS = {"cpu_s": "s", "wall_s": "s", "rules_cpu_s": "s", "nodes": "nodes", "peak_mb": "MiB"}


def _machine() -> str:
    names = [platform.machine()]
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")] or names
    except OSError:
        pass
    return f"CPU ({names[0]}, {os.cpu_count()} cores)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = ["bert_base", "large_fp32", "large_fp16"]
    parser.add_argument("models", nargs="*", help=f"of {', '.join([*GENERATORS, *others])}; all when left out")
    parser.add_argument("--nodes", type=int, default=RECORDED_NODES, help="recorded for 100,000 only")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    unknown = [name for name in args.models if name not in (*GENERATORS, *others)]
    if unknown:
        parser.error(f"no model is called {unknown[0]}")
    import onnxruntime

    versions = {
        "cuvil_onnx": cuvil_onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
    }
    record = Record("optimize_scale", _machine(), versions)
    failed = 0
    for name in args.models or [*GENERATORS, *others]:
        try:
            result = _optimize(name, args.nodes)
        except KeyboardInterrupt:
            break  # what was measured is recorded
        if "error" in result:
            print(f"{name}: {result['error']}", file=sys.stderr)
            failed += 1
            continue
        label = f"{name}_{args.nodes}" if name in GENERATORS else name
        for key, unit in UNITS.items():
            record.add(f"optimizer/{label}/{key}", result[key], unit)
        print(f"{label}: " + ", ".join(f"{key} {result[key]:.1f}" for key in UNITS), flush=True)
    if args.nodes == RECORDED_NODES and record.metrics:
        print(f"recorded: {record.write(args.out)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].endswith("job.json"):
        Path(sys.argv[2]).write_text(json.dumps(_measure(json.loads(Path(sys.argv[1]).read_text()))))
    else:
        sys.exit(main())
