"""Runs onnx's node test cases on the GPU and records how many are right, for docs/operators.md.

python -m tests.conformance.record [--out benchmarks/results] [--jobs 8]

Prints a line for each case that the provider takes and gets wrong, and the most valuable gaps; exit code 1 when any is
wrong. Stock ONNX Runtime comes from CUVIL_STOCK_PYTHONPATH where that is set, its CUDA provider is used where it has
one. With CUVIL_CONFORMANCE_LIBRARY, that library is tested.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import onnx

from tests.conformance.cases import cases
from tests.conformance.survey import Survey, stock_version, survey, unavailable

ROOT = Path(__file__).resolve().parents[2]
METRIC = "conformance/onnx_node"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--jobs", type=int, help="processes that share the GPU")
    parser.add_argument("--only", default="", help="cases whose names contain this; nothing is recorded then")
    args = parser.parse_args()
    if (reason := unavailable()) is not None:
        print(f"record needs a GPU: {reason}", file=sys.stderr)
        return 2
    start = time.monotonic()
    names = [n for n in cases() if args.only in n]
    found = survey(names, compute=True, jobs=args.jobs)
    for line in found.failures():
        print(f"WRONG {line}")
    for line in found.shared_failures():
        print(f"wrong like stock: {line}")
    for alone, total, cause, waiting in found.gaps()[:20]:
        print(f"missing: {alone} cases ({total} with others) {cause} | {waiting[0]}")
    print(
        f"{len(names)} cases, stock passes {len(found.stock_pass)}, of which the provider runs {len(found.claimed)}, "
        f"{len(found.right)} right; {time.monotonic() - start:.0f} s"
    )
    if not args.only:
        print(f"recorded: {_write(found, stock_version(), args.out)}", file=sys.stderr)
    return 1 if found.failures() else 0


def _write(found: Survey, stock: str, out: Path) -> Path:
    """The record of benchmarks/results, with the names of the right cases and the failures beside the metrics."""
    import onnxruntime

    from cuvil_onnx.bench.record import Record  # loads ONNX Runtime, which must not be there before the forks
    from cuvil_onnx.runtime.devices import devices

    versions = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__, "stock": stock}
    record = Record("conformance", devices()[0].name, versions)
    record.add(f"{METRIC}/run", len(found.claimed), "cases")
    record.add(f"{METRIC}/right", len(found.right), "cases")
    record.add(f"{METRIC}/stock_pass", len(found.stock_pass), "cases")
    for name, passed in (("run", found.claimed), ("right", found.right), ("stock_pass", found.stock_pass)):
        record.add(f"{METRIC}/as_given/{name}", len(found.as_given.intersection(passed)), "cases")
    path = record.write(out)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["command"] = content["command"].replace("benchmarks.record", "tests.conformance.record")
    content["failures"] = found.failures()
    content["failures_like_stock"] = found.shared_failures()
    content["right"] = sorted(found.right)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
