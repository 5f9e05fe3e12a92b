"""``cuvil_onnx.optimize``: the whole rewriting pipeline behind one call."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from cuvil_onnx import verify as verification
from cuvil_onnx.errors import OptionError, OutputError, VerificationError
from cuvil_onnx.passes.limits import OLDEST_OPSET
from cuvil_onnx.passes.load import Source, load
from cuvil_onnx.passes.nhwc_layout import nhwc_pass
from cuvil_onnx.passes.normalise import forget_inferred, normalise
from cuvil_onnx.passes.precision import precision_pass
from cuvil_onnx.passes.signature import Signature
from cuvil_onnx.passes.write import PROTO_LIMIT, self_contained, write_model
from cuvil_onnx.pipeline import DEAD_CODE, Pipeline, names
from cuvil_onnx.report import Report, collect
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Phase
from cuvil_onnx.rewrite.trace import Trace

PRECISIONS = ("fp32", "fp16", "bf16")
LEVELS = ("none", "basic", "all")
LAYOUTS = ("auto", "nchw", "nhwc")

AUTO_VERIFY_BYTES = 200_000_000
"""Larger models are verified only when asked: running them twice on a CPU takes longer than optimizing them."""


class Optimized:
    """The result of :func:`optimize`; ``print`` it for a before/after table.

    Attributes:
        report: what was done; see :class:`cuvil_onnx.report.Report`.
    """

    def __init__(self, model: ir.Model, report: Report, source: Source) -> None:
        self._model = model
        self._source = source
        self._proto: onnx.ModelProto | None = None
        self.report = report

    @property
    def model(self) -> onnx.ModelProto:
        """The optimized model with all weights inside.

        Above 2 GB, which no proto can hold, weights that were external data of a file still are, relative to that
        file's folder; ``save`` writes them anew.
        """
        if self._proto is None:
            fits = self.report.after.parameter_bytes < PROTO_LIMIT
            self._proto = self_contained(self._model) if fits else ir.to_proto(self._model)
        return self._proto

    @property
    def ir_model(self) -> ir.Model:
        """The optimized model as ``onnx_ir`` sees it."""
        return self._model

    def graph(self) -> Any:
        """The optimized model as ``onnx_graphsurgeon.Graph``."""
        import onnx_graphsurgeon as gs

        return gs.import_onnx(self.model)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the model, completely or not at all.

        Weights go to ``<path>.data`` when the model is larger than 2 GB or its weights were external data.

        Raises:
            OutputError: the folder cannot be written, the disk is full, or ``path`` is the input model or its weights.
        """
        return write_model(self._model, Path(path), self._source.files)

    def __str__(self) -> str:
        return self.report.table()

    def __repr__(self) -> str:
        return f"Optimized(nodes {self.report.before.nodes} -> {self.report.after.nodes})"


def optimize(
    model: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    precision: str = "fp32",
    quantize: str | None = None,
    level: str = "all",
    skip: Collection[str] = (),
    only: Collection[str] | None = None,
    verify: bool | None = None,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    layout: str = "auto",
) -> Optimized:
    """Makes a model faster without changing what it computes.

    Args:
        model: a path, bytes, ``onnx.ModelProto``, ``onnx_graphsurgeon.Graph`` or ``onnx_ir.Model``; never changed.
        output: where to write the result; must not be the input.
        precision: "fp32" keeps the element types; "fp16" and "bf16" convert the inside, inputs and outputs stay.
        quantize: reserved; must be None.
        level: "none" only normalises, "basic" cleans up and folds, "all" fuses as well.
        skip: names of rules and passes not to run.
        only: names of the rules and optional passes to run; everything else is left out.
        verify: True compares the result with the original on ONNX Runtime's CPU and refuses it when it differs; False
            never does; None does when the model is small enough for seconds.
        inputs: arrays by input name (or several such dicts) for the verification; made from the signature otherwise.
        layout: "auto" lets 16-bit convolutions work in NHWC, "nhwc" all convolutions, "nchw" none.

    Returns:
        The optimized model with its report.

    Raises:
        ModelLoadError, UnsupportedModelError, InvalidModelError: the model cannot be worked on.
        OptionError: an unknown option value or rule name.
        VerificationError: the result differs from the original (nothing is written).
        OutputError: ``output`` cannot be written.
    """
    if quantize is not None:
        raise OptionError(f"quantize={quantize!r}: quantization is not available in this version, None is required")
    for name, value, allowed in (
        ("precision", precision, PRECISIONS),
        ("level", level, LEVELS),
        ("layout", layout, LAYOUTS),
    ):
        if value not in allowed:
            raise OptionError(f"{name}={value!r} is not one of {', '.join(allowed)}")
    _check_names(skip, only)
    start = time.perf_counter()
    source = load(model)
    if output is not None and Path(output).resolve() in source.files:
        raise OutputError(f"{output}: is the input model; choose another path")
    trace = Trace()
    before = collect(source.model)
    original = _original(source, verify, trace)
    signature = Signature.of(source.model)
    _run(source.model, trace, precision, level, skip, only, layout)
    signature.restore(source.model)
    result = Optimized(source.model, Report(before, collect(source.model), trace), source)
    if original is not None:
        result.report.verification = _verify(original, result, precision, verify, inputs)
    trace.seconds["total"] = time.perf_counter() - start
    if output is not None:
        result.save(output)
    return result


