"""Reads a model to look at it: as the file says, without the checks and adaptations of ``optimize``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from cuvil_onnx.errors import InvalidModelError, OptionError
from cuvil_onnx.passes import external
from cuvil_onnx.passes.load import read_proto
from cuvil_onnx.passes.normalise import normalise
from cuvil_onnx.passes.shapes import infer_shapes
from cuvil_onnx.pipeline import Options, Pipeline
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace

MAX_DIM = 2**63 - 1
"""The largest dimension that a model can state."""


def read(path: Path) -> ir.Model:
    """The model with its weights still in their files.

    Raises:
        ModelLoadError: no such file, not an ONNX file, or external data whose description makes no sense.
        InvalidModelError: an ONNX file that cannot be understood.
    """
    proto = read_proto(path)
    external.check_declared(proto)
    try:
        model = ir.from_proto(proto)
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # onnx-ir wraps the reason once per level of the file
            cause = cause.__cause__
        raise InvalidModelError(f"{path}: cannot be read: {cause}") from error
    ir.external_data.set_base_dir(model.graph, str(path.parent))
    for graph, _ in walk.all_graphs(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and not _is_there(tensor):
                value.const_value = LostTensor.of(tensor)
    return model


class LostTensor(ir.ExternalTensor):
    """A weight whose file is missing, too short, none, or out of the model's folder: an OSError when it is read.

    A pipe would otherwise be waited for, and onnx-ir has errors of several kinds for the rest.
    """

    @classmethod
    def of(cls, tensor: ir.ExternalTensor) -> LostTensor:
        """The lost form of ``tensor``."""
        shape, name, folder = ir.Shape(tensor.shape.numpy()), tensor.name or "", tensor.base_dir
        lost = cls(tensor.location, tensor.offset, tensor.length, tensor.dtype, shape=shape, name=name, base_dir=folder)
        return lost

    def numpy(self) -> Any:
        """Never returns."""
        raise OSError(f"weight {self.name!r}: {self.path} does not hold it")

    def tobytes(self) -> bytes:
        """Never returns."""
        raise OSError(f"weight {self.name!r}: {self.path} does not hold it")


def _is_there(tensor: ir.ExternalTensor) -> bool:
    file = Path(tensor.path).resolve()
    inside = file.is_relative_to(Path(tensor.base_dir).resolve())
    return inside and file.is_file() and file.stat().st_size >= (tensor.offset or 0) + tensor.nbytes


def learn_shapes(model: ir.Model, dims: Mapping[str, int] | None = None) -> None:
    """Gives free dimensions of the inputs the sizes of ``dims`` and infers the shapes of all values.

    ``dims`` names a dimension by its symbol (``N``) or by input and axis (``x:2``). Where inference fails the shapes
    stay as declared.

    Raises:
        OptionError: no input has such a dimension.
    """
    unused = set(dims or ())
    for value in model.graph.inputs:
        if value.shape is None:
            continue
        sizes: list[int | str | None] = []
        for axis, dim in enumerate(value.shape):
            symbol = dim if isinstance(dim, int) else dim.value
            keys = [k for k in (f"{value.name}:{axis}", symbol) if k in unused or k in (dims or ())]
            unused.difference_update(str(k) for k in keys)
            sizes.append(dims[str(keys[0])] if keys and dims and not isinstance(symbol, int) else symbol)
        value.shape = ir.Shape(sizes)
    if unused:
        raise OptionError(f"no input has the dimension {min(unused)!r}")
    try:
        infer_shapes(GraphContext(model), Trace())
        computed = (value for node in model.graph for value in node.outputs if value.name)
        if all(map(_is_static, model.graph.inputs)) and not all(map(_is_static, computed)):
            _learn_by_folding(model)
    except OSError:
        return  # a small weight that is needed for inference is lost


def _learn_by_folding(model: ir.Model) -> None:
    """Shapes behind computed sizes (Shape, Gather, Concat, Reshape): those that a copy has after folding."""
    context, trace = GraphContext(model.clone()), Trace()
    normalise(context, trace)
    Pipeline(context, trace, Options(level="basic")).cleanup()
    known = {v.name: v for node in context.model.graph for v in node.outputs if v.name}
    for node in model.graph:
        for value in node.outputs:
            found = known.get(value.name or "")
            if found is not None and found.shape is not None and found.type is not None and not _is_static(value):
                value.type, value.shape = value.type or found.type, found.shape.copy()
    infer_shapes(GraphContext(model), trace)


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(dim, int) for dim in value.shape)


def parse_dims(entries: Sequence[str]) -> dict[str, int]:
    """``NAME=SIZE`` entries as a dict; OptionError for anything else."""
    dims = {}
    for entry in entries:
        name, _, size = entry.rpartition("=")
        if not name or not (size.isascii() and size.isdigit()):
            raise OptionError(f"--dim {entry}: NAME=SIZE is expected, such as N=8")
        if len(size) > len(str(MAX_DIM)) or int(size) > MAX_DIM:
            raise OptionError(f"--dim {entry}: a size of at most {MAX_DIM} is required")
        dims[name] = int(size)
    return dims


def type_text(value: ir.Value) -> str:
    """``float[N, 3, 224, 224]``; ``?`` for what is unknown."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return str(value.type)
    kind = "?" if value.dtype in (None, ir.DataType.UNDEFINED) else value.dtype.name.lower()
    if value.shape is None:
        return kind
    return f"{kind}[{', '.join(str(d if isinstance(d, int) else d.value or '?') for d in value.shape)}]"


def op_name(node: ir.Node) -> str:
    """``Conv``, ``cuvil::FusedConv``."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type
