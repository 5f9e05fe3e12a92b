"""ResNet-50 as the onnx package ships it (structure only, opset 9), with seeded random weights.

Input gpu_0/data_0 float32 [1, 3, 224, 224]; the output is the logits [1, 1000] (the file's Softmax is left out: over
random logits it hides every difference).
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import numpy_helper
from onnx.backend.test import data as backend_data

from models import data, zoo
from models.weights import Array, Weights

INPUT = "gpu_0/data_0"


def build() -> onnx.ModelProto:
    path = Path(backend_data.__path__[0]) / "light" / "light_resnet50.onnx"
    if not path.is_file():
        raise zoo.MissingModelError(f"the onnx package ships no {path.name}")
    model = onnx.load(path)
    graph, weights = model.graph, Weights(seed=50)
    shapes = {t.name: tuple(numpy_helper.to_array(t)) for t in graph.initializer}
    filled = [n for n in graph.node if n.op_type == "ConstantOfShape"]
    tensors = [
        numpy_helper.from_array(_weight(n.output[0], tuple(int(d) for d in shapes[n.input[0]]), weights), n.output[0])
        for n in filled
    ]
    kept = [n for n in graph.node if n.op_type not in ("ConstantOfShape", "Softmax")]
    used = {name for n in kept for name in n.input}
    tensors += [t for t in graph.initializer if t.name in used]
    logits = kept[-1].output[0]
    del graph.node[:], graph.initializer[:], graph.output[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    graph.output.append(onnx.helper.make_tensor_value_info(logits, onnx.TensorProto.FLOAT, [1, 1000]))
    data_input = next(i for i in graph.input if i.name == INPUT)
    del graph.input[:]
    graph.input.append(data_input)
    model.ir_version = 4  # the first one whose initializers need not be inputs
    return model


def _weight(name: str, shape: tuple[int, ...], weights: Weights) -> Array:
    if name == "gpu_0/pred_w_0":
        return weights.he(shape) / 4  # logits of a trained network's size
    if "_bn_" not in name:
        return weights.he(shape) if len(shape) > 1 else weights.near(0, shape[0])
    if name.endswith(("_bn_b_0", "_bn_rm_0")):
        return weights.near(0, shape[0])
    # Scales of the last layer in each branch are small: sixteen sums of equals would grow out of fp16's range.
    return weights.near(0.4 if name.endswith("branch2c_bn_s_0") else 1.0, shape[0])


def inputs(batch: int, seed: int) -> zoo.Feed:
    if batch != 1:
        raise ValueError("the light ResNet-50 is fixed to a batch of 1")
    return {INPUT: data.images(1, 224, 224, seed)}


MODEL = zoo.ZooModel("resnet50_light", "ResNet-50 of the onnx package, random weights", build, inputs)
