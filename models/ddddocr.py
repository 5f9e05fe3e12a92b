"""The models of the ddddocr wheel (MIT): a YOLOX detector and a reader of captchas.

``common_det`` takes pictures of 0..255, float32 [1, 3, 416, 416]; the reader a line in grey, float32 [1, 1, 64, W].
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from models import data, zoo


def _build(file: str) -> Callable[[], onnx.ModelProto]:
    return lambda: onnx.load(zoo.file_of_package("ddddocr", f"ddddocr/{file}"))


def _pictures(batch: int, seed: int) -> zoo.Feed:
    _only_one(batch)
    return {"images": (data.images(1, 416, 416, seed) * 55 + 120).clip(0, 255)}


def _lines(batch: int, seed: int) -> zoo.Feed:
    _only_one(batch)
    return {"input1": data.text_lines(1, 64, 192, seed)[:, :1]}


def _only_one(batch: int) -> None:
    if batch != 1:
        raise ValueError("the models of ddddocr are fixed to a batch of 1")


MODELS = (
    zoo.ZooModel(
        "ddddocr_det", "YOLOX captcha detector (ddddocr)", _build("common_det.onnx"), _pictures, package="ddddocr"
    ),
    zoo.ZooModel("ddddocr", "captcha reader, 54 MB (ddddocr)", _build("common.onnx"), _lines, package="ddddocr"),
)
