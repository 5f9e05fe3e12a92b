"""``cuvil_onnx.optimize``: the whole rewriting pipeline behind one call."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from cuvil_onnx import verify as verification
from cuvil_onnx.errors import CuvilError, InvalidModelError, OptionError, OutputError, VerificationError
from cuvil_onnx.garbage import collection_paused
from cuvil_onnx.passes.load import Source, load
from cuvil_onnx.passes.sensitivity.guard import MAX_GIVEN_SETS
from cuvil_onnx.passes.sensitivity.pictures import takes_pictures, with_pictures
from cuvil_onnx.passes.signature import Signature
from cuvil_onnx.passes.write import PROTO_LIMIT, self_contained, write_model
from cuvil_onnx.pipeline import Inputs, Options, run
from cuvil_onnx.quantize.driver import Outcome
from cuvil_onnx.quantize.opset import raised
from cuvil_onnx.quantize.settings import Progress, Settings, settings
from cuvil_onnx.report import Report, collect
from cuvil_onnx.rewrite.rule import Exactness
from cuvil_onnx.rewrite.trace import Trace

AUTO_VERIFY_BYTES = 200_000_000
"""Larger models are verified only when asked: running them twice on a CPU takes longer than optimizing them."""

CULPRIT_SECONDS = 30.0
"""How long to look for a rule to leave out."""


class Optimized:
    """The result of :func:`optimize`; ``print`` it for a before/after table.

    Attributes:
        report: what was done; see :class:`cuvil_onnx.report.Report`.
    """

    def __init__(self, model: ir.Model, report: Report, source: Source, quantized: Outcome | None = None) -> None:
        self._model = model
        self._quantized = quantized
        self._source = source
        self._proto: onnx.ModelProto | None = None
        self.report = report

    @property
    def model(self) -> onnx.ModelProto:
        """The optimized model with all weights inside.

        Above 2 GB, which no proto can hold, weights that were external data of a file still are, relative to that
        file's folder; ``save`` writes them anew.

        Raises:
            ModelLoadError: a file with the model's weights is gone or was changed since it was loaded.
        """
        if self._proto is None:
            self._source.check_data()
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
            ModelLoadError: a file with the model's weights is gone or was changed since it was loaded.
        """
        self._source.check_data()
        return write_model(self._model, Path(path), self._source.files, self._source.external)

    def __str__(self) -> str:
        return self.report.table()

    def __repr__(self) -> str:
        return f"Optimized(nodes {self.report.before.nodes} -> {self.report.after.nodes})"


