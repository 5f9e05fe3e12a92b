"""``cuvil extract``: the part is a valid model that computes what the whole computes there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import cuvil_onnx
from cuvil_onnx import cli
from cuvil_onnx.errors import OptionError
from cuvil_onnx.tools.extract import extract
from models import zoo

ort = pytest.importorskip("onnxruntime")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    onnx.save(zoo.get("tiny").build(), tmp_path / "tiny.onnx")
    return tmp_path / "tiny.onnx"


def save(path: Path, text: str, opset: int = 18, **weights: Any) -> Path:
    graph = onnx.parser.parse_graph(f"g {text}")
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items())
    for i, node in enumerate(graph.node):
        node.name = f"n{i}"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return path


def agrees(whole: Path, part: Path) -> list[str]:
    """Runs the part on its saved inputs and compares with the whole; returns the part's outputs.

    The whole model's own inputs are the first set that verification generates.
    """
    from cuvil_onnx import verify

    small, full = onnx.load(part), onnx.load(whole)
    onnx.checker.check_model(small, full_check=True)
    names = [o.name for o in small.graph.output]
    got = verify.cpu_session(small).run(names, dict(np.load(part.with_suffix(".npz"))))
    feeds = next(iter(verify.input_sets(full, None)))
    want = verify.cpu_session(verify.exposing(full, names)).run(names, feeds)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)  # the same nodes on the same bits
    return names


def test_nodes_with_data(tiny: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.onnx"
    made = extract(tiny, part, nodes=["gelu_div", "gelu_erf", "gelu_add"], data=True)
    assert (made.inputs, made.outputs, made.nodes) == (["a"], ["e1"], 3)
    assert agrees(tiny, part) == ["e1"]
    assert {t.name for t in onnx.load(part).graph.initializer} == {"sqrt2", "one"}


def test_between_values(tiny: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.onnx"
    made = extract(tiny, part, inputs=["c"], outputs=["h"], data=True)
    assert made.nodes == 3 and agrees(tiny, part) == ["h"]
    assert [n.op_type for n in onnx.load(part).graph.node] == ["BatchNormalization", "HardSigmoid", "Mul"]


def test_from_the_start_and_to_the_end(tiny: Path, tmp_path: Path) -> None:
    head = extract(tiny, tmp_path / "head.onnx", outputs=["p"], data=True)
    tail = extract(tiny, tmp_path / "tail.onnx", inputs=["p"], data=True)
    assert head.inputs == ["x"] and tail.outputs == ["logits"]
    assert head.nodes + tail.nodes == len(onnx.load(tiny).graph.node)
    agrees(tiny, head.output)
    agrees(tiny, tail.output)


def test_a_gap_between_the_nodes(tiny: Path, tmp_path: Path) -> None:
    """The value in the gap is an input although it follows from an output."""
    made = extract(tiny, tmp_path / "part.onnx", nodes=["bn", "hardswish"], data=True)
    assert sorted(made.inputs) == ["c", "gate"] and sorted(made.outputs) == ["h", "n"]
    agrees(tiny, made.output)


def test_functions_come_along_with_their_overloads(tiny: Path, tmp_path: Path) -> None:
    fast = tmp_path / "fast.onnx"
    cuvil_onnx.optimize(tiny, fast)
    whole = onnx.load(fast)
    assert len(whole.functions) > 1
    node = next(n for n in whole.graph.node if n.op_type == "FusedMatMul")
    made = extract(fast, tmp_path / "part.onnx", nodes=[node.name], data=True)
    agrees(fast, made.output)
    part = onnx.load(made.output)
    assert [(f.name, f.overload) for f in part.functions] == [(node.op_type, node.overload)]
    assert [p.key for p in part.graph.node[0].metadata_props] == [p.key for p in node.metadata_props]


SUBGRAPH = """(bool c, float[3] x) => (float[3] y) {
    s = Neg(x)
    k = Constant <value = float[3] {1, 2, 3}> ()
    r = If (c) <
        then_branch = t () => (float[3] a) { a = Add(s, w) },
        else_branch = e () => (float[3] b) { b = Mul(s, k) }
    >
    y = Relu(r)
}"""


def test_what_subgraphs_capture_comes_along(tmp_path: Path) -> None:
    whole = save(tmp_path / "m.onnx", SUBGRAPH, w=np.ones(3, np.float32))
    made = extract(whole, tmp_path / "part.onnx", nodes=["n2"], data=True)
    assert sorted(made.inputs) == ["c", "s"] and made.outputs == ["r"]
    agrees(whole, made.output)
    assert extract(whole, tmp_path / "p2.onnx", outputs=["r"]).nodes == 3


def test_subgraphs_in_subgraphs(tmp_path: Path) -> None:
    text = """(bool c, float[3] x) => (float[3] y) {
        s = Neg(x)
        y = If (c) <
            then_branch = t () => (float[3] a) { a = Identity(x) },
            else_branch = e () => (float[3] b) {
                b = If (c) <
                    then_branch = u () => (float[3] d) { d = Identity(x) },
                    else_branch = v () => (float[3] f) { f = Abs(s) }
                >
            }
        >
    }"""
    whole = save(tmp_path / "m.onnx", text)
    made = extract(whole, tmp_path / "part.onnx", nodes=["n1"])
    assert sorted(made.inputs) == ["c", "s", "x"]
    session = ort.InferenceSession(str(made.output), providers=["CPUExecutionProvider"])
    s = np.array([1, -2, 3], np.float32)
    np.testing.assert_array_equal(session.run(None, {"c": np.array(False), "s": s, "x": 0 * s})[0], np.abs(s))


def test_external_weights(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ext"
    folder.mkdir()
    onnx.save(onnx.load(tiny), folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    made = extract(folder / "m.onnx", tmp_path / "part.onnx", nodes=["fc1", "fc1_bias"], data=True)
    agrees(folder / "m.onnx", made.output)


def test_an_input_with_a_default_stays_a_weight(tmp_path: Path) -> None:
    whole = save(tmp_path / "m.onnx", "(float[3] x, float[3] w) => (float[3] y) { y = Add(x, w) }", w=np.ones(3, "f"))
    assert extract(whole, tmp_path / "part.onnx", nodes=["n0"]).inputs == ["x"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "name either nodes"),
        ({"nodes": ["fc1"], "outputs": ["f"]}, "name either nodes"),
        ({"nodes": ["nothing"]}, "no node of the main graph is called 'nothing'"),
        ({"outputs": ["nothing"]}, "no value of the main graph is called 'nothing'"),
        ({"inputs": ["gate"], "outputs": ["h"]}, "need 'x' too"),
        ({"inputs": ["x"], "outputs": ["x"]}, "no node between"),
    ],
)
def test_parts_that_do_not_exist(tiny: Path, tmp_path: Path, args: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        extract(tiny, tmp_path / "part.onnx", **args)
    assert not (tmp_path / "part.onnx").exists()


def test_a_node_inside_a_subgraph_names_its_holder(tmp_path: Path) -> None:
    whole = save(tmp_path / "m.onnx", SUBGRAPH, w=np.ones(3, np.float32))
    model = onnx.load(whole)
    model.graph.node[2].attribute[0].g.node[0].name = "inner"
    onnx.save(model, whole)
    with pytest.raises(OptionError, match="extract n2, which holds it"):
        extract(whole, tmp_path / "part.onnx", nodes=["inner"])


def test_the_command(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = str(tmp_path / "part.onnx")
    assert cli.main(["extract", str(tiny), part, "--node", "fc1", "fc1_bias", "--data", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == ["l"]
    assert cli.main(["extract", str(tiny), part, "--inputs", "l", "--outputs", "a, m"]) == 0
    assert "2 nodes, inputs l, outputs a, m" in capsys.readouterr().out


def test_errors_of_the_command(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tiny.read_bytes()
    for args, message in (
        ((tiny, tiny, "--node", "fc1"), "file of the input model"),
        ((tiny, tmp_path / "no" / "p.onnx", "--node", "fc1"), "does not exist"),
        ((tiny, tmp_path / "p.onnx"), "name either nodes"),
    ):
        assert cli.main(["extract", *map(str, args)]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
    assert tiny.read_bytes() == before


@pytest.mark.parametrize("seed", range(12))
def test_any_set_of_nodes(tiny: Path, tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    names = [n.name for n in onnx.load(tiny).graph.node]
    chosen = random.choice(names, size=int(random.integers(1, len(names))), replace=False)
    made = extract(tiny, tmp_path / "part.onnx", nodes=list(map(str, chosen)), data=True)
    assert agrees(tiny, made.output)


def test_values_named_like_parameters_of_numpys_writer(tmp_path: Path) -> None:
    whole = save(
        tmp_path / "m.onnx",
        "(float[N, 3] file) => (float[N, 3] y) { allow_pickle = Relu(file)  y = Neg(allow_pickle) }",
    )
    for name in ("n0", "n1"):
        extract(whole, tmp_path / "part.onnx", nodes=[name], data=True)
        agrees(whole, tmp_path / "part.onnx")
