"""PP-OCR's text detector, ``PP-OCRv6_det_small``, from the rapidocr wheel (Apache-2.0).

Weights behind Identity nodes, squeeze-and-excite with HardSigmoid, erf GELU, ConvTranspose. Input x float32
[N, 3, H, W] with H and W multiples of 32, output a map of text [N, 1, H, W].
"""

from __future__ import annotations

import onnx

from models import data, zoo


def build() -> onnx.ModelProto:
    return onnx.load(zoo.file_of_package("rapidocr", "PP-OCRv6_det_small.onnx"))


def inputs(batch: int, seed: int) -> zoo.Feed:
    return {"x": data.page(batch, 320, 640, seed)}


MODEL = zoo.ZooModel("ppocr_det", "PP-OCR text detector (rapidocr)", build, inputs, batches=(1, 8), package="rapidocr")
