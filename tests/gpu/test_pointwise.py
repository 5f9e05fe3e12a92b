"""cuvil::Pointwise on the card: random regions equal their nodes run one by one, bit for bit; memory and capture."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

import custom_ops
from custom_ops.body import Body
from tests.gpu.conftest import measures_the_card
from tests.gpu.single_op import MakeSession, quick, sample

Array = np.ndarray
FLOAT, HALF, BOOL, INT = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BOOL, ir.DataType.INT32

UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "Exp",
    "Abs",
    "Neg",
    "Sqrt",
    "Erf",
    "Floor",
    "Round",
    "Softplus",
    "HardSwish",
    "LeakyRelu",
    "Elu",
    "Sin",
    "Reciprocal",
    "Sign",
    "Gelu",
]
BINARY = ["Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "PRelu"]


class Region:
    """Elementwise nodes under construction on inputs of given type and shape."""

    def __init__(self, inputs: Sequence[tuple[ir.DataType, Sequence[int]]]) -> None:
        self.body = Body(20, FLOAT)
        self.inputs = [ir.val(f"input{i}", t, ir.Shape(s)) for i, (t, s) in enumerate(inputs)]
        self.values: list[tuple[ir.Value, ir.DataType]] = [
            (v, t) for v, (t, _) in zip(self.inputs, inputs, strict=True)
        ]
        self.shape = np.broadcast_shapes(*(tuple(s) for _, s in inputs))

    def add(self, dtype: ir.DataType, op: str, *operands: int, **attrs: Any) -> int:
        value = self.body.op(op, *(self.values[i][0] for i in operands), **attrs)
        value.dtype = dtype
        self.values.append((value, dtype))
        return len(self.values) - 1

    def models(self, outputs: Sequence[int]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """The nodes one by one, and as one Pointwise node."""
        wanted = [self.values[i][0] for i in outputs]
        region = custom_ops.Region(self.body.nodes, wanted)
        node, function = custom_ops.make("Pointwise", self.inputs, len(outputs), {}, opset=20, dtype=FLOAT, body=region)
        for i, (value, index) in enumerate(zip(node.outputs, outputs, strict=True)):
            value.name, value.type, value.shape = (
                f"fused{i}",
                ir.TensorType(self.values[index][1]),
                ir.Shape(self.shape),
            )
        fused_graph = ir.Graph(self.inputs, node.outputs, nodes=[node], opset_imports={"": 20}, name="fused")
        fused = ir.Model(fused_graph, ir_version=10)
        custom_ops.install(fused, [function])
        fused_proto = ir.to_proto(fused)
        plain_inputs = [ir.val(v.name, v.dtype, v.shape) for v in self.inputs]
        renamed = dict(zip(self.inputs, plain_inputs, strict=True))
        for n in self.body.nodes:
            for k, v in enumerate(n.inputs):
                if v in renamed:
                    n.replace_input_with(k, renamed[v])
        for i, (value, index) in enumerate(zip(wanted, outputs, strict=True)):
            value.name, value.type, value.shape = (
                f"plain{i}",
                ir.TensorType(self.values[index][1]),
                ir.Shape(self.shape),
            )
        plain_graph = ir.Graph(plain_inputs, wanted, nodes=self.body.nodes, opset_imports={"": 20}, name="plain")
        return ir.to_proto(ir.Model(plain_graph, ir_version=10)), fused_proto


@st.composite
def regions(draw: st.DrawFn) -> tuple[Region, list[int]]:
    full = draw(st.lists(st.sampled_from([1, 2, 3, 4, 7, 8, 33, 64]), min_size=1, max_size=4))
    inputs = [(draw(st.sampled_from([FLOAT, HALF])), tuple(full))]  # one of the full shape: every output has it
    for _ in range(draw(st.integers(0, 3))):
        shape = tuple(d if draw(st.booleans()) else 1 for d in full)[draw(st.integers(0, len(full))) :]
        inputs.append((draw(st.sampled_from([FLOAT, HALF, INT])), shape))
    region = Region(inputs)
    full_values = {0}
    for _ in range(draw(st.integers(2, 14))):
        a = draw(st.integers(0, len(region.values) - 1))
        dtype = region.values[a][1]
        alike = [i for i, (_, t) in enumerate(region.values) if t == dtype]
        b = draw(st.sampled_from(alike))
        kind = draw(st.sampled_from(["unary", "binary", "cast", "compare", "where"]))
        conditions = [i for i, (_, t) in enumerate(region.values) if t == BOOL]
        operands = [a, b]
        if kind == "cast" or dtype == BOOL:
            target = draw(st.sampled_from([t for t in (FLOAT, HALF, INT) if t != dtype]))
            # Out-of-range floats have no defined integer: through a bounded function first.
            if target == INT and dtype in (FLOAT, HALF):
                a = region.add(dtype, "Tanh", a)
            new, operands = region.add(target, "Cast", a, to=int(target)), [operands[0]]
        elif kind == "where" and conditions:
            condition = draw(st.sampled_from(conditions))
            new, operands = region.add(dtype, "Where", condition, a, b), [condition, a, b]
        elif kind == "compare":
            new = region.add(BOOL, draw(st.sampled_from(["Less", "Equal", "GreaterOrEqual"])), a, b)
        elif kind == "unary" and dtype != INT:
            new, operands = region.add(dtype, draw(st.sampled_from(UNARY)), a), [a]
        else:
            # PRelu broadcasts one way only, integers have no Pow here.
            ops = [op for op in BINARY if op != "PRelu" and (dtype != INT or op not in ("Pow", "Div"))]
            new = region.add(dtype, draw(st.sampled_from(ops)), a, b)
        if any(i in full_values for i in operands):
            full_values.add(new)
    candidates = sorted(full_values - {0})
    if not candidates:
        candidates = [region.add(inputs[0][0], "Relu", 0)]
    outputs = draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=3, unique=True))
    return region, outputs


def feeds_of(region: Region, seed: int) -> dict[str, Array]:
    feeds = {}
    for i, value in enumerate(region.inputs):
        assert value.shape is not None and value.dtype is not None
        feeds[value.name] = np.asarray(sample(value.shape.numpy(), value.dtype.numpy(), seed + i))
    return feeds


@quick
@given(regions(), st.integers(0, 2**16))
def test_fused_equals_unfused_bit_for_bit(ep_session: MakeSession, made: tuple[Region, list[int]], seed: int) -> None:
    region, outputs = made
    plain, fused = region.models(outputs)
    feeds = feeds_of(region, seed)
    want, found = ep_session(plain).run(None, feeds), ep_session(fused).run(None, feeds)
    for a, b in zip(found, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)  # NaN equals NaN


def cast_add_relu(*shape: int) -> onnx.ModelProto:
    region = Region([(HALF, shape), (FLOAT, shape)])
    region.add(FLOAT, "Relu", region.add(FLOAT, "Add", region.add(FLOAT, "Cast", 0, to=int(FLOAT)), 1))
    return region.models([len(region.values) - 1])[1]


@pytest.mark.parametrize("count", [1, 3, 255, 4096, 4099, 1_000_003, 2**24])
def test_sizes(ep_session: MakeSession, count: int) -> None:
    a, b = sample((count,), np.float16), sample((count,), np.float32, 1)
    (found,) = ep_session(cast_add_relu(count)).run(None, {"input0": a, "input1": b})
    np.testing.assert_array_equal(found, np.maximum(a.astype(np.float32) + b, 0))


@pytest.mark.slow
@pytest.mark.parametrize("row", [(2**15 + 1,), (2**16, 1), (2**16, 2**15 + 1)], ids=str)
def test_more_than_2_31_elements(ep_session: MakeSession, row: tuple[int, ...]) -> None:
    kind = ir.DataType.UINT8
    region = Region([(kind, (2**16, 2**15 + 1)), (kind, row)])
    region.add(kind, "Add", 0, 1)
    a = np.arange((2**15 + 1) * 2**16, dtype=np.uint32).astype(np.uint8).reshape(2**16, 2**15 + 1)
    b = np.random.default_rng(0).integers(0, 256, row, dtype=np.uint8)
    (found,) = ep_session(region.models([2])[1]).run(None, {"input0": a, "input1": b})
    assert (found == a + b).all()


def test_alternating_shapes(ep_session: MakeSession) -> None:
    region = Region([(FLOAT, (3, 5)), (FLOAT, (5,))])
    region.add(FLOAT, "Add", 0, 1)
    model = region.models([2])[1]
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = "c" if dim.dim_value == 5 else "n"
    session = ep_session(model)
    for n, c in [(3, 5), (64, 128), (1, 1), (0, 4), (7, 8), (3, 5), (1, 9)] * 3:
        a, b = sample((n, c)), sample((c,), seed=1)
        np.testing.assert_array_equal(session.run(None, {"input0": a, "input1": b})[0], a + b)


@pytest.mark.parametrize("offset", [0, 4, 8, 12])
def test_buffers_off_16_bytes(ep_session: MakeSession, offset: int) -> None:
    cuda = pytest.importorskip("cuvil_onnx.runtime.cuda_driver")
    session = ep_session(cast_add_relu(1003))
    context = cuda.context(0)
    a, b = sample((1003,), np.float16), sample((1003,), np.float32, 1)
    binding = session.io_binding()
    memory = []
    with context:
        stream = cuda.Stream(context)
        for name, array, kind in (("input0", a, onnx.TensorProto.FLOAT16), ("input1", b, onnx.TensorProto.FLOAT)):
            block = cuda.DeviceMemory(context, array.nbytes + 16)
            stream.copy_to_device(block.address + offset, array.ctypes.data, array.nbytes)
            binding.bind_input(name, "cuda", 0, kind, list(array.shape), block.address + offset)
            memory.append(block)
        stream.synchronize()
    binding.bind_output("fused0", "cpu")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], np.maximum(a.astype(np.float32) + b, 0))


def test_the_same_value_twice_and_in_place(ep_session: MakeSession) -> None:
    # A chain of regions: ONNX Runtime reuses the buffers of dying values, so kernels run in place.
    region = Region([(FLOAT, (4099,))])
    value = 0
    for _ in range(6):
        value = region.add(FLOAT, "Mul", value, value)
        value = region.add(FLOAT, "Sub", value, 0)
    plain, fused = region.models([value])
    feeds = {"input0": sample((4099,)) / 2}
    want = feeds["input0"]
    for _ in range(6):
        want = want * want - feeds["input0"]
    np.testing.assert_array_equal(ep_session(plain).run(None, feeds)[0], want)
    np.testing.assert_array_equal(ep_session(fused).run(None, feeds)[0], want)


def test_kernels_are_cached_on_disk_and_damage_is_repaired(tmp_path: Any) -> None:
    pytest.importorskip("cuvil_onnx.runtime.registration")
    region = Region([(FLOAT, (777,))])
    region.add(FLOAT, "Tanh", region.add(FLOAT, "Cosh", region.add(FLOAT, "Sin", 0)))
    onnx.save(region.models([3])[1], tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", sample((777,)))
    # Processes of their own: this one's kernels are in memory.
    want = _run_in_another_process(tmp_path)
    (file,) = (tmp_path / "cache" / "pointwise").glob("*.cubin")
    assert file.stat().st_mode & 0o077 == 0
    content = file.read_bytes()
    for damaged in (content[:-100] + bytes(100), content[:50], b""):
        file.write_bytes(damaged)
        np.testing.assert_array_equal(_run_in_another_process(tmp_path), want)
        assert file.read_bytes() == content


def _run_in_another_process(directory: pathlib.Path) -> Array:
    script = "import sys; from tests.gpu.test_pointwise import run_saved; run_saved(sys.argv[1])"
    environment = os.environ | {"CUVIL_CACHE_DIR": str(directory / "cache")}
    done = subprocess.run([sys.executable, "-c", script, directory], env=environment, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stderr
    return np.load(directory / "y.npy")


def run_saved(directory: str) -> None:
    """Runs model.onnx of `directory` on the provider: x.npy to y.npy. Exits with 77 where there is none."""
    from cuvil_onnx.runtime.registration import EP_NAME, unavailable_reason

    if (reason := unavailable_reason()) is not None:
        print(reason)
        sys.exit(77)
    session = ort.InferenceSession(f"{directory}/model.onnx", providers=[EP_NAME])
    assert session.get_providers()[0] == EP_NAME
    np.save(f"{directory}/y.npy", session.run(None, {"input0": np.load(f"{directory}/x.npy")})[0])


@measures_the_card
def test_cast_add_relu_moves_90_percent_of_copy_bandwidth(ep_session: MakeSession) -> None:
    cuda = pytest.importorskip("cuvil_onnx.runtime.cuda_driver")
    count, repeats = 2**26, 20
    context = cuda.context(0)
    with context:
        stream = cuda.Stream(context)
        half, single, result = (cuda.DeviceMemory(context, count * size) for size in (2, 4, 4))
        stream.fill(half.address, 0, 2 * count)
        stream.fill(single.address, 0, 4 * count)
        session = ep_session(cast_add_relu(count), user_compute_stream=stream.handle)
        binding = session.io_binding()
        binding.bind_input("input0", "cuda", 0, onnx.TensorProto.FLOAT16, [count], half.address)
        binding.bind_input("input1", "cuda", 0, onnx.TensorProto.FLOAT, [count], single.address)
        binding.bind_output("fused0", "cuda", 0, onnx.TensorProto.FLOAT, [count], result.address)
        options = ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def milliseconds(work: Callable[[], None]) -> float:
            for _ in range(3):
                work()
            start, end = cuda.Event(context), cuda.Event(context)
            start.record(stream)
            for _ in range(repeats):
                work()
            end.record(stream)
            return end.milliseconds_since(start) / repeats

        copy = 2 * 4 * count / milliseconds(lambda: stream.copy_on_device(result.address, single.address, 4 * count))
        ours = 10 * count / milliseconds(lambda: session.run_with_iobinding(binding, options))
        stream.synchronize()
    print(f"copy {copy / 1e9:.3f} TB/s, cast + add + relu {ours / 1e9:.3f} TB/s: {ours / copy:.1%}")
    assert ours >= 0.9 * copy


@pytest.mark.parametrize("program", [["load.f32 0", "relu.f16 0"], ["load.f32 0", "__trap.f32 0"]])
def test_an_invalid_program_is_left_to_the_body(
    ep_session: MakeSession, program: list[str], tmp_path: pathlib.Path
) -> None:
    model = cast_add_relu(8)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "program":
            del attribute.strings[:]
            attribute.strings.extend(p.encode() for p in program)
        if attribute.name == "outputs":
            attribute.ints[:] = [1]
    # Not claimed: ONNX Runtime puts the function's body in the node's place, and its nodes are. (What the refusals say
    # is in tests/csrc/test_program.py.)
    report = tmp_path / "placement.json"
    session = ep_session(model, placement_file=report)
    nodes = json.loads(report.read_text())["nodes"]
    assert sorted(n["op_type"] for n in nodes if n["taken"]) == ["Add", "Cast", "Relu"], nodes
    a, b = sample((8,), np.float16), sample((8,), np.float32, 1)
    (found,) = session.run(None, {"input0": a, "input1": b})
    np.testing.assert_array_equal(found, np.maximum(a.astype(np.float32) + b, 0))
