"""The zoo against stock ONNX Runtime: ``python -m benchmarks.compare_models [MODEL ...]``.

Records medians, kernels, memory and differences under ``--out`` when there is a GPU. See ``cuvil compare`` for one
model of your own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import cuvil_onnx
from cuvil_onnx.bench import table
from cuvil_onnx.bench.compare import Comparison, compare
from cuvil_onnx.bench.record import Record
from cuvil_onnx.cli import gpu_name
from models import zoo

RESULTS = Path(__file__).parent / "results"
DEFAULT = ("resnet50", "resnet50_light", "minilm", "ppocr_cls")


def metric_name(model: zoo.ZooModel, precision: str, batch: int, feed: zoo.Feed) -> str:
    """``model/<name>_<dtype>_b<batch>[_s<len>]``."""
    ids = feed.get("input_ids")
    length = f"_s{ids.shape[1]}" if ids is not None else ""
    return f"model/{model.name}_{precision}_b{batch}{length}"


def add_metrics(record: Record, prefix: str, result: Comparison) -> None:
    """The figures of one comparison, every one with its peers."""
    for row in result.rows:
        record.add(f"{prefix}/{row.key}", row.result.p50, "ms")
        record.add(f"{prefix}/{row.key}_p99", row.result.p99, "ms")
        if row.result.kernels is not None:
            record.add(f"{prefix}/{row.key}_kernels", row.result.kernels, "kernels")
        if row.result.memory_mb is not None:
            record.add(f"{prefix}/{row.key}_memory", row.result.memory_mb, "MiB")
    if (tf32 := result.get("cuvil_tf32")) is not None:
        record.add(f"{prefix}/tf32_max_rel_err", tf32.max_rel_err, "relative")
    ours = result.get("cuvil")
    if ours is not None:
        record.add(f"{prefix}/max_rel_err", ours.max_rel_err, "relative")
        record.add(f"{prefix}/nodes_on_cpu", len(ours.result.nodes_on_cpu), "nodes")
        record.add(f"{prefix}/captured", float(ours.result.captured), "bool")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULT, help=f"of {', '.join(zoo.all_models())}")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16"], choices=["fp32", "fp16", "bf16"])
    parser.add_argument("--batches", nargs="+", type=int, help="default: the model's own")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each variant")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of recorded results")
    parser.add_argument("--no-kernels", action="store_true", help="do not count kernels")
    args = parser.parse_args()

    gpu = gpu_name()
    failed = 0
    for name in args.models:
        model = zoo.get(name)
        try:
            proto = model.build()
        except zoo.MissingModelError as missing:
            print(f"{name}: skipped: {missing}", file=sys.stderr)
            continue
        record = Record("models", gpu or "CPU", {"cuvil_onnx": cuvil_onnx.__version__})
        for precision in args.precisions:
            # fp32 is compared below anyway; 16 bits are measured as users get them, accuracy guard included.
            verify = False if precision == "fp32" else None
            optimized = cuvil_onnx.optimize(proto, precision=precision, verify=verify)
            for batch in args.batches or model.batches:
                feed = model.inputs(batch, 0)
                result = compare(
                    proto,
                    optimized,
                    feed,
                    name=name,
                    precision=precision,
                    gpu=gpu,
                    outputs=list(model.compared) if model.compared else None,
                    budget_s=args.seconds,
                    count_kernels=not args.no_kernels,
                )
                print(table.render(result), end="\n\n", flush=True)
                record.versions.update(result.versions)
                failed += result.get("cuvil") is None
                add_metrics(record, metric_name(model, precision, batch, feed), result)
                if gpu is not None:  # each time: a run that is stopped keeps what it measured
                    print(f"recorded: {record.write(args.out)}", file=sys.stderr)
    if gpu is None:
        print("not recorded: results are recorded for GPUs only", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
