"""``optimize``: what it takes and gives, how it fails, and that it harms no file and no caller's model."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import cuvil_onnx
from cuvil_onnx import api
from cuvil_onnx.errors import (
    CuvilError,
    InvalidModelError,
    ModelLoadError,
    OptionError,
    OutputError,
    UnsupportedModelError,
    VerificationError,
)
from cuvil_onnx.passes.base import Pass
from cuvil_onnx.pipeline import FOLD
from cuvil_onnx.rewrite.rule import Exactness

ort = pytest.importorskip("onnxruntime")
X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
TEXT = "(float[N,8] x) => (float[N,4] y) { i = Identity(x) a = MatMul(i, w) b = Add(a, c) y = Relu(b) }"


def made(text: str = TEXT, opset: int = 17, **weights: Any) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph(f"g {text}")
    weights = weights or {"w": W, "c": W[0]}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run(model: Any, **feeds: np.ndarray) -> list[np.ndarray]:
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ort.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feeds or {"x": X})


def expected() -> np.ndarray:
    return np.maximum(X @ W + W[0], 0)


# ---- inputs ---------------------------------------------------------------------------------------------------------


def _path(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(made(), path)
    return path


@pytest.mark.parametrize("kind", ["path", "str", "bytes", "proto", "ir", "graphsurgeon"])
def test_takes_every_form(kind: str, tmp_path: Path) -> None:
    model: Any = {
        "path": lambda: _path(tmp_path),
        "str": lambda: str(_path(tmp_path)),
        "bytes": lambda: made().SerializeToString(),
        "proto": made,
        "ir": lambda: ir.from_proto(made()),
        "graphsurgeon": lambda: pytest.importorskip("onnx_graphsurgeon").import_onnx(made()),
    }[kind]()
    result = cuvil_onnx.optimize(model)
    np.testing.assert_allclose(run(result.model)[0], expected(), rtol=1e-5, atol=1e-6)
    assert "bit for bit" in result.report.verification or "within" in result.report.verification


def test_gives_a_graphsurgeon_graph() -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    graph = cuvil_onnx.optimize(gs.import_onnx(made()), level="basic").graph()
    assert isinstance(graph, gs.Graph)
    assert [n.op for n in graph.nodes] == ["MatMul", "Add", "Relu"]


def test_the_caller_s_model_is_not_touched() -> None:
    model = made()
    before = model.SerializeToString(deterministic=True)
    private = ir.from_proto(made())
    text = ir.to_proto(private).SerializeToString(deterministic=True)
    cuvil_onnx.optimize(model, precision="fp16", layout="nhwc")
    cuvil_onnx.optimize(private, precision="fp16")
    assert model.SerializeToString(deterministic=True) == before
    assert ir.to_proto(private).SerializeToString(deterministic=True) == text


def test_twice_gives_the_same() -> None:
    once = cuvil_onnx.optimize(made())
    twice = cuvil_onnx.optimize(once.model)
    assert twice.report.before.ops == twice.report.after.ops
    np.testing.assert_array_equal(run(once.model)[0], run(twice.model)[0])
    assert cuvil_onnx.optimize(made()).model.SerializeToString(deterministic=True) == once.model.SerializeToString(
        deterministic=True
    )


def test_interface_stays() -> None:
    model = made()
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "M"
    result = cuvil_onnx.optimize(model).model
    assert list(result.graph.input) == list(model.graph.input)
    assert list(result.graph.output) == list(model.graph.output)


def test_unknown_operators_are_left_alone() -> None:
    graph = onnx.parser.parse_graph("g (float[4] x) => (float[4] y) { i = Identity(x) y = my.own.Thing(i) }")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    result = cuvil_onnx.optimize(helper.make_model(graph, opset_imports=imports, ir_version=9))
    assert [(n.domain, n.op_type) for n in result.model.graph.node] == [("my.own", "Thing")]
    assert "cannot load the original" in result.report.verification


# ---- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp8"},
        {"level": "most"},
        {"layout": "nwhc"},
        {"skip": ["no_such_rule"]},
        {"only": ["no_such_rule"]},
        {"skip": "identity"},
        {"quantize": "rtn"},
    ],
)
def test_meaningless_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        cuvil_onnx.optimize(made(), **options)


def test_skip_and_only() -> None:
    assert "Identity" in cuvil_onnx.optimize(made(), skip=["identity"], level="basic").report.after.ops
    assert set(cuvil_onnx.optimize(made(), only=["identity"]).report.trace.counts) == {"identity"}
    assert cuvil_onnx.optimize(made(), level="none").report.after.ops == {
        "Add": 1,
        "Identity": 1,
        "MatMul": 1,
        "Relu": 1,
    }


def test_report() -> None:
    result = cuvil_onnx.optimize(made())
    text = str(result)
    assert "before" in text and "all nodes" in text and "parameters MB" in text
    assert "identity" in result.report.explain()
    assert result.report.as_dict()["counts"]["identity"] == 1


# ---- bad models -----------------------------------------------------------------------------------------------------


def _file(content: bytes) -> Any:
    def write(tmp_path: Path) -> Path:
        path = tmp_path / "bad.onnx"
        path.write_bytes(content)
        return path

    return write


def _changed(**changes: Any) -> Any:
    def build(tmp_path: Path) -> onnx.ModelProto:
        model = made()
        if "opset" in changes:
            model.opset_import[0].version = changes["opset"]
        if "ir" in changes:
            model.ir_version = changes["ir"]
        return model

    return build


def _missing_weights(tmp_path: Path) -> Path:
    path = tmp_path / "external.onnx"
    onnx.save(made(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    return path


def _short_weights(tmp_path: Path) -> Path:
    path = _missing_weights(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"1234")
    return path


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda p: p / "absent.onnx", ModelLoadError, "no such file"),
        (lambda p: p, ModelLoadError, "folder"),
        (_file(b""), ModelLoadError, "not an ONNX file"),
        (_file(b"hello, this is a text file\n" * 20), ModelLoadError, "not an ONNX file"),
        (_file(made().SerializeToString()[:-40]), ModelLoadError, "truncated"),
        (lambda p: b"\x00\x01\x02", ModelLoadError, "not an ONNX file"),
        (_missing_weights, ModelLoadError, "does not exist"),
        (_short_weights, ModelLoadError, "required"),
        (_changed(opset=99), UnsupportedModelError, "opset 99"),
        (_changed(ir=99), UnsupportedModelError, "IR version 99"),
        (lambda p: made("() => () { }"), UnsupportedModelError, "empty"),
        (lambda p: onnx.ModelProto(), UnsupportedModelError, "empty"),
        (lambda p: made("(float[4] x) => (float[4] y) { y = Add(x, nothing) }"), InvalidModelError, "'nothing'"),
        (lambda p: made("(float[4] x) => (float[4] y) { a = Neg(x) }"), InvalidModelError, "'y'"),
        (lambda p: made("(float[4] x) => (float[4] y) { y = Neg(x) y = Exp(x) }"), InvalidModelError, "'y'"),
        (lambda p: made("(float[4] x) => (float[4] y) { a = Add(x, y) y = Neg(a) }"), InvalidModelError, "cycle"),
        (lambda p: made("(float[4] x) => (float[4] y) { y = Conv(x) }"), InvalidModelError, "Conv"),
        (lambda p: 42, OptionError, "int"),
    ],
)
def test_bad_models_are_one_line(build: Any, error: type[CuvilError], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message) as caught:
        cuvil_onnx.optimize(build(tmp_path), tmp_path / "out.onnx")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()


def test_weights_outside_of_the_model_s_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "external.onnx"
    onnx.save(made(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ModelLoadError, match="out of the model's folder"):
        cuvil_onnx.optimize(path)


# ---- verification ---------------------------------------------------------------------------------------------------


@pytest.fixture
def damaging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folding pass that clears a weight instead."""

    def damage(ctx: Any, trace: Any) -> int:
        for value in ctx.model.graph.initializers.values():
            if value.name == "w":
                value.const_value = ir.Tensor(np.zeros((8, 4), np.float32), name="w")
        return 1

    monkeypatch.setattr("cuvil_onnx.pipeline.FOLD", Pass(FOLD.name, Exactness.EXACT, damage))


