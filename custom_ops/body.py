"""Writes function bodies in the ONNX of one opset.

Forms that changed between opsets 7 and 28 are chosen here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from custom_ops import activations

_CONSTANT_1 = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class Body:
    """A list of nodes under construction.

    Args:
        opset: version of the default domain that the nodes must be valid at.
        dtype: the element type of the op's tensors.
    """

    def __init__(self, opset: int, dtype: ir.DataType) -> None:
        self.opset = opset
        self.dtype = dtype
        self.nodes: list[ir.Node] = []
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], ir.Value] = {}
        self._names = 0

    @property
    def half(self) -> bool:
        """Whether the tensors are 16-bit floats, whose statistics and exponentials are computed in float32."""
        return self.dtype in _HALF

    @property
    def wide(self) -> ir.DataType:
        """The type to compute statistics in: float32 for 16-bit tensors, else the tensors' own."""
        return ir.DataType.FLOAT if self.half else self.dtype

    def op(self, op_type: str, *inputs: ir.Value | None, **attrs: Any) -> ir.Value:
        """Appends a node of the default domain with one output and returns that."""
        return self.ops(op_type, *inputs, count=1, attrs=attrs)[0]

    def ops(self, op_type: str, *inputs: ir.Value | None, count: int, attrs: Mapping[str, Any]) -> Sequence[ir.Value]:
        """Appends a node of the default domain with `count` outputs and returns those."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        outputs = [ir.val(self._name()) for _ in range(count)]
        self.nodes.append(ir.node(op_type, list(inputs), attrs, outputs=outputs))
        return outputs

    def constant(self, number: npt.ArrayLike, dtype: ir.DataType) -> ir.Value:
        """A Constant node; equal constants share one. Before opset 9 they hold floats only: others are cast."""
        array = np.asarray(number).astype(dtype.numpy())
        key = (dtype.name, array.tobytes(), array.shape)
        if key not in self._constants:
            stored = ir.DataType.DOUBLE if self.opset < 9 and dtype not in _CONSTANT_1 else dtype
            tensor = ir.Tensor(array.astype(stored.numpy()), dtype=stored, name=self._name())
            value = ir.Attr("value", ir.AttributeType.TENSOR, tensor)  # a plain tensor is recognised as one slowly
            self._constants[key] = self.cast(self.op("Constant", value=value), dtype, stored)
        return self._constants[key]

    def cast(self, x: ir.Value, to: ir.DataType, source: ir.DataType) -> ir.Value:
        """`x` of type `source` as `to`; no node when they are the same."""
        return x if to == source else self.op("Cast", x, to=int(to))

    def widen(self, x: ir.Value) -> ir.Value:
        """A 16-bit tensor as float32."""
        return self.cast(x, self.wide, self.dtype)

    def narrow(self, x: ir.Value) -> ir.Value:
        """A float32 result back in the tensors' own type."""
        return self.cast(x, self.dtype, self.wide)

    def reduce_mean(self, x: ir.Value, axis: int) -> ir.Value:
        """ReduceMean over one axis, which is kept; the axes are an input since opset 18."""
        if self.opset >= 18:
            return self.op("ReduceMean", x, self.constant([axis], ir.DataType.INT64), keepdims=1)
        return self.op("ReduceMean", x, axes=[axis], keepdims=1)

    def clip(self, x: ir.Value, low: float, high: float, dtype: ir.DataType) -> ir.Value:
        """Clip; the bounds are inputs since opset 11."""
        if self.opset >= 11:
            return self.op("Clip", x, self.constant(low, dtype), self.constant(high, dtype))
        return self.op("Clip", x, min=float(low), max=float(high))

    def split(self, x: ir.Value, parts: int | Sequence[int], axis: int) -> Sequence[ir.Value]:
        """Equal parts, or parts of given sizes: an attribute before opset 13, then an input; opset 18 wants the number
        of equal parts as an attribute.
        """
        if not isinstance(parts, int):
            if self.opset >= 13:
                sizes = self.constant(parts, ir.DataType.INT64)
                return self.ops("Split", x, sizes, count=len(parts), attrs={"axis": axis})
            return self.ops("Split", x, count=len(parts), attrs={"axis": axis, "split": list(parts)})
        attrs = {"axis": axis, "num_outputs": parts} if self.opset >= 18 else {"axis": axis}
        return self.ops("Split", x, count=parts, attrs=attrs)

    def transpose(self, x: ir.Value, perm: Sequence[int]) -> ir.Value:
        """Transpose."""
        return self.op("Transpose", x, perm=list(perm))

    def reshape(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Reshape to constant dimensions; 0 keeps one, -1 takes the rest."""
        return self.op("Reshape", x, self.constant(shape, ir.DataType.INT64))

    def filled(self, shape: ir.Value, number: float, dtype: ir.DataType) -> ir.Value:
        """A tensor of that shape with one number everywhere; needs opset 9."""
        value = ir.Attr("value", ir.AttributeType.TENSOR, ir.Tensor(np.asarray([number], dtype.numpy())))
        return self.op("ConstantOfShape", shape, value=value)

    def activation(self, name: str, params: Sequence[float], x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`name` applied to `x` of type `dtype`; "" is the identity."""
        return activations.write(self, name, params, x, dtype)

    def _name(self) -> str:
        self._names += 1
        return f"t{self._names - 1}"
