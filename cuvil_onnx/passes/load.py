"""Reads a model from wherever it is, checks that it can be worked on, and never touches the caller's object."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf import json_format, text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

import custom_ops
from cuvil_onnx.errors import CuvilError, InvalidModelError, ModelLoadError, OptionError, UnsupportedModelError
from cuvil_onnx.passes import external, in_file
from cuvil_onnx.passes.held import hold_initializers
from cuvil_onnx.passes.inner_weights import hoist_weights
from cuvil_onnx.passes.limits import newest_opset_and_ir
from cuvil_onnx.passes.normalise import sort_graphs
from cuvil_onnx.passes.shapes import walk_protos, weightless_proto
from cuvil_onnx.rewrite import walk

MAX_DENSE_BYTES = 1 << 28

RUNNABLE = (
    "Field 'shape' of 'type' is required",  # inputs without a shape
    "No Op registered",  # operators of its own in ONNX's domain
    "FunctionOp imports version",  # functions written for another opset
)
"""What onnx's checker objects to and ONNX Runtime runs."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A loaded model.

    Attributes:
        model: a private onnx-ir model; tensors of external files are mapped, not read.
        path: the file it came from.
        files: every file that must not be overwritten (the model and its external data).
        kind: "path", "bytes", "proto", "graphsurgeon" or "ir": what ``optimize`` was given.
        data: of each file with external data its size, when it was written, and the name of a weight in it.
    """

    model: ir.Model
    path: Path | None
    files: frozenset[Path]
    kind: str
    data: Mapping[Path, tuple[int, int, str]] = dataclasses.field(default_factory=dict)

    @property
    def external(self) -> bool:
        """Whether weights came from files of their own."""
        return bool(self.files - (set() if self.path is None else {self.path.resolve()}))

    def check_data(self) -> None:
        """ModelLoadError when a file with weights, which are read only when they are needed, is another by now."""
        for file, (size, written, name) in self.data.items():
            try:
                found = file.stat()
            except OSError as error:
                raise ModelLoadError(f"weight {name!r}: {file} cannot be read any more: {error.strerror}") from error
            if found.st_size != size:
                message = f"{file} has {found.st_size} bytes, {size} when the model was loaded"
                raise ModelLoadError(f"weight {name!r}: {message}")
            if found.st_mtime_ns != written:
                raise ModelLoadError(f"weight {name!r}: {file} was written again after the model was loaded")


def load(model: Any) -> Source:
    """Reads ``model`` (path, bytes, ModelProto, ``onnx_graphsurgeon.Graph`` or ``onnx_ir.Model``).

    Raises:
        ModelLoadError: no such file, not an ONNX file, external data missing or too short.
        UnsupportedModelError: newer than the installed ONNX Runtime, without nodes and outputs, or with functions of
            its own by the names of this package's.
        InvalidModelError: breaks the ONNX rules.
        OptionError: an object of another type.
    """
    path: Path | None = None
    files: set[Path] = set()
    offsets: dict[str, int] = {}
    if isinstance(model, (str, os.PathLike)):
        path, kind = Path(model), "path"
        proto, offsets = _read_lazily(path)
        private = _from_proto(proto, str(path), files, path.parent)
        in_file.attach(private, path, offsets)
        files.add(path.resolve())
    elif isinstance(model, (bytes, bytearray, memoryview)):
        kind = "bytes"
        private = _from_proto(_parse(bytes(model), "the given bytes"), "the model", files)
    elif isinstance(model, onnx.ModelProto):
        kind = "proto"
        private = _from_proto(model, "the model", files)
    elif isinstance(model, ir.Model):
        kind = "ir"
        _check_versions(model.ir_version, dict(model.graph.opset_imports), "the model")
        private = model.clone()
        for node in walk.all_nodes(private.graph):
            for value in node.outputs:
                value.const_value = None  # analyses may leave tensors there, which are shared with the caller's model
    elif type(model).__module__.startswith("onnx_graphsurgeon"):
        import onnx_graphsurgeon as gs

        kind = "graphsurgeon"
        private = _from_proto(gs.export_onnx(model), "the model", files)
    else:
        raise OptionError(f"cannot read a model from a {type(model).__name__}")
    for imports in (private.graph.opset_imports, *(f.opset_imports for f in private.functions.values())):
        if "ai.onnx" in imports:  # the long name of the domain "", which onnx-ir knows in nodes only
            imports.setdefault("", imports.pop("ai.onnx"))
    _check_functions(private)
    hoist_weights(private)
    try:
        data = check_external(private)
        if offsets and path is not None:
            data[path.resolve()] = next(iter(offsets))
        _check_graph(private)
    except CuvilError:
        raise
    except Exception as error:  # text that is none, weights of no type: found only when the model is written again
        raise InvalidModelError(f"invalid model: {_cause(error)}") from error
    stats = {file: (file.stat(), name) for file, name in data.items()}
    known = {file: (stat.st_size, stat.st_mtime_ns, name) for file, (stat, name) in stats.items()}
    return Source(private, path, frozenset(files | data.keys()), kind, known)


def _read_lazily(path: Path) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The file without the data of weights that can stay there, and their offsets."""
    try:
        found = in_file.without_weights(path) if path.suffix == ".onnx" and path.is_file() else None
    except (OSError, DecodeError):
        found = None
    return (read_proto(path), {}) if found is None else found


