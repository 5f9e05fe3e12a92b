"""Decoders of the Llama family with a cache of keys and values, written as torch's exporter does at opset 18.

RMSNorm, rotary embedding, grouped heads (repeat_kv), attention and SwiGLU are all decomposed.
Inputs: input_ids, position_ids int64 [batch, sequence]; attention_mask int64 [batch, total]; for each layer
past_key_values.<i>.key and .value float32 [batch, key heads, past, head size].
Outputs: logits float32 [batch, sequence, vocabulary]; present.<i>.key and .value [batch, key heads, total, head size].
Source: Touvron et al., "LLaMA", 2023, section 2.2; Su et al., "RoFormer", 2021, section 3.4.2 for the rotation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from models import zoo
from models.builder import Builder
from models.weights import Array

OPSET = 18


@dataclass(frozen=True)
class Config:
    """The sizes of a decoder; `rope_base` is the rotary embedding's base, `epsilon` the norms'."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int
    rope_base: float
    epsilon: float

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def linear_names(config: Config) -> list[str]:
    """The initializers of all linear layers but the output one, which is the embedding; each is [inputs, outputs]."""
    parts = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
    return [
        f"model.layers.{i}.{block}.{part}.weight"
        for i in range(config.layers)
        for block, names in zip(("self_attn", "mlp"), parts, strict=True)
        for part in names
    ]


