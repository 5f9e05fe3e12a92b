"""Writes a model atomically: the target appears complete or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO

import onnx
import onnx_ir as ir

from cuvil_onnx.errors import OutputError
from cuvil_onnx.passes.in_file import InFile
from cuvil_onnx.passes.stream import stream_model
from cuvil_onnx.rewrite import walk

PROTO_LIMIT = 2**31 - 2**24
"""Protobuf ends at 2 GiB; the room below it is for everything that is no weight."""

INSIDE_BYTES = 1 << 28
"""A model that came with external data and needs none any more has more than this outside all the same."""

EXTERNAL_MIN_BYTES = 1024
ALIGNMENT = 4096
"""So that weights can be mapped from the file."""


def write_model(model: ir.Model, path: Path, protected: Collection[Path], external: bool = False) -> Path:
    """Writes ``model`` to ``path`` (and ``<path>.data`` when it is large or its weights are external data).

    Args:
        model: what to write.
        path: where.
        protected: files that must not be replaced.
        external: whether the weights of the input were external data; a large result then has its own outside too,
            although they were computed: inside, they would be in memory three times.

    Raises:
        OutputError: unwritable folder, full disk, or a path in ``protected``. What stood there before is untouched.
    """
    check_target(path)
    data_path = path.with_name(path.name + ".data")
    values = [v for graph, _ in walk.all_graphs(model.graph) for v in graph.initializers.values()]
    tensors = [v.const_value for v in values if v.const_value is not None]
    limit = INSIDE_BYTES if external else PROTO_LIMIT
    external = sum(t.nbytes for t in tensors) > limit or any(isinstance(t, ir.ExternalTensor) for t in tensors)
    for target in (path, data_path) if external else (path,):
        if target.resolve() in protected:
            raise OutputError(f"{target}: is a file of the input model; choose another path")
        check_target(target)
    with _Staged() as staged, contextlib.ExitStack() as stack:
        if external:
            stack.enter_context(_moved_out(model, path, data_path, staged))
        staged.add(path, lambda file: stream_model(model, file))
        staged.publish()
    return path


def check_target(path: Path) -> None:
    """Raises OutputError when no regular file can stand at ``path``; a device or pipe there must not be replaced."""
    try:
        if path.is_dir() or not path.name:
            raise OutputError(f"{path}: is a folder, a file name is required")
        if not path.parent.is_dir():
            raise OutputError(f"{path}: the folder {path.parent} does not exist")
        if path.exists() and not path.is_file():
            raise OutputError(f"{path}: is no regular file")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def atomically(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Fills a temporary file in the target's folder, flushes it to disk and renames it."""
    check_target(path)
    with _Staged() as staged:
        staged.add(path, fill)
        staged.publish()


class _Staged:
    """Files written completely under temporary names, which take their places together."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, Path]] = []

    def __enter__(self) -> _Staged:
        return self

    def __exit__(self, *_: object) -> None:
        for temporary, _target in self._waiting:
            if os.path.exists(temporary):
                os.unlink(temporary)

    def add(self, path: Path, fill: Callable[[IO[bytes]], object]) -> None:
        """Writes what is to stand at ``path``, and flushes it to disk."""
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:32]}.", suffix=".tmp", dir=path.parent)
            self._waiting.append((temporary, path))
            with os.fdopen(descriptor, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)  # mkstemp makes files that only their owner can read
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error

    def publish(self) -> None:
        """Renames all files; only now is anything of what stood there replaced."""
        for temporary, path in self._waiting:
            try:
                os.replace(temporary, path)
            except OSError as error:
                raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _moved_out(model: ir.Model, path: Path, data_path: Path, staged: _Staged) -> Iterator[None]:
    """Writes the weights that go to ``data_path`` and lets the model refer to them while the caller serialises it."""
    layout: list[tuple[ir.Value, ir.TensorProtocol, int]] = []
    position = 0
    for graph, _ in walk.all_graphs(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < EXTERNAL_MIN_BYTES or tensor.dtype == ir.DataType.STRING:
                continue
            position = -(-position // ALIGNMENT) * ALIGNMENT
            layout.append((value, tensor, position))
            position += tensor.nbytes

    def fill(file: IO[bytes]) -> None:
        for _, tensor, offset in layout:
            file.write(b"\0" * (offset - file.tell()))
            if isinstance(tensor, (ir.ExternalTensor, InFile, ir.Tensor)):
                tensor.tofile(file)  # from file to file without passing through memory
            else:
                file.write(tensor.tobytes())

    staged.add(data_path, fill)
    small = [
        (value, value.const_value)
        for graph, _ in walk.all_graphs(model.graph)
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor) and value.const_value.nbytes < EXTERNAL_MIN_BYTES
    ]
    try:
        for value, tensor, offset in layout:
            value.const_value = ir.ExternalTensor(
                data_path.name,
                offset,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=value.name or "",
                base_dir=str(path.parent),
            )
        for value, tensor in small:
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
        yield
    finally:
        for value, tensor, _ in layout:
            value.const_value = tensor
        for value, tensor in small:
            value.const_value = tensor


def self_contained(model: ir.Model) -> onnx.ModelProto:
    """The model as one proto with all weights inside."""
    proto = ir.to_proto(model)
    by_name = model.graph.initializers
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            held = by_name[tensor.name].const_value
            assert held is not None
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = held.tobytes()
    return proto