def read_proto(path: Path) -> onnx.ModelProto:
    """The file as it is, without external data; ModelLoadError when it is no ONNX file."""
    try:
        if not path.exists():
            raise ModelLoadError(f"{path}: no such file")
        if path.is_dir():
            raise ModelLoadError(f"{path}: is a folder, an ONNX file is required")
        if not path.is_file():
            raise ModelLoadError(f"{path}: is no regular file")  # reading a device or pipe may never end
        if path.suffix in (".onnx", ".ort", "") or path.stat().st_size == 0:
            return _parse(path.read_bytes(), str(path))
        return onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.strerror or error}") from error
    except (DecodeError, ValueError, onnx.parser.ParseError, text_format.ParseError, json_format.ParseError) as error:
        raise ModelLoadError(f"{path}: not an ONNX file, or truncated") from error


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelLoadError(f"{name}: not an ONNX file, or truncated ({len(data)} bytes)") from error
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelLoadError(f"{name}: not an ONNX file: it holds no graph ({len(data)} bytes)")
    return proto


def _from_proto(proto: onnx.ModelProto, name: str, files: set[Path], folder: Path | None = None) -> ir.Model:
    """The model; adds the files of its external data to ``files``."""
    _check_versions(proto.ir_version, {o.domain: o.version for o in proto.opset_import}, name)
    if not proto.graph.output:
        raise UnsupportedModelError(f"{name}: the graph is empty: it has no outputs")
    proto, used = external.checked(proto, folder or Path())
    files |= used
    proto = _dense(proto, name)
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of what _check_graph is about to refuse
    try:
        model = ir.from_proto(proto)
    except Exception as error:
        raise InvalidModelError(f"{name}: cannot be read: {_cause(error)}") from error
    finally:
        logger.setLevel(level)
    hold_initializers(model)
    if folder is not None and used:
        ir.external_data.set_base_dir(model.graph, str(folder))
    return model