class _Decoder(Builder):
    def __init__(self, config: Config, weight: Callable[[str], Array]) -> None:
        super().__init__(seed=0)
        self.config = config
        self.weight = weight

    def whole(self, name: str, *values: int) -> str:
        return self.constant(name, np.array(values, np.int64))

    def parameter(self, name: str) -> str:
        return self.constant(name, self.weight(name))

    def linear(self, x: str, name: str) -> str:
        return self.node("MatMul", [x, self.parameter(f"{name}.weight")], f"/{name}/MatMul")

    def norm(self, x: str, name: str) -> str:
        square = self.node("Pow", [x, "two"], f"/{name}/Pow")
        mean = self.node("ReduceMean", [square, "axis_last"], f"/{name}/ReduceMean")
        root = self.node("Sqrt", [self.node("Add", [mean, "epsilon"], f"/{name}/Add")], f"/{name}/Sqrt")
        scaled = self.node("Mul", [x, self.node("Reciprocal", [root], f"/{name}/Reciprocal")], f"/{name}/Mul")
        return self.node("Mul", [self.parameter(f"{name}.weight"), scaled], f"/{name}/Mul_1")

    def constants(self) -> None:
        c = self.config
        for name, number in (("two", 2.0), ("epsilon", c.epsilon), ("zero", 0.0), ("hidden", -np.inf)):
            self.constant(name, np.array(number, np.float32))
        self.constant("root_of_scale", np.array(c.head_size**-0.25, np.float32))
        for name, index in (("index_0", 0), ("index_1", 1), ("index_2", 2)):
            self.constant(name, np.array(index, np.int64))
        for name, axis in (("axis_last", -1), ("axis_0", 0), ("axis_1", 1), ("axis_2", 2), ("axis_3", 3)):
            self.whole(name, axis)
        self.whole("axes_mask", 1, 2)
        self.whole("half", c.head_size // 2)
        self.whole("end", np.iinfo(np.int64).max)
        self.whole("shape_heads", 0, 0, -1, c.head_size)
        self.whole("shape_hidden", 0, 0, -1)
        self.whole("copies", 1, 1, c.heads // c.key_heads, 1, 1)
        self.whole("heads", c.heads)
        self.whole("head_size", c.head_size)
        frequencies = 1.0 / c.rope_base ** (np.arange(0, c.head_size, 2) / c.head_size)
        self.constant("inverse_frequencies", frequencies.astype(np.float32).reshape(1, -1, 1))

    def angles(self) -> None:
        """Cosines and sines, [batch, 1, sequence, head size]."""
        positions = self.node(
            "Cast", [self.node("Unsqueeze", ["position_ids", "axis_1"], "/rotary/row")], "/rotary", to=1
        )
        product = self.node("MatMul", ["inverse_frequencies", positions], "/rotary/MatMul")
        angles = self.node("Transpose", [product], "/rotary/Transpose", perm=[0, 2, 1])
        both = self.node("Concat", [angles, angles], "/rotary/Concat", axis=-1)
        for op in ("Cos", "Sin"):
            self.node("Unsqueeze", [self.node(op, [both], f"/rotary/{op}"), "axis_1"], f"/rotary/{op}_heads")

    def mask(self) -> None:
        """What is added to the scores, [batch, 1, sequence, total]: 0, or -inf for later tokens and padding."""
        total = self.node("Gather", [self.node("Shape", ["attention_mask"], "/mask/Shape"), "index_1"], "/mask/total")
        length = self.node("Gather", [self.node("Shape", ["input_ids"], "/mask/Shape_1"), "index_1"], "/mask/length")
        past = self.node("Sub", [total, length], "/mask/past")
        keys = self.node("Range", ["index_0", total, "index_1"], "/mask/keys")
        queries = self.node(
            "Add", [self.node("Range", ["index_0", length, "index_1"], "/mask/new"), past], "/mask/queries"
        )
        column = self.node("Unsqueeze", [queries, "axis_1"], "/mask/column")
        causal = self.node("LessOrEqual", [keys, column], "/mask/causal")
        seen = self.node("Cast", ["attention_mask"], "/mask/seen", to=TensorProto.BOOL)
        both = self.node("And", [self.node("Unsqueeze", [seen, "axes_mask"], "/mask/rows"), causal], "/mask/And")
        self.node("Where", [both, "zero", "hidden"], "/mask")

    def rotate(self, x: str, name: str) -> str:
        first = self.node("Slice", [x, "axis_0", "half", "axis_3"], f"{name}/first")
        second = self.node("Slice", [x, "half", "end", "axis_3"], f"{name}/second")
        turned = self.node("Concat", [self.node("Neg", [second], f"{name}/Neg"), first], f"{name}/turned", axis=-1)
        straight = self.node("Mul", [x, "/rotary/Cos_heads_out"], f"{name}/Mul")
        return self.node(
            "Add", [straight, self.node("Mul", [turned, "/rotary/Sin_heads_out"], f"{name}/Mul_1")], f"{name}/Add"
        )

    def cached(self, new: str, i: int, kind: str) -> str:
        """Appends to the cache; the whole is an output of the graph."""
        name = f"present.{i}.{kind}"
        old = f"past_key_values.{i}.{kind}"
        self.nodes.append(helper.make_node("Concat", [old, new], [name], f"/model.layers.{i}/cache/{kind}", axis=-2))
        return name

    def repeat(self, x: str, name: str) -> str:
        """[batch, key heads, total, size] with each head as often as queries share it."""
        if self.config.heads == self.config.key_heads:
            return x
        shape = self.node("Shape", [x], f"{name}/Shape")
        sizes = [
            self.node(
                "Unsqueeze", [self.node("Gather", [shape, f"index_{k}"], f"{name}/{k}"), "axis_0"], f"{name}/size_{k}"
            )
            for k in (0, 2)
        ]
        target = self.node("Concat", [sizes[0], "heads", sizes[1], "head_size"], f"{name}/target", axis=0)
        copies = self.node(
            "Expand", [self.node("Unsqueeze", [x, "axis_2"], f"{name}/group"), "copies"], f"{name}/Expand"
        )
        return self.node("Reshape", [copies, target], f"{name}/Reshape")

    def attention(self, x: str, i: int) -> str:
        name = f"model.layers.{i}.self_attn"
        heads = {}
        for part in ("q", "k", "v"):
            split = self.node(
                "Reshape", [self.linear(x, f"{name}.{part}_proj"), "shape_heads"], f"/{name}/{part}/Reshape"
            )
            heads[part] = self.node("Transpose", [split], f"/{name}/{part}/Transpose", perm=[0, 2, 1, 3])
        q, k = (self.rotate(heads[part], f"/{name}/{part}/rotary") for part in ("q", "k"))
        k = self.repeat(self.cached(k, i, "key"), f"/{name}/k/repeat")
        v = self.repeat(self.cached(heads["v"], i, "value"), f"/{name}/v/repeat")
        q = self.node("Mul", [q, "root_of_scale"], f"/{name}/q/scale")
        columns = self.node("Transpose", [k], f"/{name}/k/columns", perm=[0, 1, 3, 2])
        columns = self.node("Mul", [columns, "root_of_scale"], f"/{name}/k/scale")
        scores = self.node(
            "Add", [self.node("MatMul", [q, columns], f"/{name}/scores"), "/mask_out"], f"/{name}/masked"
        )
        weights = self.node("Softmax", [scores], f"/{name}/Softmax", axis=-1)
        # A query that may see nothing: torch's scaled_dot_product_attention gives it zeros.
        empty = self.node("IsNaN", [weights], f"/{name}/IsNaN")
        weights = self.node("Where", [empty, "zero", weights], f"/{name}/Where")
        rows = self.node(
            "Transpose", [self.node("MatMul", [weights, v], f"/{name}/context")], f"/{name}/rows", perm=[0, 2, 1, 3]
        )
        return self.linear(self.node("Reshape", [rows, "shape_hidden"], f"/{name}/merge"), f"{name}.o_proj")

    def feed_forward(self, x: str, i: int) -> str:
        name = f"model.layers.{i}.mlp"
        gate = self.linear(x, f"{name}.gate_proj")
        swish = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"/{name}/Sigmoid")], f"/{name}/Mul")
        product = self.node("Mul", [swish, self.linear(x, f"{name}.up_proj")], f"/{name}/Mul_1")
        return self.linear(product, f"{name}.down_proj")

    def layer(self, x: str, i: int) -> str:
        name = f"model.layers.{i}"
        attended = self.attention(self.norm(x, f"{name}.input_layernorm"), i)
        x = self.node("Add", [x, attended], f"/{name}/Add")
        fed = self.feed_forward(self.norm(x, f"{name}.post_attention_layernorm"), i)
        return self.node("Add", [x, fed], f"/{name}/Add_1")

    def model(self, name: str) -> onnx.ModelProto:
        c = self.config
        self.constants()
        self.angles()
        self.mask()
        embedding = self.parameter("model.embed_tokens.weight")
        x = self.node("Gather", [embedding, "input_ids"], "/model.embed_tokens/Gather")
        for i in range(c.layers):
            x = self.layer(x, i)
        x = self.norm(x, "model.norm")
        columns = self.node("Transpose", [embedding], "/lm_head/Transpose", perm=[1, 0])
        self.nodes.append(helper.make_node("MatMul", [x, columns], ["logits"], "/lm_head/MatMul"))

        def value(name: str, kind: int, *shape: str | int) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, kind, shape)

        def caches(prefix: str, length: str) -> list[onnx.ValueInfoProto]:
            shape = ("batch", c.key_heads, length, c.head_size)
            return [
                value(f"{prefix}.{i}.{kind}", TensorProto.FLOAT, *shape)
                for i in range(c.layers)
                for kind in ("key", "value")
            ]

        whole = TensorProto.INT64
        inputs = [
            value("input_ids", whole, "batch", "sequence"),
            value("attention_mask", whole, "batch", "total"),
            value("position_ids", whole, "batch", "sequence"),
            *caches("past_key_values", "past"),
        ]
        logits = value("logits", TensorProto.FLOAT, "batch", "sequence", c.vocabulary)
        graph = helper.make_graph(self.nodes, name, inputs, [logits, *caches("present", "total")], self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def build(name: str, config: Config, weight: Callable[[str], Array]) -> onnx.ModelProto:
    """The decoder as ONNX.

    Args:
        weight: gives each initializer by its name in transformers' checkpoints, float32: a linear layer's as
            [inputs, outputs], the embedding (which is the output layer's weight as well) as [vocabulary, hidden].
    """
    return _Decoder(config, weight).model(name)


def feed(config: Config, ids: Array, past: int = 0, seed: int = 0) -> zoo.Feed:
    """The inputs for token ids [batch, sequence], no padding; `past` > 0 fills a cache with random values."""
    batch, length = ids.shape
    rng = np.random.default_rng(seed)
    feed: zoo.Feed = {
        "input_ids": ids.astype(np.int64),
        "attention_mask": np.ones((batch, past + length), np.int64),
        "position_ids": np.arange(past, past + length, dtype=np.int64)[None].repeat(batch, 0),
    }
    shape = (batch, config.key_heads, past, config.head_size)
    for i in range(config.layers):
        for kind in ("key", "value"):
            feed[f"past_key_values.{i}.{kind}"] = rng.standard_normal(shape, np.float32)
    return feed
