"""``make demo``: optimizes a real model, runs it, and compares it with stock ONNX Runtime.

``python -m cuvil_onnx.demo [MODEL]`` from the repository's root. Takes the first model of the zoo whose weights are
installed; on a GPU in fp16 with CUDA Graph, without one on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import cuvil_onnx
from cuvil_onnx.bench.compare import compare
from cuvil_onnx.bench.table import render
from cuvil_onnx.errors import CuvilError
from cuvil_onnx.runtime.providers import CuvilFallbackWarning
from cuvil_onnx.runtime.registration import unavailable_reason

PREFERRED = ("minilm", "ppocr_cls", "resnet50_light", "tiny")


def choose(wanted: str | None) -> tuple[Any, onnx.ModelProto]:
    """The zoo's entry and its model: the wanted one, or the first that is installed."""
    try:
        from models import zoo
    except ImportError:
        raise CuvilError("the demo's models are part of the repository: run it from its root") from None
    for name in [wanted] if wanted else PREFERRED:
        try:
            entry = zoo.get(name)
            return entry, entry.build()
        except zoo.MissingModelError as missing:
            print(f"{name}: {missing}", file=sys.stderr)
        except KeyError as unknown:
            raise CuvilError(str(unknown.args[0])) from None
    raise CuvilError("no model is installed")


def demo(wanted: str | None = None, seconds: float = 2.0) -> None:
    """Runs the demo and prints it."""
    entry, model = choose(wanted)
    reason = unavailable_reason()
    gpu = cuvil_onnx.devices()[0].name if reason is None else None
    precision = "fp16" if gpu else "fp32"
    print(f"\n== {entry.about}, optimized ({precision}) ==\n")
    with tempfile.TemporaryDirectory(prefix="cuvil-demo-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        samples = [entry.inputs(1, seed) for seed in range(2)]
        optimized = cuvil_onnx.optimize(path, Path(folder) / "model.cuvil.onnx", precision=precision, inputs=samples)
        print(optimized)

        print("\n== One run ==\n")
        feed = samples[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CuvilFallbackWarning)  # said once, below
            session = cuvil_onnx.InferenceSession(optimized)
        names = list(entry.compared) if entry.compared else None
        (first, *_) = session.run(names, feed)
        print(f"output {first.shape} {first.dtype}, first values {_first_values(first)}")
        session.run(names, feed)
        placement = session.placement()
        print(", ".join(f"{count} nodes on {provider}" for provider, count in placement.counts().items()))
        print(f"CUDA Graph: {placement.cuda_graph}")
        session.close()

    print("\n== Compared with stock ONNX Runtime ==\n")
    result = compare(
        model, optimized, feed, name=entry.name, precision=precision, gpu=gpu, outputs=names, budget_s=seconds
    )
    print(render(result))


def _first_values(array: Any) -> str:
    return ", ".join(f"{value:.4g}" for value in np.ravel(array)[:4])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model of the zoo (default: the first that is installed)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each variant")
    args = parser.parse_args()
    try:
        demo(args.model, args.seconds)
    except CuvilError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
