"""Device time of a small model against the card's measured copy bandwidth.

``python -m cuvil_onnx.bench.kernels JOB.json RESULT.json`` measures one provider in a process of its own. The job:
``{"model", "providers", "elements", "seed"}``, the model with inputs x (fp16) and y (fp32) of ``elements`` each.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper

from cuvil_onnx.bench.device_io import BoundIO
from cuvil_onnx.runtime.cuda_driver import DeviceMemory, Event, Stream, context

_ROUNDS, _RUNS = 20, 20


def cast_add_relu(elements: int) -> onnx.ModelProto:
    """z = Relu(Cast(x, fp32) + y) over ``elements`` values: 10 bytes of traffic each when it is one kernel."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["c"], name="cast", to=TensorProto.FLOAT),
            helper.make_node("Add", ["c", "y"], ["a"], name="add"),
            helper.make_node("Relu", ["a"], ["z"], name="relu"),
        ],
        "cast_add_relu",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT16, [elements]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [elements]),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [elements])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


BYTES_PER_ELEMENT = 2 + 4 + 4


def device_ms(stream: Stream, enqueue: Callable[[], object]) -> float:
    """Median device time of one ``enqueue`` in milliseconds, from rounds of runs back to back between two events."""
    samples = []
    with stream.context:
        start, end = Event(stream.context), Event(stream.context)
        for _ in range(_ROUNDS + 2):
            start.record(stream)
            for _ in range(_RUNS):
                enqueue()
            end.record(stream)
            samples.append(end.milliseconds_since(start) / _RUNS)
    return statistics.median(samples[2:])


def copy_bytes_per_ms(size: int = 512 << 20) -> float:
    """Bytes read plus written per millisecond by the driver's device-to-device copy of ``size`` bytes."""
    stream = Stream(context(0))
    source, target = DeviceMemory(stream.context, size), DeviceMemory(stream.context, size)
    with stream.context:
        stream.fill(source.address, 1, size)
    return 2 * size / device_ms(stream, lambda: stream.copy_on_device(target.address, source.address, size))


def measure(model: str, providers: list[tuple[str, dict[str, str]]], elements: int, seed: int) -> dict[str, Any]:
    """Device time of the model on the first provider, and whether its result is right bit for bit."""
    stream = Stream(context(0))
    names = [name for name, _ in providers]
    options = [dict(values) for _, values in providers]
    options[0].update(user_compute_stream=str(stream.handle), enable_cuda_graph="0")
    session = onnxruntime.InferenceSession(model, None, names, options, enable_fallback=0)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(elements, np.float32).astype(np.float16)
    y = rng.standard_normal(elements, np.float32)
    want: npt.NDArray[Any] = np.maximum(x.astype(np.float32) + y, 0)
    io = BoundIO(session, {"x": x, "y": y}, {"z": want})
    run_options = onnxruntime.RunOptions()
    run_options.add_run_config_entry("gpu_graph_id", "-1")
    run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    ms = device_ms(stream, lambda: session.run_with_iobinding(io.binding, run_options))
    with stream.context:
        stream.synchronize()
    return {
        "ms": ms,
        "right": bool(np.array_equal(io.read()["z"], want)),
        "copy_bytes_per_ms": copy_bytes_per_ms(),
        "onnxruntime": onnxruntime.__version__,
    }


def main() -> None:
    job_file, result_file = sys.argv[1:3]
    job = json.loads(Path(job_file).read_text())
    try:
        result = measure(job["model"], job["providers"], job["elements"], job["seed"])
    except Exception as error:
        result = {"error": " ".join(str(error).split())}
    Path(result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
