"""Cast -> Add -> Relu over 64 Mi elements: one cuvil kernel against stock's three and the measured copy bandwidth.

``python -m benchmarks.compare_pointwise``. Needs a GPU. Traffic of the fused kernel: 2 bytes (x fp16) + 4 (y) + 4 (z)
an element; the percentage is that traffic over time against bytes read plus written by a device-to-device copy.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

import cuvil_onnx
from benchmarks.compare_models import RESULTS
from cuvil_onnx.bench.kernels import BYTES_PER_ELEMENT, cast_add_relu
from cuvil_onnx.bench.process import run_job
from cuvil_onnx.bench.record import Record
from cuvil_onnx.bench.variants import CPU, CUDA, Providers
from cuvil_onnx.runtime.devices import devices
from cuvil_onnx.runtime.registration import EP_NAME, unavailable_reason

METRIC = "pointwise/cast_add_relu_64Mi"


def _measure(model: Path, provider: str, elements: int, folder: Path) -> dict[str, Any]:
    providers: Providers = [(provider, {}), (CPU, {})]
    job = {"model": str(model), "providers": providers, "elements": elements, "seed": 0}
    result = run_job("cuvil_onnx.bench.kernels", job, folder, stock=provider == CUDA)
    if "error" in result:
        print(f"{provider}: {result['error']}", file=sys.stderr)
    elif not result["right"]:
        print(f"{provider}: WRONG RESULT", file=sys.stderr)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mi", type=int, default=64, help="elements in Mi (recorded for 64 only)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    reason = unavailable_reason()
    if reason is not None:
        print(f"compare_pointwise needs a GPU: {reason}", file=sys.stderr)
        return 2
    gpu = devices()[0].name
    elements = args.mi << 20
    with tempfile.TemporaryDirectory(prefix="cuvil-pointwise-") as name:
        folder = Path(name)
        given, fused = folder / "given.onnx", folder / "fused.onnx"
        onnx.save(cast_add_relu(elements), given)
        cuvil_onnx.optimize(given, fused, verify=False)
        ours = _measure(fused, EP_NAME, elements, folder)
        stock = _measure(given, CUDA, elements, folder)
    if "error" in ours or not ours["right"]:
        return 1
    record = Record("pointwise", gpu, {"cuvil_onnx": cuvil_onnx.__version__, "onnxruntime": ours["onnxruntime"]})
    percent = 100 * BYTES_PER_ELEMENT * elements / ours["ms"] / ours["copy_bytes_per_ms"]
    record.add(f"{METRIC}/cuvil", ours["ms"], "ms")
    record.add(f"{METRIC}/pct_copy", percent, "%")
    record.add(f"{METRIC}/copy", ours["copy_bytes_per_ms"] / 1e6, "GB/s")
    text = f"cuvil {ours['ms']:.4f} ms, {percent:.1f} % of copy bandwidth {ours['copy_bytes_per_ms'] / 1e6:.0f} GB/s"
    if "error" not in stock:
        record.add(f"{METRIC}/stock", stock["ms"], "ms")
        record.add(f"{METRIC}/x_stock", stock["ms"] / ours["ms"], "x")
        text += f"; stock {stock['ms']:.4f} ms, {stock['ms'] / ours['ms']:.2f}x"
    print(text)
    if args.mi == 64:
        print(f"recorded: {record.write(args.out)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