@pytest.mark.usefixtures("damaging")
def test_a_wrong_result_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"output 'y'.*first at 'a'"):
        cuvil_onnx.optimize(made(), tmp_path / "out.onnx", level="basic", only=["constant_folding"], verify=True)
    assert not list(tmp_path.iterdir())
    assert cuvil_onnx.optimize(made(), level="basic", only=["constant_folding"], verify=False).report.verification == ""


@pytest.mark.usefixtures("damaging")
def test_a_defective_step_is_left_out_unless_verification_was_demanded() -> None:
    result = cuvil_onnx.optimize(made(), level="basic", skip=["dead_code"])
    np.testing.assert_allclose(run(result.model)[0], expected(), rtol=1e-5, atol=1e-6)
    assert "constant_folding was left out" in result.report.trace.warnings[0]


def test_given_inputs_are_used() -> None:
    result = cuvil_onnx.optimize(made(), verify=True, inputs=[{"x": X}, {"x": X[:1]}])
    assert "2 input sets" in result.report.verification
    with pytest.raises(OptionError, match="'x'"):
        cuvil_onnx.optimize(made(), verify=True, inputs={"z": X})


@pytest.mark.parametrize("nodes", ["", "ai.onnx"])
@pytest.mark.parametrize("imports", [[""], ["ai.onnx"], ["", "ai.onnx"]])
def test_both_names_of_the_standard_domain(nodes: str, imports: list[str]) -> None:
    model = made()
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(name, 17) for name in imports)
    for node in model.graph.node:
        node.domain = nodes
    result = cuvil_onnx.optimize(model, verify=True)
    assert [n.op_type for n in result.model.graph.node] == ["FusedMatMul"]
    np.testing.assert_allclose(run(result.model)[0], expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("verify", [None, True])
@pytest.mark.parametrize(
    "inputs",
    [{"q": X}, {"x": X[:, :5]}, {"x": X.astype(np.float64)}, {"x": X, "z": X}, [{"x": X}, {"x": X[0]}], [], "x", [X]],
)
def test_inputs_that_do_not_fit_are_refused(inputs: Any, verify: bool | None) -> None:
    with pytest.raises(OptionError, match="inputs"):
        cuvil_onnx.optimize(made(), inputs=inputs, verify=verify)


def test_nonsense_that_no_runtime_accepts_is_the_model_s_fault() -> None:
    model = made("(float[1,1,4,4] x) => (float[1,1,2,2] y) { y = Conv<strides=[0,0]>(x, w) }", w=W[None, None, :2, :2])
    with pytest.raises(InvalidModelError, match="onnxruntime does not load it"):
        cuvil_onnx.optimize(model)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_files_are_one_line_or_a_model(seed: int) -> None:
    """Bytes flipped in the nodes and names of a file: an error of ours at most, never another exception."""
    data = bytearray(made().SerializeToString())
    random = np.random.default_rng(seed)
    for place in random.integers(0, 160, 2):
        data[place] = random.integers(0, 256)
    try:
        cuvil_onnx.optimize(bytes(data), verify=False)
    except CuvilError as error:
        assert "\n" not in str(error)


def test_functions_written_for_another_opset_are_kept() -> None:
    body = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["b"])]
    function = helper.make_function("my", "F", ["a"], ["b"], body, [helper.make_opsetid("", 13)])
    model = made("(float[N,8] x) => (float[N,8] y) { a = my.F(x) b = Abs(a) y = Neg(b) }", w=W)
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(function)
    result = cuvil_onnx.optimize(model, verify=True)
    np.testing.assert_array_equal(run(result.model)[0], -np.maximum(X, 0))


