"""The model that benchmarks.kernels.int4 measures: products of one input with several weights of 4 or 8 bits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
_FOOTPRINT = 160 << 20  # past the largest L2 of a current card


@dataclass(frozen=True)
class Weights:
    """``count`` random weights of MatMulNBits, such that one after the other none is found in the L2 cache."""

    k: int
    n: int
    block: int
    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of the codes and scales of one."""
        return self.k * self.n * self.bits // 8 + -(-self.k // self.block) * self.n * 2

    @property
    def count(self) -> int:
        return -(-_FOOTPRINT // self.nbytes)

    @property
    def nodes(self) -> int:
        """Products of one run; the weights take turns."""
        return max(self.count, 4)

    def arrays(self, index: int) -> tuple[Array, Array]:
        """Codes [N, blocks, bytes] and scales [N, blocks] of a weight."""
        generator = np.random.default_rng(index)
        blocks = self.k // self.block
        codes = generator.integers(0, 256, (self.n, blocks, self.block * self.bits // 8), np.uint8)
        scales = generator.uniform(0.5, 1.5, (self.n, blocks)).astype(np.float16) / np.float16(1 << self.bits)
        return codes, scales

    def columns(self, index: int, rows: Array) -> Array:
        """Some columns of a weight, [len(rows), K], in float64: codes relative to the middle, times scale, rounded."""
        codes, scales = self.arrays(index)
        packed = codes[rows].reshape(len(rows), -1)
        per = 8 // self.bits
        numbers = (packed[:, :, None] >> (np.arange(per) * self.bits).astype(np.uint8)) & ((1 << self.bits) - 1)
        centred = numbers.reshape(len(rows), -1).astype(np.float32) - (1 << (self.bits - 1))
        exact = centred * np.repeat(scales[rows].astype(np.float32), self.block, axis=1)
        return exact.astype(np.float16).astype(np.float64)

    def save(self, path: Path) -> None:
        """The model: y0, y1, ... = x times weight 0, 1, ..."""
        initializers = []
        for i in range(self.count):
            codes, scales = self.arrays(i)
            initializers += [numpy_helper.from_array(codes, f"B{i}"), numpy_helper.from_array(scales, f"s{i}")]
        attrs: dict[str, Any] = {"K": self.k, "N": self.n, "bits": self.bits, "block_size": self.block}
        nodes = [
            helper.make_node(
                "MatMulNBits",
                ["x", f"B{i % self.count}", f"s{i % self.count}"],
                [f"y{i}"],
                name=f"product{i}",
                domain="com.microsoft",
                **attrs,
            )
            for i in range(self.nodes)
        ]
        value = helper.make_tensor_value_info
        outputs = [value(f"y{i}", TensorProto.FLOAT16, ["m", self.n]) for i in range(self.nodes)]
        graph = helper.make_graph(
            nodes, "int4", [value("x", TensorProto.FLOAT16, ["m", self.k])], outputs, initializers
        )
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