def _cause(error: BaseException) -> str:
    """The reason at the bottom: onnx-ir wraps it once per level of the file."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:300]


def _dense(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with sparse initializers written out, as every runtime does; a copy if there are any.

    Raises:
        UnsupportedModelError: written out they would be larger than ``MAX_DENSE_BYTES``.
    """
    if not any(graph.sparse_initializer for graph in walk_protos(proto.graph)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for graph in walk_protos(copy.graph):
        for sparse in graph.sparse_initializer:
            values = onnx.numpy_helper.to_array(sparse.values)
            if math.prod(sparse.dims) * values.itemsize > MAX_DENSE_BYTES:
                raise UnsupportedModelError(
                    f"{name}: sparse weight {sparse.values.name!r} is too large to be written out"
                )
            places = onnx.numpy_helper.to_array(sparse.indices)
            if places.ndim == 2:
                places = np.ravel_multi_index(tuple(places.T), tuple(sparse.dims))
            dense = np.zeros(math.prod(sparse.dims), values.dtype)
            dense[places] = values
            graph.initializer.append(
                onnx.numpy_helper.from_array(dense.reshape(tuple(sparse.dims)), sparse.values.name)
            )
        del graph.sparse_initializer[:]
    return copy


def _check_versions(ir_version: int, opsets: dict[str, int], name: str) -> None:
    opset, newest_ir = newest_opset_and_ir()
    found = max(opsets.get("", 0), opsets.get("ai.onnx", 0))
    if found > opset:
        raise UnsupportedModelError(
            f"{name}: uses opset {found}, newer than opset {opset}, the newest that the installed onnxruntime accepts"
        )
    if ir_version > int(onnx.IR_VERSION):
        raise UnsupportedModelError(
            f"{name}: has IR version {ir_version}, newer than {newest_ir}, the newest that is accepted here"
        )


def _check_functions(model: ir.Model) -> None:
    """UnsupportedModelError for a function that goes by the name of one of ours and is somebody else's.

    Ours carry a hash of what they compute as overload; rules and kernels know them by name. One whose body was changed,
    as by a converter of element types, is no longer ours.
    """
    for (domain, name, overload), function in model.functions.items():
        if domain != custom_ops.DOMAIN or name not in custom_ops.specs():
            continue
        if overload != custom_ops.fingerprint(function):
            raise UnsupportedModelError(
                f"function {domain}::{name} with overload {overload!r} is not one of this package's, "
                f"to which the domain {domain!r} belongs, or was changed since: rename its domain"
            )


def check_external(model: ir.Model) -> dict[Path, str]:
    """Files that hold weights, and the name of a weight in each.

    Raises:
        ModelLoadError: a missing or short file, or one outside of the model's folder.
    """
    files: dict[Path, str] = {}
    for graph, _ in walk.all_graphs(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor):
                continue
            folder, file = Path(tensor.base_dir).resolve(), Path(tensor.path).resolve()
            if not file.is_relative_to(folder):
                raise ModelLoadError(f"weight {value.name!r}: {tensor.location} leads out of the model's folder")
            if not file.is_file():
                raise ModelLoadError(f"weight {value.name!r}: external data file {tensor.path} does not exist")
            end = (tensor.offset or 0) + tensor.nbytes
            if file.stat().st_size < end:
                raise ModelLoadError(
                    f"weight {value.name!r}: {tensor.path} has {file.stat().st_size} bytes, {end} required"
                )
            files.setdefault(file, value.name or "")
    return files


def _check_graph(model: ir.Model) -> None:
    """Names are defined once and before use, there is no cycle, and onnx's checker has no objection."""
    model.ir_version = min(model.ir_version, newest_opset_and_ir()[1])
    graphs = walk.all_graphs(model.graph)
    for graph, _ in graphs:
        defined: set[str] = set()
        for node in graph:
            for value in node.outputs:
                if value.name and value.name in defined:
                    raise InvalidModelError(f"node {node.name!r} ({node.op_type}): {value.name!r} is computed twice")
                defined.add(value.name or "")
            for operand in node.inputs:
                if operand is not None and not _has_source(operand):
                    raise InvalidModelError(
                        f"node {node.name!r} ({node.op_type}): nothing computes its input {operand.name!r}"
                    )
        for result in graph.outputs:
            if not _has_source(result):
                raise InvalidModelError(f"nothing computes the graph output {result.name!r}")
    try:
        sort_graphs(model)
    except ValueError as error:
        raise InvalidModelError("the graph has a cycle") from error
    proto = weightless_proto(model)
    proto.ir_version = max(proto.ir_version, 4)  # before, every initializer had to be an input; no runtime insists
    proto.graph.name = proto.graph.name or "graph"  # the checker insists on one, no runtime does
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        message = " ".join(str(error).split())
        if any(text in message for text in RUNNABLE):
            return
        raise InvalidModelError(f"invalid model: {message[:300]}") from error


def _has_source(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()
