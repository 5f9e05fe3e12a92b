"""ResNet-50 with 1000 classes and seeded random weights, laid out as torchvision's (stride in the 3x3 convolution).

Input input float32 [N, 3, 224, 224], output logits [N, 1000]. Opset 17. Source: He et al., "Deep Residual Learning
for Image Recognition", table 1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from models import data, zoo
from models.builder import Builder

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, stride of the first block
_EXPANSION = 4


class _Builder(Builder):
    def conv_bn(self, x: str, name: str, shape: tuple[int, int, int], stride: int, scale: float = 1.0) -> str:
        """Convolution [out, in, kernel, kernel] and batch normalisation."""
        out, channels, kernel = shape
        weight = self.constant(f"{name}.weight", self.weights.he((out, channels, kernel, kernel)))
        padding = kernel // 2
        y = self.node(
            "Conv",
            [x, weight],
            f"{name}.conv",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[padding] * 4,
        )
        statistics = [("scale", scale), ("bias", 0.0), ("mean", 0.0), ("var", 1.0)]
        parameters = [self.constant(f"{name}.{key}", self.weights.near(value, out)) for key, value in statistics]
        return self.node("BatchNormalization", [y, *parameters], f"{name}.bn", epsilon=1e-5)

    def bottleneck(self, x: str, name: str, channels: int, width: int, stride: int) -> str:
        out = width * _EXPANSION
        y = self.node("Relu", [self.conv_bn(x, f"{name}.1", (width, channels, 1), 1)], f"{name}.relu1")
        y = self.node("Relu", [self.conv_bn(y, f"{name}.2", (width, width, 3), stride)], f"{name}.relu2")
        # A small last scale keeps sixteen residual sums of random branches within fp16's range.
        y = self.conv_bn(y, f"{name}.3", (out, width, 1), 1, scale=0.4)
        if stride != 1 or channels != out:
            x = self.conv_bn(x, f"{name}.down", (out, channels, 1), stride)
        return self.node("Relu", [self.node("Add", [y, x], f"{name}.add")], f"{name}.relu3")


def build() -> onnx.ModelProto:
    b = _Builder(seed=1000)
    y = b.node("Relu", [b.conv_bn("input", "stem", (64, 3, 7), 2)], "stem.relu")
    y = b.node("MaxPool", [y], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, (width, blocks, stride) in enumerate(_STAGES, 1):
        for block in range(blocks):
            y = b.bottleneck(y, f"layer{stage}.{block}", channels, width, stride if block == 0 else 1)
            channels = width * _EXPANSION
    y = b.node("Flatten", [b.node("GlobalAveragePool", [y], "pool")], "flatten", axis=1)
    weight = b.constant("fc.weight", b.weights.he((1000, channels)) / 4)  # logits of a trained network's size
    bias = b.constant("fc.bias", np.zeros(1000, np.float32))
    b.nodes.append(helper.make_node("Gemm", [y, weight, bias], ["logits"], name="fc", transB=1))
    graph = helper.make_graph(
        b.nodes,
        "resnet50",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 1000])],
        b.initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inputs(batch: int, seed: int) -> zoo.Feed:
    return {"input": data.images(batch, 224, 224, seed)}


MODEL = zoo.ZooModel("resnet50", "ResNet-50, 1000 classes, random weights", build, inputs, batches=(1, 8))
