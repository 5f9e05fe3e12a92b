"""Magika's file type classifier, ``standard_v3_3``, from the magika wheel (Apache-2.0).

A jax2tf export: LayerNorm in its rsqrt form, tanh GELU. Input bytes int32 [N, 2048] (the beginning and the end of a
file, 256 as padding), output probabilities [N, 214].
"""

from __future__ import annotations

import onnx

from models import data, zoo


def build() -> onnx.ModelProto:
    return onnx.load(zoo.file_of_package("magika", "standard_v3_3/model.onnx"))


def inputs(batch: int, seed: int) -> zoo.Feed:
    return {"bytes": data.file_bytes(batch, 1024, 1024, seed)}


MODEL = zoo.ZooModel("magika", "file type classifier (magika)", build, inputs, batches=(1, 16), package="magika")