def test_a_model_that_cannot_be_run_can_only_be_optimized_unverified() -> None:
    graph = onnx.parser.parse_graph("g (float[4] x) => (float[4] y) { y = my.own.Thing(x) }")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    with pytest.raises(VerificationError, match="cannot verify"):
        cuvil_onnx.optimize(model, verify=True)


# ---- output ---------------------------------------------------------------------------------------------------------


def test_saves(tmp_path: Path) -> None:
    result = cuvil_onnx.optimize(made(), tmp_path / "out.onnx")
    np.testing.assert_allclose(run(tmp_path / "out.onnx")[0], expected(), rtol=1e-5, atol=1e-6)
    assert result.save(str(tmp_path / "again.onnx")) == tmp_path / "again.onnx"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.onnx", "out.onnx"]


def test_external_weights_are_written_beside_the_model(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    big = {"w": np.resize(W, (8, 400)), "c": np.zeros(400, np.float32)}
    onnx.save(made(TEXT.replace("N,4", "N,400"), **big), source, save_as_external_data=True, location="in.bin")
    target = tmp_path / "sub" / "out.onnx"
    target.parent.mkdir()
    cuvil_onnx.optimize(source, target)
    assert sorted(p.name for p in target.parent.iterdir()) == ["out.onnx", "out.onnx.data"]
    np.testing.assert_array_equal(run(target)[0].shape, (2, 400))
    np.testing.assert_allclose(run(target)[0], run(source)[0], rtol=1e-5, atol=1e-6)


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    path = _path(tmp_path)
    before = path.read_bytes()
    (tmp_path / "link.onnx").symlink_to(path)
    for target in (path, tmp_path / "link.onnx", tmp_path / "." / "model.onnx"):
        with pytest.raises(OutputError, match="input model"):
            cuvil_onnx.optimize(path, target)
    external = tmp_path / "x.onnx"
    onnx.save(made(), external, save_as_external_data=True, location="y.onnx.data", size_threshold=0)
    with pytest.raises(OutputError, match="input model"):
        cuvil_onnx.optimize(external, tmp_path / "y.onnx")
    assert path.read_bytes() == before


@pytest.mark.parametrize("target", ["absent/out.onnx", ".", "a" * 300 + ".onnx"])
def test_impossible_targets(target: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        cuvil_onnx.optimize(made(), tmp_path / target)


def test_a_pipe_or_device_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="no regular file"):
        cuvil_onnx.optimize(made(), pipe)
    assert pipe.is_fifo()


def test_a_pipe_or_device_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelLoadError, match="no regular file"):
        cuvil_onnx.optimize(tmp_path / "pipe")


