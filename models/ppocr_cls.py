"""PP-OCR's text direction classifier, ``ch_ppocr_mobile_v2.0_cls``, from the rapidocr wheel (Apache-2.0).

MobileNetV3-like: 35 unfused Conv -> BatchNormalization, 18 decomposed HardSwish, squeeze-and-excite, weights in
Constant nodes. Input x float32 [N, 3, 48, 192] (any N, H, W), output [N, 2]: upright or turned.
"""

from __future__ import annotations

import onnx

from models import data, zoo


def build() -> onnx.ModelProto:
    return onnx.load(zoo.file_of_package("rapidocr", "ch_ppocr_mobile_v2.0_cls_mobile.onnx"))


def inputs(batch: int, seed: int) -> zoo.Feed:
    return {"x": data.text_lines(batch, 48, 192, seed)}


MODEL = zoo.ZooModel(
    "ppocr_cls", "PP-OCR text direction classifier (rapidocr)", build, inputs, batches=(1, 8), package="rapidocr"
)
