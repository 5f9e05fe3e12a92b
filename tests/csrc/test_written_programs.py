"""What custom_ops writes as a program, the C++ parser reads: every elementwise operator in every type it takes."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from custom_ops.program import DTYPES, Program, UnsupportedError, compile_node, elementwise_ops
from tests.csrc.pointwise_tool import SOURCES, Job, Tool

NEWEST = onnx.defs.onnx_opset_version()
TWO = {"Cast": {"to": 1}, "BitShift": {"direction": "LEFT"}}
# Optional or variadic inputs: how many to try.
COUNTS = {"Clip": (1, 2, 3), "Max": (1, 2, 3), "Min": (1, 2, 3), "Sum": (1, 2, 3), "Where": (3,)}


def allowed(op: str, dtype: ir.DataType) -> bool:
    """Whether ONNX lets the operator take inputs of a type (Where: beside its condition)."""
    schema = onnx.defs.get_schema(op, NEWEST, "")
    index = 1 if op == "Where" else 0
    constraint = schema.inputs[index].type_str
    types = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == constraint), [constraint])
    return f"tensor({'float' if dtype == ir.DataType.FLOAT else dtype.name.lower()})" in types


def inputs_of(domain: str, op: str) -> int:
    """How many inputs an operator must have."""
    if domain:
        return 1
    return max(1, sum(i.option.name == "Single" for i in onnx.defs.get_schema(op, NEWEST, "").inputs))


def jobs() -> tuple[list[Job], list[str]]:
    made, names = [], []
    for domain, op in elementwise_ops():
        for dtype, short in DTYPES.items():
            if domain == "" and not allowed(op, dtype):
                continue
            for count in COUNTS.get(op, (inputs_of(domain, op),)):
                types = [dtype] * count
                if op == "Where":
                    types[0] = ir.DataType.BOOL
                program = Program()
                node = ir.node(op, [ir.val(f"x{i}", t) for i, t in enumerate(types)], TWO.get(op, {}), domain=domain)
                loads = [program.load(i, t) for i, t in enumerate(types)]
                try:
                    result = compile_node(program, node, loads)
                except UnsupportedError:
                    continue
                inputs = [(DTYPES[t], (4,)) for t in types]
                made.append(Job(inputs, program.instructions, [result.index]))
                names.append(f"{op} of {count} {short}")
    return made, names


def test_every_operator_and_type(compile_cpp) -> None:
    made, names = jobs()
    assert len(made) > 300
    answers = Tool(compile_cpp(SOURCES)).run(made)
    wrong = [f"{name}: {answer}" for name, answer in zip(names, answers, strict=True) if not answer.startswith("ok ")]
    assert not wrong, "\n".join(wrong)