def test_weights_and_model_are_replaced_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    external, target = tmp_path / "in" / "x.onnx", tmp_path / "out" / "o.onnx"
    for folder in (external.parent, target.parent):
        folder.mkdir()
    onnx.save(made(w=W.repeat(100, 1), c=W[0, 0]), external, save_as_external_data=True, size_threshold=0)
    result = cuvil_onnx.optimize(external, target)
    before = {p.name: p.read_bytes() for p in target.parent.iterdir()}
    assert set(before) == {"o.onnx", "o.onnx.data"}
    flushed = []

    def full(descriptor: int) -> None:
        flushed.append(descriptor)
        if len(flushed) == 2:  # the weights still fitted, the model does not
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    other = made(w=-W.repeat(100, 1), c=W[0, 0])
    onnx.save(other, external.with_name("z.onnx"), save_as_external_data=True, size_threshold=0)
    with pytest.raises(OutputError, match="No space left"):
        cuvil_onnx.optimize(external.with_name("z.onnx"), target)
    assert {p.name: p.read_bytes() for p in target.parent.iterdir()} == before
    assert result.report.after.nodes


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(OutputError, match="cannot be written"):
        cuvil_onnx.optimize(made(), tmp_path / "out.onnx")
    tmp_path.chmod(stat.S_IRWXU)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"older")
    result = cuvil_onnx.optimize(made())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        result.save(target)
    assert target.read_bytes() == b"older"
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_every_public_name_is_documented() -> None:
    for name in ("optimize", "Optimized"):
        assert getattr(api, name).__doc__


def test_external_weights_convert_to_fp16(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    big = {"w": np.resize(W, (8, 400)), "c": np.zeros(400, np.float32)}
    onnx.save(made(TEXT.replace("N,4", "N,400"), **big), source, save_as_external_data=True, location="in.bin")
    cuvil_onnx.optimize(source, tmp_path / "out.onnx", precision="fp16")
    assert not (tmp_path / "out.onnx.data").exists(), "nothing external is left"
    np.testing.assert_allclose(run(tmp_path / "out.onnx")[0], run(source)[0], rtol=1e-2, atol=1e-2)
