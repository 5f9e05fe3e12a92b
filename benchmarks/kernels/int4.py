"""Products with 4-bit weights against stock ONNX Runtime and cuBLAS fp16, for decode to prefill.

python -m benchmarks.kernels.int4            all shapes and rows, recorded under benchmarks/results/<card>
python -m benchmarks.kernels.int4 --quick    three shapes, five numbers of rows, nothing recorded

Stock ONNX Runtime (onnxruntime-gpu) takes part when CUVIL_STOCK_PYTHONPATH names its folder, cuBLAS when PyTorch can be
imported. Every contender is a process of its own (benchmarks/kernels/int4_worker.py). Needs a GPU. The percentage is
that of codes and scales a second, of the bytes a second that a copy measured in the same run reads and writes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import cuvil_onnx
from benchmarks.kernels.int4_model import Weights
from cuvil_onnx.bench.process import run_job
from cuvil_onnx.bench.record import Record
from cuvil_onnx.bench.table import text_table
from cuvil_onnx.runtime.devices import devices
from cuvil_onnx.runtime.registration import unavailable_reason

RESULTS = Path(__file__).resolve().parents[1] / "results"
SHAPES = ("4096x6144", "4096x28672", "14336x4096", "4096x4096", "4096x128256")
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
HEADERS = ["K x N", "M", "us", "us stock", "us cuBLAS", "x stock", "x cuBLAS", "% of bandwidth", "error / bound"]


def contenders() -> list[str]:
    found = ["cuvil"]
    if os.environ.get("CUVIL_STOCK_PYTHONPATH"):
        found.append("stock")
    if importlib.util.find_spec("torch"):
        found.append("torch")
    return found


def measure(weights: Weights, rows: list[int], who: list[str]) -> dict[str, dict[str, Any]]:
    """The results of each contender."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="cuvil-int4-") as name:
        folder = Path(name)
        model = folder / "int4.onnx"
        weights.save(model)
        shape = [weights.k, weights.n, weights.block, weights.bits]
        for contender in who:
            job = {"model": str(model), "weights": shape, "rows": rows, "contender": contender}
            result = run_job("benchmarks.kernels.int4_worker", job, folder, stock=contender == "stock")
            notes = [result["error"]] if "us" not in result else result.get("notes", [])
            for note in notes:
                print(f"{weights.k}x{weights.n} {contender}: {note}", file=sys.stderr)
            results[contender] = result
    return results


def add(record: Record, weights: Weights, rows: list[int], results: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Adds the metrics and returns the rows of the table."""
    table = []
    copy = results["cuvil"].get("copy")
    for m in rows:
        # JSON has turned the numbers of rows into text.
        us = {who: r.get("us", {}).get(str(m)) for who, r in results.items()}
        prefix = f"int4/{weights.k}x{weights.n}/m{m}"
        line = [f"{weights.k} x {weights.n}", str(m), *["-"] * 7]
        for column, who, metric in ((2, "cuvil", "us"), (3, "stock", "us_stock"), (4, "torch", "us_cublas_fp16")):
            if us.get(who) is not None:
                record.add(f"{prefix}/{metric}", us[who], "us")
                line[column] = f"{us[who]:.1f}"
        ours = us.get("cuvil")
        if ours is not None:
            for column, who in ((5, "stock"), (6, "torch")):
                if us.get(who) is not None:
                    line[column] = f"{us[who] / ours:.2f}"
            if copy:
                percent = 100 * weights.nbytes / (ours * 1e-3) / copy
                record.add(f"{prefix}/pct_read", percent, "%")
                line[7] = f"{percent:.0f}"
            line[8] = f"{results['cuvil']['error'][str(m)]:.2f}"
        table.append(line)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), help="K x N, as 4096x6144")
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS), help="values of M")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--quick", action="store_true", help="few shapes and rows, nothing recorded")
    parser.add_argument("--only", nargs="+", choices=("cuvil", "stock", "torch"), help="default: all there are")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of recorded results")
    args = parser.parse_args()
    if args.quick:
        args.shapes, args.rows = list(SHAPES[:3]), [1, 8, 16, 64, 256]
    reason = unavailable_reason()
    if reason is not None:
        print(f"benchmarks.kernels.int4 needs a GPU: {reason}", file=sys.stderr)
        return 2
    record = Record("int4", devices()[0].name, {"cuvil_onnx": cuvil_onnx.__version__})
    table, wrong = [HEADERS], False
    for shape in args.shapes:
        k, n = (int(v) for v in shape.split("x"))
        weights = Weights(k, n, args.block, args.bits)
        results = measure(weights, args.rows, args.only or contenders())
        results.setdefault("cuvil", {})
        table += add(record, weights, args.rows, results)
        print(text_table([HEADERS, *table[-len(args.rows) :]]), flush=True)
        errors = results["cuvil"].get("error", {})
        wrong |= not isinstance(errors, dict) or any(not e <= 1 for e in errors.values())
    print(text_table(table))
    if wrong:
        print("cuvil is beyond the bound, or did not run", file=sys.stderr)
    if not args.quick and (args.bits, args.block) == (4, 128):
        print(f"recorded: {record.write(args.out)}", file=sys.stderr)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
