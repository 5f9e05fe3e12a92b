"""BERT-base, 12 layers with seeded random weights, in the form that torch's exporter writes at opset 17.

Inputs input_ids and attention_mask int64 [batch, sequence]; output last_hidden_state float32 [batch, sequence, 768].
Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", section 3.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from models import data, zoo
from models.builder import Builder

SEQUENCE = 128
LAYERS, HEADS, HIDDEN, INNER, VOCABULARY, POSITIONS = 12, 12, 768, 3072, 30522, 512


class _Builder(Builder):
    def linear(self, x: str, name: str, columns: int, rows: int) -> str:
        weight = self.constant(f"{name}.weight", self.weights.normal((columns, rows), 0.02))
        bias = self.constant(f"{name}.bias", self.weights.near(0.0, rows, 0.02))
        return self.node("Add", [self.node("MatMul", [x, weight], f"{name}/MatMul"), bias], f"{name}/Add")

    def norm(self, x: str, name: str) -> str:
        scale = self.constant(f"{name}.weight", self.weights.near(1.0, HIDDEN))
        bias = self.constant(f"{name}.bias", self.weights.near(0.0, HIDDEN))
        return self.node("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=1e-12)

    def heads(self, x: str, name: str, order: list[int]) -> str:
        split = self.node("Reshape", [x, "shape_heads"], f"{name}/Reshape")
        return self.node("Transpose", [split], f"{name}/Transpose", perm=order)

    def attention(self, x: str, name: str, mask: str) -> str:
        parts = [self.linear(x, f"{name}.{part}", HIDDEN, HIDDEN) for part in ("query", "key", "value")]
        q, v = (self.heads(parts[i], f"{name}/{i}", [0, 2, 1, 3]) for i in (0, 2))
        k = self.heads(parts[1], f"{name}/1", [0, 2, 3, 1])
        scores = self.node("Div", [self.node("MatMul", [q, k], f"{name}/scores"), "root_of_head"], f"{name}/Div")
        masked = self.node("Add", [scores, mask], f"{name}/mask")
        weighted = self.node(
            "MatMul", [self.node("Softmax", [masked], f"{name}/Softmax", axis=-1), v], f"{name}/context"
        )
        rows = self.node("Transpose", [weighted], f"{name}/back", perm=[0, 2, 1, 3])
        merged = self.node("Reshape", [rows, "shape_hidden"], f"{name}/merge")
        return self.linear(merged, f"{name}.output", HIDDEN, HIDDEN)

    def gelu(self, x: str, name: str) -> str:
        inner = self.node("Erf", [self.node("Div", [x, "root_of_two"], f"{name}/Div")], f"{name}/Erf")
        sum_ = self.node("Add", [inner, "one"], f"{name}/Add")
        return self.node("Mul", [self.node("Mul", [x, sum_], f"{name}/Mul"), "half"], f"{name}/half")

    def layer(self, x: str, name: str, mask: str) -> str:
        attended = self.attention(x, f"{name}.attention", mask)
        y = self.norm(self.node("Add", [attended, x], f"{name}/residual"), f"{name}.attention.norm")
        inner = self.gelu(self.linear(y, f"{name}.inner", HIDDEN, INNER), f"{name}.gelu")
        outer = self.linear(inner, f"{name}.outer", INNER, HIDDEN)
        return self.norm(self.node("Add", [outer, y], f"{name}/residual2"), f"{name}.norm")


def build() -> onnx.ModelProto:
    b = _Builder(seed=2018)
    for name, value in (("root_of_head", math.sqrt(HIDDEN / HEADS)), ("root_of_two", math.sqrt(2))):
        b.constant(name, np.array(value, np.float32))
    for name, value in (("one", 1.0), ("half", 0.5), ("lowest", float(np.finfo(np.float32).min))):
        b.constant(name, np.array(value, np.float32))
    b.constant("shape_heads", np.array([0, -1, HEADS, HIDDEN // HEADS], np.int64))
    b.constant("shape_hidden", np.array([0, -1, HIDDEN], np.int64))
    b.constant("mask_axes", np.array([1, 2], np.int64))

    floats = b.node("Cast", [b.node("Unsqueeze", ["attention_mask", "mask_axes"], "mask/4d")], "mask/Cast", to=1)
    mask = b.node("Mul", [b.node("Sub", ["one", floats], "mask/Sub"), "lowest"], "mask")
    words = b.constant("embeddings.word", b.weights.normal((VOCABULARY, HIDDEN), 0.02))
    places = b.constant("embeddings.position", b.weights.normal((1, POSITIONS, HIDDEN), 0.02))
    kind = b.constant("embeddings.type", b.weights.normal((1, 1, HIDDEN), 0.02))
    length = b.node("Shape", ["input_ids"], "length", start=1, end=2)
    for name, whole in (("zero", 0), ("axis", 1)):
        b.constant(name, np.array([whole], np.int64))
    position = b.node("Slice", [places, "zero", length, "axis"], "embeddings/Slice")
    token = b.node("Gather", [words, "input_ids"], "embeddings/Gather")
    x = b.node("Add", [b.node("Add", [token, kind], "embeddings/type"), position], "embeddings/position")
    x = b.norm(x, "embeddings.norm")
    for i in range(LAYERS):
        x = b.layer(x, f"layer.{i}", mask)
    b.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"], name="output"))
    sizes = ["batch", "sequence"]
    graph = helper.make_graph(
        b.nodes,
        "bert_base",
        [helper.make_tensor_value_info(n, TensorProto.INT64, sizes) for n in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*sizes, HIDDEN])],
        b.initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inputs(batch: int, seed: int) -> zoo.Feed:
    ids, mask = data.token_ids(batch, SEQUENCE, seed)
    return {"input_ids": ids, "attention_mask": mask}


MODEL = zoo.ZooModel("bert_base", "BERT-base, 12 layers, random weights", build, inputs, batches=(1, 8))
