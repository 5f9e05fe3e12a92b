"""A model of a few kilobytes that needs no package but onnx: convolution, pointwise chain, LayerNorm, GELU, classifier.

Input x float32 [N, 3, 32, 32], output logits [N, 10]. Weights are random. It shows every stage of the optimizer in
less than a second, and is what tests use where a real model would be slow.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models import data, zoo
from models.weights import Weights


def build() -> onnx.ModelProto:
    w = Weights(seed=3)
    constants = {
        "conv.weight": w.he((16, 3, 3, 3)),
        "bn.scale": w.near(1, 16),
        "bn.bias": w.near(0, 16),
        "bn.mean": w.near(0, 16),
        "bn.var": w.near(1, 16),
        "axes": np.array([2, 3], np.int64),
        "norm.scale": w.near(1, 16),
        "norm.bias": w.near(0, 16),
        "fc1.weight": w.he((16, 64)),
        "fc1.bias": w.near(0, 64),
        "sqrt2": np.array(2**0.5, np.float32),
        "one": np.array(1, np.float32),
        "half": np.array(0.5, np.float32),
        "fc2.weight": w.he((64, 10)),
        "fc2.bias": w.near(0, 10),
    }
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "conv.weight"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
        make("BatchNormalization", ["c", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["n"], name="bn"),
        make("HardSigmoid", ["n"], ["gate"], name="gate", alpha=1 / 6, beta=0.5),
        make("Mul", ["n", "gate"], ["h"], name="hardswish"),
        make("ReduceMean", ["h", "axes"], ["p"], name="pool", keepdims=0),
        make("LayerNormalization", ["p", "norm.scale", "norm.bias"], ["l"], name="norm", axis=-1),
        make("MatMul", ["l", "fc1.weight"], ["m"], name="fc1"),
        make("Add", ["m", "fc1.bias"], ["a"], name="fc1_bias"),
        make("Div", ["a", "sqrt2"], ["d"], name="gelu_div"),
        make("Erf", ["d"], ["e"], name="gelu_erf"),
        make("Add", ["e", "one"], ["e1"], name="gelu_add"),
        make("Mul", ["a", "e1"], ["g"], name="gelu_mul"),
        make("Mul", ["g", "half"], ["gelu"], name="gelu_half"),
        make("MatMul", ["gelu", "fc2.weight"], ["f"], name="fc2"),
        make("Add", ["f", "fc2.bias"], ["logits"], name="fc2_bias"),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def inputs(batch: int, seed: int) -> zoo.Feed:
    return {"x": data.images(batch, 32, 32, seed)}


MODEL = zoo.ZooModel("tiny", "a few layers of everything, random weights", build, inputs, batches=(1, 8))