def _check_names(skip: Collection[str], only: Collection[str] | None) -> None:
    if isinstance(skip, str) or isinstance(only, str):
        raise OptionError("skip and only take a list of names, not one string")
    known = names()
    for name in (*skip, *(only or ())):
        if name not in known:
            raise OptionError(f"no rule or pass is called {name!r}; there are {', '.join(known)}")


def _run(
    model: ir.Model,
    trace: Trace,
    precision: str,
    level: str,
    skip: Collection[str],
    only: Collection[str] | None,
    layout: str,
) -> None:
    """The pipeline, in the order in which each step helps the next."""
    ctx = GraphContext(model)
    pipeline = Pipeline(ctx, trace, skip, only)
    if 0 < ctx.opset() < OLDEST_OPSET:
        trace.warn(f"opset {ctx.opset()} is older than {OLDEST_OPSET}: only unused nodes are removed")
        pipeline.run(DEAD_CODE)
        return
    normalise(ctx, trace)
    if level != "none":
        pipeline.cleanup()
    elif precision != "fp32":
        pipeline.infer()
    if level == "all" and pipeline.phase(Phase.STRUCTURAL):
        pipeline.run(DEAD_CODE)
        pipeline.infer()
    if precision != "fp32":
        pipeline.run(precision_pass(ir.DataType.FLOAT16 if precision == "fp16" else ir.DataType.BFLOAT16))
        pipeline.phase(Phase.CLEANUP)
        pipeline.infer()
    if level == "all":
        if layout != "nchw" and pipeline.run(nhwc_pass(force=layout == "nhwc")):
            pipeline.phase(Phase.CLEANUP)
            pipeline.infer()
        pipeline.phase(Phase.EPILOGUE)
        pipeline.phase(Phase.POINTWISE)
    if level != "none":
        pipeline.cleanup(infer_first=False)
    forget_inferred(ctx)


def _original(source: Source, verify: bool | None, trace: Trace) -> onnx.ModelProto | None:
    """The model to compare with, taken before anything changes; None when nothing is to be compared."""
    if verify is False:
        return None
    size = sum(v.const_value.nbytes for v in source.model.graph.initializers.values() if v.const_value is not None)
    if size > AUTO_VERIFY_BYTES and verify is None:
        return None
    return self_contained(source.model)


def _verify(original: onnx.ModelProto, result: Optimized, precision: str, verify: bool | None, inputs: Any) -> str:
    kinds = set(result.report.trace.exactness.values())
    tolerance = verification.EXACT if kinds <= {Exactness.EXACT} else verification.ROUNDING
    if verification.computes_in_half(original):
        tolerance = verification.NATIVE_HALF
    tolerance = {"fp16": verification.HALF, "bf16": verification.BFLOAT16}.get(precision, tolerance)
    outcome = verification.verify(original, self_contained(result.ir_model), tolerance, inputs)
    if outcome.status == "failed" and outcome.unloadable and precision == "bf16":
        return f"no: {outcome.message}"  # ONNX Runtime's CPU lacks bf16 kernels for many operators
    if outcome.status == "failed":
        raise VerificationError(f"the optimized model is not equivalent: {outcome.message}; fired: {_fired(result)}")
    if outcome.status == "skipped" and verify is True:
        raise VerificationError(f"cannot verify: {outcome.message}; pass inputs=, or verify=False")
    return outcome.message if outcome.status == "passed" else f"no: {outcome.message}"


def _fired(result: Optimized) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(result.report.trace.counts.items()))
