"""Six networks that the onnx package ships without weights (structure only, opset 9), with seeded random ones.

Their Softmax is left out: over random logits it hides every difference. Input float32 [1, 3, 224, 224]. See
``resnet50_light`` for the seventh.
"""

from __future__ import annotations

import functools
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnx.backend.test import data as backend_data

from models import data, zoo
from models.weights import Array, Weights


def build(name: str, norm_scale: float = 1.0) -> onnx.ModelProto:
    """``light_<name>.onnx`` with weights by what reads them, scales of normalisations around ``norm_scale``.

    Raises MissingModelError when the onnx package does not ship it.
    """
    path = Path(backend_data.__path__[0]) / "light" / f"light_{name}.onnx"
    if not path.is_file():
        raise zoo.MissingModelError(f"the onnx package ships no {path.name}")
    model = onnx.load(path)
    graph, weights = model.graph, Weights(seed=len(name))
    shapes = {t.name: tuple(int(d) for d in numpy_helper.to_array(t)) for t in graph.initializer}
    readers = {v: (node, i) for node in graph.node for i, v in enumerate(node.input)}
    kept = [n for n in graph.node if n.op_type not in ("ConstantOfShape", "Softmax")]
    filled = [n for n in graph.node if n.op_type == "ConstantOfShape"]
    tensors = [
        numpy_helper.from_array(
            _weight(shapes[n.input[0]], *_reader(readers, n.output[0]), weights, norm_scale), n.output[0]
        )
        for n in filled
    ]
    used = {name for n in kept for name in n.input}
    tensors += [t for t in graph.initializer if t.name in used]
    source, output = next(i for i in graph.input if i.name not in shapes), graph.output[0]
    output.name = kept[-1].output[0]  # of the Softmax's shape
    del graph.node[:], graph.initializer[:], graph.output[:], graph.input[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    graph.input.append(source)
    graph.output.append(output)
    model.ir_version = 4  # the first one whose initializers need not be inputs
    return model


def _reader(readers: dict[str, tuple[onnx.NodeProto, int]], value: str) -> tuple[str, int]:
    """Op and input index of what reads a value, behind Unsqueeze and Reshape, which Caffe's exporter puts between."""
    node, index = readers[value]
    while node.op_type in ("Unsqueeze", "Reshape"):
        node, index = readers[node.output[0]]
    return node.op_type, index


def _weight(shape: tuple[int, ...], op: str, index: int, weights: Weights, norm_scale: float) -> Array:
    if op in ("Conv", "Gemm") and index == 1:
        return weights.he(shape)
    centre = {("BatchNormalization", 1): norm_scale, ("BatchNormalization", 4): 1.0, ("Mul", 0): 1.0, ("Mul", 1): 1.0}
    return weights.near(centre.get((op, index), 0.0), shape[0])


def _inputs(name: str, batch: int, seed: int) -> zoo.Feed:
    if batch != 1:
        raise ValueError("the light models are fixed to a batch of 1")
    return {name: data.images(1, 224, 224, seed)}


def _model(name: str, about: str, source: str = "data_0", norm_scale: float = 1.0) -> zoo.ZooModel:
    make, inputs = functools.partial(build, name, norm_scale), functools.partial(_inputs, source)
    return zoo.ZooModel(f"{name}_light", f"{about} of the onnx package", make, inputs)


MODELS = (
    _model("densenet121", "DenseNet-121"),
    _model("vgg19", "VGG-19"),
    _model("inception_v1", "Inception v1"),
    _model("inception_v2", "Inception v2"),
    # No ReLU stands between most of its convolutions: weights that make up for one would grow out of fp16's range.
    _model("shufflenet", "ShuffleNet", "gpu_0/data_0", norm_scale=0.6),
    _model("squeezenet", "SqueezeNet"),
)