@collection_paused()
def optimize(
    model: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    precision: str = "fp32",
    quantize: str | Mapping[str, Any] | Settings | None = None,
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
        precision: "fp32" keeps the element types; "fp16" and "bf16" convert the inside, inputs and outputs stay. Where
            ``verify`` compares, nodes that would spoil the accuracy are found by measuring and kept in float32.
        quantize: quantizes the weights of products, such as "rtn:w4a16:g128"; see :func:`quantize` for the schemes, and
            for :func:`quantize_settings`, whose result this takes too.
        level: "none" only normalises, "basic" cleans up and folds, "all" fuses as well.
        skip: names of rules and passes not to run.
        only: names of the rules and optional passes to run; everything else is left out.
        verify: True compares the result with the original on ONNX Runtime's CPU and refuses it when it differs; False
            never does; None compares when that takes seconds, and leaves out a rule that turns out to be at fault,
            with a warning in the report.
        inputs: arrays by input name (or several such dicts) for the verification and the accuracy of 16 bits; made from
            the signature otherwise.
        layout: "auto" lets 16-bit convolutions work in NHWC, "nhwc" all convolutions, "nchw" none.

    Returns:
        The optimized model with its report.

    Raises:
        ModelLoadError, UnsupportedModelError, InvalidModelError: the model cannot be worked on.
        OptionError: an unknown option value or rule name.
        VerificationError: the result differs from the original (nothing is written).
        OutputError: ``output`` cannot be written.
    """
    how = quantize_settings(quantize) if isinstance(quantize, (str, Mapping)) else quantize
    if how is not None and not isinstance(how, Settings):
        raise OptionError(f"quantize={quantize!r}: a text such as 'rtn:g32', or quantize_settings(...), is required")
    options = Options.checked(precision, level, layout, skip, only)
    return _optimize(model, output, dataclasses.replace(options, quantize=how), verify, inputs)


def _optimize(
    model: Any,
    output: str | os.PathLike[str] | None,
    options: Options,
    verify: bool | None,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
) -> Optimized:
    """See :func:`optimize`."""
    start = time.perf_counter()
    if verify is not None and not isinstance(verify, bool):
        raise OptionError(f"verify={verify!r}: True, False or None is required")
    if output is not None and not isinstance(output, (str, os.PathLike)):
        raise OptionError(f"output={output!r}: a path is required")
    source = load(model)
    if output is not None and Path(output).resolve() in source.files:
        raise OutputError(f"{output}: is the input model; choose another path")
    original = _original(source, verify)
    options = dataclasses.replace(options, keep_float=original is not None)
    try:
        result = _optimize_once(source, options, _inputs(original, inputs))
    except CuvilError:
        raise
    except Exception as error:
        _blame_model(model, error)
        raise
    if original is not None:
        outcome = _compare(original, result, options, inputs)
        if outcome.status == "failed" and verify is None:
            result, outcome = _leave_out_culprit(model, original, result, outcome, options, inputs)
        result.report.verification = _conclude(outcome, result, verify)
    elif verify is None and options.precision != "fp32":
        limit = AUTO_VERIFY_BYTES // 1_000_000
        result.report.trace.accuracy = f"not measured: the weights have more than {limit} MB; verify=True measures it"
    result.report.trace.seconds["total"] = time.perf_counter() - start
    if output is not None:
        result.save(output)
    return result


@collection_paused()
def quantize(
    model: Any,
    scheme: str | Mapping[str, Any] = "rtn",
    *,
    bits: int | None = None,
    group_size: int | None = None,
    symmetric: bool | None = None,
    calibration: Any = None,
    include: Collection[str] = (),
    exclude: Collection[str] = (),
    overrides: Mapping[str, int] | None = None,
    embeddings: bool = True,
    format: str = "cuvil",
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    verify: bool | None = None,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Stores the weights of products in 4 or 8 bits; activations stay as they are.

    MatMul and Gemm with a constant weight become cuvil::MatMulInt4, which any ONNX Runtime runs. Only what helps to
    find weights is simplified besides: ``optimize(quantize=...)`` fuses as well, and then projections are quantized
    packed.

    Args:
        model: see :func:`optimize`; never changed. Below opset 21 it is converted to that.
        scheme: a name, or text such as "awq:w4a16:g128:sym" ("channel" for whole columns, "option=value" for the
            scheme's own options), or a dict of schemes that work together.
        bits: 4 (default) or 8.
        group_size: 16, 32, 64, 128 (default), 256, ... rows that share a scale; -1 for whole columns.
        symmetric: True: signed codes without zero points; False: a zero point a group; None: True at 8 bits only.
        calibration: texts or inputs for schemes that look at activations; see ``docs/quantization.md``.
        include: patterns, as of file names, of the names of nodes or weights: only these, small ones too.
        exclude: patterns of those that stay as they are.
        overrides: pattern -> 4, 8, or 16 (as it is) for layers that shall differ; the first that fits counts.
        embeddings: whether a table that is also the weight of a product, as of a language model's head, shares its
            codes. Other tables stay as they are.
        format: "cuvil", or "matmulnbits" for com.microsoft::MatMulNBits.
        options: the scheme's own options.
        seed: of random numbers: equal seeds give equal models.
        output: where to write the result; must not be the input.
        verify: see :func:`optimize`: the result is compared with the float model that the codes stand for.
        inputs: for that.
        progress: is called with (weights done, all, name).

    Returns:
        The model; ``report.quantization`` has the error of each layer, and what was left alone and why.

    Raises:
        OptionError: an option that is not allowed, a pattern that fits nothing, a scheme without its calibration data.
        ModelLoadError, UnsupportedModelError, InvalidModelError, VerificationError, OutputError: as ``optimize``.
    """
    how = quantize_settings(
        scheme,
        bits=bits,
        group_size=group_size,
        symmetric=symmetric,
        calibration=calibration,
        include=include,
        exclude=exclude,
        overrides=overrides,
        embeddings=embeddings,
        format=format,
        options=options,
        seed=seed,
        progress=progress,
    )
    checked = dataclasses.replace(Options.checked("fp32", "basic", "nchw", (), None), quantize=how)
    return _optimize(model, output, checked, verify, inputs)


def quantize_settings(scheme: str | Mapping[str, Any], **arguments: Any) -> Settings:
    """The arguments of :func:`quantize` that say how, checked, for ``optimize(quantize=...)``.

    Raises:
        OptionError: a value that is not allowed.
    """
    return settings(scheme, **arguments)


def _optimize_once(source: Source, options: Options, inputs: Inputs | None = None) -> Optimized:
    """Runs the pipeline on a loaded model, which becomes the result."""
    trace = Trace()
    before = collect(source.model)
    model = source.model if options.quantize is None else raised(source.model)
    signature = Signature.of(model)
    quantized = run(model, trace, options, inputs)
    signature.restore(model)
    report = Report(before, collect(model), trace, quantization=None if quantized is None else quantized.summary)
    return Optimized(model, report, source, quantized)


def _blame_model(model: Any, error: Exception) -> None:
    """Raises InvalidModelError when ONNX Runtime cannot make sense of ``model`` either; returns when it can."""
    try:
        verification.cpu_session(self_contained(load(model).model))
    except ImportError:
        return
    except Exception as reason:
        line = " ".join(str(reason).split())[:300]
        raise InvalidModelError(f"invalid model: onnxruntime does not load it: {line}") from error


def _original(source: Source, verify: bool | None) -> onnx.ModelProto | None:
    """The model to compare with, taken before anything changes; None when nothing is to be compared."""
    if verify is False:
        return None
    size = sum(v.const_value.nbytes for v in source.model.graph.initializers.values() if v.const_value is not None)
    if size > AUTO_VERIFY_BYTES and verify is None:
        return None
    return self_contained(source.model)


def _inputs(original: onnx.ModelProto | None, given: Any) -> Inputs | None:
    """What to measure the accuracy of 16 bits with: the inputs of the verification, when there is one."""
    if original is None:
        return None
    if given is not None:
        return Inputs(functools.partial(verification.input_sets, original, given), MAX_GIVEN_SETS)
    generated = functools.partial(verification.input_sets, original, None)
    if takes_pictures(original):
        return Inputs(lambda: with_pictures(generated()), 2 * verification.INPUT_SETS)
    return Inputs(generated, verification.INPUT_SETS)


def _compare(original: onnx.ModelProto, result: Optimized, options: Options, inputs: Any) -> verification.Outcome:
    """Verifies within the tolerance of what fired."""
    kinds = set(result.report.trace.exactness.values())
    tolerance = verification.EXACT if kinds <= {Exactness.EXACT} else verification.ROUNDING
    if verification.computes_in_half(original):
        tolerance = verification.NATIVE_HALF
    tolerance = {"fp16": verification.HALF, "bf16": verification.BFLOAT16}.get(options.precision, tolerance)
    quantized = result._quantized
    if quantized is not None and quantized.before is not None and quantized.after is not None:
        # Not what quantization did, which is another model, but everything before and after it.
        outcome = verification.verify(original, quantized.before, verification.ROUNDING, inputs)
        if outcome.status != "passed":
            return outcome
        original = quantized.after
    outcome = verification.verify(original, self_contained(result.ir_model), tolerance, inputs)
    if outcome.unloadable and options.precision == "bf16":
        return verification.Outcome("skipped", f"onnxruntime's CPU lacks bf16 kernels: {outcome.message}")
    return outcome


def _leave_out_culprit(
    model: Any,
    original: onnx.ModelProto,
    result: Optimized,
    outcome: verification.Outcome,
    options: Options,
    inputs: Any,
) -> tuple[Optimized, verification.Outcome]:
    """Tries again without one of the rules that fired, until the result is equivalent; gives up after a while."""
    start = time.perf_counter()
    trace = result.report.trace
    kinds = trace.exactness
    options = dataclasses.replace(options, keep=trace.kept)  # measured once, not for each attempt
    optional = (name for name, kind in kinds.items() if kind != Exactness.APPROXIMATE)  # that one was asked for
    fired = sorted(optional, key=lambda name: (kinds[name] == Exactness.EXACT, name))
    for name in fired:
        if time.perf_counter() - start > CULPRIT_SECONDS:
            break
        other = _optimize_once(load(model), options.without(name))
        verdict = _compare(original, other, options, inputs)
        if verdict.status == "passed":
            other.report.trace.accuracy, other.report.trace.kept = trace.accuracy, trace.kept
            other.report.trace.warn(f"{name} was left out, a defect of this package: with it {outcome.message}")
            return other, verdict
    return result, outcome


def _conclude(outcome: verification.Outcome, result: Optimized, verify: bool | None) -> str:
    """The line for the report.

    Raises:
        VerificationError: the models differ, or a comparison was demanded and is impossible.
    """
    if outcome.status == "failed":
        counts = ", ".join(f"{name} {count}" for name, count in sorted(result.report.trace.counts.items()))
        raise VerificationError(f"the optimized model is not equivalent: {outcome.message}; fired: {counts}")
    if outcome.status == "skipped" and verify is True:
        raise VerificationError(f"cannot verify: {outcome.message}; pass inputs=, or verify=False")
    return outcome.message if outcome.status == "passed" else f"no: {outcome.message}"
