"""The forms in which a model may be given to a session, brought to what ONNX Runtime takes: a path or bytes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def open_model(model: Any) -> Iterator[str | bytes]:
    """Yields a path or the serialized model for each form of a model that ``InferenceSession`` takes.

    A model too large for one protobuf message (2 GB) goes through a temporary folder that is removed when
    the block ends: the session has read its weights by then. Raises TypeError for anything else.
    """
    if isinstance(model, str | os.PathLike):
        yield os.fspath(model)
        return
    if isinstance(model, bytes | bytearray | memoryview):
        yield bytes(model)
        return
    if type(model).__module__.startswith("onnx_graphsurgeon"):
        model = _of_graphsurgeon(model)
    optimized = hasattr(model, "model") and hasattr(model, "report")
    proto = model.model if optimized else model
    if not hasattr(proto, "SerializeToString"):
        raise TypeError(
            "a model is a path, bytes, onnx.ModelProto, onnx_graphsurgeon.Graph or the result of cuvil_onnx.optimize, "
            f"not {type(model).__name__}"
        )
    data = None if optimized and _has_external_data(proto) else _serialize(proto)
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="cuvil_onnx-") as folder:
        path = Path(folder) / "model.onnx"
        if optimized:
            model.save(path)
        else:
            _save_with_external_data(proto, path)
        yield str(path)


def _of_graphsurgeon(graph: Any) -> Any:
    import onnx_graphsurgeon as gs

    return gs.export_onnx(graph)


def _serialize(proto: Any) -> bytes | None:
    """The message's bytes; None when it is too large for one message."""
    try:
        data: bytes = proto.SerializeToString()
    except Exception:  # the protobuf runtimes raise different classes for it
        return None
    return data


def _has_external_data(proto: Any) -> bool:
    # 1 is TensorProto.EXTERNAL; the result of `optimize` refers to the original's files when it exceeds 2 GB.
    return any(tensor.data_location == 1 for tensor in proto.graph.initializer)


def _save_with_external_data(proto: Any, path: Path) -> None:
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)  # onnx.save moves the weights out of the message it is given
    onnx.save(copy, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location="weights")
