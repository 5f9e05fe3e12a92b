"""PP-OCR's text recogniser, ``PP-OCRv6_rec_small``, from the rapidocr wheel (Apache-2.0).

Convolutions, then attention over the columns of a line, then 18710 characters. Input x float32 [N, 3, 48, W], output
probabilities [N, W / 8, 18710].
"""

from __future__ import annotations

import onnx

from models import data, zoo


def build() -> onnx.ModelProto:
    return onnx.load(zoo.file_of_package("rapidocr", "PP-OCRv6_rec_small.onnx"))


def inputs(batch: int, seed: int) -> zoo.Feed:
    return {"x": data.page(batch, 48, 320, seed)}


MODEL = zoo.ZooModel(
    "ppocr_rec", "PP-OCR text recogniser (rapidocr)", build, inputs, batches=(1, 8), package="rapidocr"
)
