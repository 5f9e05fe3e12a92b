"""A model of the zoo on the GPU, beside its float32 reference on the CPU."""

from __future__ import annotations

import re

import onnxruntime
import pytest

import cuvil_onnx
from cuvil_onnx.bench.accuracy import largest_difference
from cuvil_onnx.runtime.placement import SHAPES, NodePlacement
from cuvil_onnx.runtime.registration import EP_NAME
from models import zoo

# The bounds: fp32 sums in another order stay within 1e-3 of the largest output; fp16 rounds every activation
# to 11 bits, and the optimizer keeps in float32 what would spoil more than 5e-3 by that.
BOUNDS = {"fp32": 1e-3, "fp16": 5e-3}
MEASURED = (100, 101, 102, 103)
"""Seeds of the inputs that the optimizer measures with: of the kind that the model is for, but none of the tests'."""
# Where no moderate part in float32 is enough, the optimizer warns with the largest error of the measured inputs; that
# of others was up to twice as large (PP-OCR's detector and reader, Silero's state: heavy tails of few inputs).
OTHERS = 2.0


class Case:
    """A model of the zoo, its fp32 reference on the CPU, and a session on the GPU."""

    def __init__(self, name: str, precision: str) -> None:
        self.entry = zoo.get(name)
        try:
            model = self.entry.build()
        except zoo.MissingModelError as missing:
            pytest.skip(str(missing))
        self.names = list(self.entry.compared) if self.entry.compared else [o.name for o in model.graph.output]
        self.reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        half = precision != "fp32"
        like = [self.entry.inputs(self.entry.batches[0], seed) for seed in MEASURED] if half else None
        self.optimized = cuvil_onnx.optimize(model, precision=precision, verify=None if half else False, inputs=like)
        self.session = cuvil_onnx.InferenceSession(self.optimized)
        self.precision = precision
        warned = [
            re.search(r"expected error ([\d.e-]+) of the largest", w) for w in self.optimized.report.trace.warnings
        ]
        self.bound = max(BOUNDS[precision], *(OTHERS * float(found[1]) for found in warned if found), 0.0)

    def difference(self, batch: int, seed: int) -> float:
        feed = self.entry.inputs(batch, seed)
        want = dict(zip(self.names, self.reference.run(self.names, feed), strict=True))
        got = dict(zip(self.names, self.session.run(self.names, feed), strict=True))
        return largest_difference(got, want)[1]

    def check(self, batch: int, seed: int) -> None:
        worst = self.difference(batch, seed)
        assert worst <= self.bound, f"batch {batch}, inputs {seed}: {worst}"

    def elsewhere(self) -> list[NodePlacement]:
        """The nodes that the provider does not run, but for arithmetic on shapes."""
        return [n for n in self.session.placement() if n.provider != EP_NAME and SHAPES not in n.reason]
