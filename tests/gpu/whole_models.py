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
# to 11 bits, which these depths keep within 5e-3 on logits.
BOUNDS = {"fp32": 1e-3, "fp16": 5e-3}
# The optimizer does not measure models with branches. ONNX Runtime's CPU provider, computing these converted models in
# float32 between roundings to fp16, is off by 1.7e-2 (its weights are in fp16 to begin with) and 1.0e-2; by 6.7e-3 in
# the deepest network of untrained weights, which amplify rounding more than trained ones.
UNMEASURED = {"silero_vad_half": 5e-2, "silero_vad_16k_op15": 3e-2, "torch_efficientnet": 2e-2}


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
        # 16 bits of real weights are measured on the CPU first, with inputs of the kind that the model is for (but none
        # of the tests'), and what they would spoil stays in float32: quiet speech squared is below what fp16 holds.
        measured = precision != "fp32" and self.entry.package is not None
        like = self.entry.inputs(self.entry.batches[0], 77) if measured else None
        self.optimized = cuvil_onnx.optimize(
            model, precision=precision, verify=None if measured else False, inputs=like
        )
        self.session = cuvil_onnx.InferenceSession(self.optimized)
        self.precision = precision
        # Where the optimizer warns of a larger error, its estimate from one input stands for the others within 4x.
        expected = re.match(r"([\d.e-]+) of the largest", self.optimized.report.trace.accuracy) if measured else None
        self.bound = max(
            BOUNDS[precision],
            4 * float(expected[1]) if expected else 0.0,
            UNMEASURED.get(name, 0.0) if precision == "fp16" else 0.0,
        )

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
