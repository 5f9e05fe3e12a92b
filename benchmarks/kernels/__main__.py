"""Times every kernel of ``cases.py`` on this machine's GPU.

python -m benchmarks.kernels                 measure all and record under benchmarks/results/<card>
python -m benchmarks.kernels gemm softmax    those whose names hold one of the words; recorded too
python -m benchmarks.kernels --check         measure, record nothing, fail when one is slower than recorded

Needs a GPU and PyTorch; stock ONNX Runtime takes part where the running onnxruntime is onnxruntime-gpu.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import onnxruntime

import cuvil_onnx
from benchmarks.kernels.cases import Case, all_cases
from benchmarks.kernels.measure import Bench, Figures
from cuvil_onnx.bench.record import Record, card_folder, newest
from cuvil_onnx.bench.table import text_table
from cuvil_onnx.runtime.devices import devices
from cuvil_onnx.runtime.registration import unavailable_reason

RESULTS = Path(__file__).resolve().parents[1] / "results"
HEADERS = ["kernel", "us", "GB/s or TFLOP/s", "% of ceiling", "x stock", "x torch", "max rel err"]
# Clocks and neighbours move medians by a few per cent; a slower kernel moves them by more, or is not worth an alarm.
TOLERANCE = 1.08
# fp16 results differ by their rounding, reductions in fp16 of torch and ours also by their order.
WRONG = 2e-2


def add_metrics(record: Record, case: Case, figures: Figures, ceilings: tuple[float, float]) -> list[str]:
    """Adds the figures of a case to a record and returns its row of the table."""
    prefix = f"kernel/{case.name}"
    row = [case.name, "-", "-", "-", "-", "-", f"{figures.error:.1e}"]
    for key, value in (("us_stock", figures.stock), ("us_torch", figures.torch)):
        if value is not None:
            record.add(f"{prefix}/{key}", value, "us")
    ours = figures.ours
    if ours is None:
        return row
    matrix = bool(case.flops)
    rate = (case.flops or case.nbytes) / ours * 1e6
    record.add(f"{prefix}/us", ours, "us")
    record.add(
        f"{prefix}/{'tflop_s' if matrix else 'gb_s'}", rate / (1e12 if matrix else 1e9), "TFLOP/s" if matrix else "GB/s"
    )
    row[1], row[2] = f"{ours:.1f}", f"{rate / (1e12 if matrix else 1e9):.0f}"
    # The ceiling of products is that of 16-bit ones; float32 without TF32 has none measured.
    if not matrix or "/f16" in case.name:
        percent = 100 * rate / ceilings[matrix]
        record.add(f"{prefix}/pct_roof", percent, "%")
        row[3] = f"{percent:.0f}"
    for i, key, value in ((4, "x_stock", figures.stock), (5, "x_torch", figures.torch)):
        if value is not None:
            record.add(f"{prefix}/{key}", value / ours, "x")
            row[i] = f"{value / ours:.2f}"
    return row


def regressions(now: Record, recorded: dict[str, float]) -> list[str]:
    """The kernels that are slower than recorded by more than the tolerance."""
    slower = []
    for metric, entry in now.metrics.items():
        before = recorded.get(metric)
        if metric.endswith("/us") and before is not None and entry["value"] > TOLERANCE * before:
            slower.append(f"{metric}: {entry['value']:.1f} us, recorded {before:.1f}")
    return slower


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="measure the cases whose names hold one of these")
    parser.add_argument("--check", action="store_true", help="compare with the newest recorded figures, record nothing")
    parser.add_argument("--no-stock", action="store_true", help="leave stock ONNX Runtime out")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of recorded results")
    args = parser.parse_args()
    reason = unavailable_reason()
    if reason is not None:
        print(f"benchmarks.kernels needs a GPU: {reason}", file=sys.stderr)
        return 2
    try:
        bench = Bench()
    except ImportError as missing:
        print(f"benchmarks.kernels needs PyTorch: {missing}", file=sys.stderr)
        return 2
    card = devices()[0].name
    versions = {"cuvil_onnx": cuvil_onnx.__version__, "onnxruntime": onnxruntime.__version__}
    record = Record("kernels", card, {**versions, "torch": bench.torch.__version__})
    ceilings = bench.ceilings()
    record.add("kernel/copy/gb_s", ceilings[0] / 1e9, "GB/s")
    record.add("kernel/matmul_f16_8192/tflop_s", ceilings[1] / 1e12, "TFLOP/s")
    print(f"{card}: copy {ceilings[0] / 1e9:.0f} GB/s, fp16 product {ceilings[1] / 1e12:.0f} TFLOP/s", flush=True)
    rows, wrong = [HEADERS], []
    for case in all_cases():
        if args.words and not any(word in case.name for word in args.words):
            continue
        figures = bench.measure(case, not args.no_stock)
        bench.torch.cuda.empty_cache()
        rows.append(add_metrics(record, case, figures, ceilings))
        print("  ".join(rows[-1]), *figures.notes, sep="\n    ", file=sys.stderr, flush=True)
        if figures.ours is None or not figures.error <= WRONG:
            wrong.append(case.name)
    print(text_table(rows))
    for name in wrong:
        print(f"wrong or not run: {name}", file=sys.stderr)
    if args.check:
        slower = regressions(record, {m: e["value"] for m, e in newest(args.out / card_folder(card)).items()})
        for line in slower:
            print(f"slower than recorded: {line}", file=sys.stderr)
        return 1 if slower or wrong else 0
    print(f"recorded: {record.write(args.out)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
