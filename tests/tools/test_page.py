"""The report as a page: complete, well formed, self-contained, and safe against whatever names a model has."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import cuvil_onnx
from cuvil_onnx import cli
from cuvil_onnx.errors import OutputError
from cuvil_onnx.report import Report
from cuvil_onnx.rewrite.rule import Exactness
from cuvil_onnx.rewrite.sketch import Box, Sketch
from cuvil_onnx.rewrite.trace import Refused, Trace
from cuvil_onnx.tools import page, picture
from models import zoo


@pytest.fixture(scope="module")
def report() -> Report:
    return cuvil_onnx.optimize(zoo.get("tiny").build(), precision="fp16").report


def elements(text: str) -> ElementTree.Element:
    """The page as XML: what we write closes every tag except ``meta``, and uses no named entity of HTML."""
    return ElementTree.fromstring(re.sub(r"<meta [^>]*>", "", text.split("\n", 1)[1]))


def test_it_tells_everything(report: Report) -> None:
    text = page.render(report, "tiny.onnx")
    root = elements(text)
    visible = " ".join(root.itertext())
    assert "tiny.onnx" in visible and report.verification in visible
    assert report.trace.accuracy and report.trace.accuracy in visible
    assert f"{report.before.nodes} → {report.after.nodes}" in visible
    assert f"{report.before.parameters:,} → {report.after.parameters:,}" in visible
    for rule in report.trace.counts:
        assert rule in visible
    for near in report.near_misses():
        assert near.reason in visible
    # one chart, and two pictures for each rule with nodes
    assert {"gelu_erf", "conv_epilogue", "matmul_epilogue"} <= set(report.trace.pictures)
    svgs = list(root.iter("{http://www.w3.org/2000/svg}svg"))
    assert len(svgs) == 1 + 2 * len(report.trace.pictures)


def test_it_loads_nothing(report: Report) -> None:
    text = page.render(report)
    assert not re.search(r"<(script|link|img|iframe|object)|@import|url\(|\b(src|href)=", text)
    assert set(re.findall(r"https?://[^\"' )]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_first_rewrite_of_each_rule_is_pictured(report: Report) -> None:
    gelu = report.trace.pictures["gelu_erf"]
    assert [b.op for b in gelu.before.boxes] == ["Div", "Erf", "Add", "Mul", "Mul"]
    assert [b.op for b in gelu.after.boxes] == ["cuvil::Gelu"]
    assert gelu.before.results == gelu.after.results == ("gelu",)
    assert [b.weights for b in gelu.before.boxes] == [1, 0, 1, 0, 1]


def test_names_cannot_break_the_page() -> None:
    evil = '</svg><script>alert("1")</script>&'
    graph = onnx.parser.parse_graph("g (float[2,4] x) => (float[2,4] y) { m = MatMul(x, w) a = Add(m, b) y = Relu(a) }")
    weights = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    for node in graph.node:
        node.name = node.op_type + evil
    for node in graph.node[:2]:
        node.output[0] += evil
    graph.node[1].input[0] = graph.node[0].output[0]
    graph.node[2].input[0] = graph.node[1].output[0]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    report = cuvil_onnx.optimize(model).report
    assert report.trace.pictures
    text = page.render(report, evil)
    assert "<script" not in text
    elements(text)


def test_a_report_of_nothing(report: Report) -> None:
    empty = Report(report.before, report.before, Trace(), "no: <too large>")
    visible = " ".join(elements(page.render(empty)).itertext())
    assert "Not verified: <too large>" in visible and "Nothing." in visible


def test_many_operators_and_near_misses_are_bounded(report: Report) -> None:
    trace = Trace(refused=[Refused("rule", f"node{i}", f"reason {i % 700}") for i in range(2000)])
    many = report.before.__class__(1, 1, {f"Op{i}": i for i in range(100)}, 0, 0)
    text = page.render(Report(many, many, trace))
    assert "60 more operators" in text and "Op99" in text and "Op1<" not in text
    elements(text)


def test_a_rule_that_fired_after_all_is_no_near_miss(report: Report) -> None:
    trace = Trace(refused=[Refused("r", "n", "not yet"), Refused("r", "m", "never")])
    trace.add_fired("r", Exactness.EXACT, nodes=("n", "k"))
    found = Report(report.before, report.after, trace)
    assert [r.node for r in found.near_misses()] == ["m"]
    assert "not yet" not in found.explain() and "never" in found.explain()


def rectangles(svg: str, kind: str) -> list[tuple[float, float, float, float]]:
    found = re.findall(rf'<rect class="{kind}" x="([\d.-]+)" y="([\d.-]+)" width="([\d.]+)" height="([\d.]+)"', svg)
    return [(float(x), float(y), float(x) + float(w), float(y) + float(h)) for x, y, w, h in found]


def test_boxes_do_not_overlap_and_arrows_go_down() -> None:
    names = [f"v{i}" for i in range(12)]
    boxes = [
        Box("Op", f"n{i}", tuple(dict.fromkeys((names[i // 2], "x", "y"))), i % 3, (names[i],), "2×3")
        for i in range(1, 12)
    ]
    svg = picture.draw(Sketch(tuple(boxes), ("v11", "v10")), "before")
    places = rectangles(svg, "before") + rectangles(svg, "pill")
    assert len(places) == 11 + 3 + 2  # boxes; x, y and v0 enter; two results
    for i, (left, top, right, bottom) in enumerate(places):
        assert left >= 0 and top >= 0
        for l2, t2, r2, b2 in places[i + 1 :]:
            assert right <= l2 or r2 <= left or bottom <= t2 or b2 <= top
    for y, end in re.findall(r'd="M[\d.-]+ ([\d.-]+)C.* ([\d.-]+)"', svg.replace("/>", "/>\n")):
        assert float(end) > float(y)
    ElementTree.fromstring(svg)


def test_a_value_that_takes_over_and_a_long_chain() -> None:
    assert "other" in picture.draw(Sketch((), ("other",)), "after")
    boxes = [Box("Neg", "", (f"v{i}",), 0, (f"v{i + 1}",), "") for i in range(40)]
    svg = picture.draw(Sketch(tuple(boxes), ("v40",)), "before")
    xs = {round((a + c) / 2) for a, _, c, _ in rectangles(svg, "before")}
    assert len(xs) == 1  # a chain is a straight line


def test_save_html(report: Report, tmp_path: Path) -> None:
    path = report.save_html(tmp_path / "r.html", "tiny")
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(OutputError):
        report.save_html(tmp_path / "no" / "r.html")
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "tiny.onnx"
    onnx.save(zoo.get("tiny").build(), model)
    before = model.read_bytes()
    html = tmp_path / "r.html"
    assert cli.main(["optimize", str(model), "--html", str(html), "--explain"]) == 0
    out = capsys.readouterr().out
    assert str(html) in out and "gelu_erf (rounding): gelu_div" in out
    assert "tiny.onnx" in html.read_text("utf-8")
    for bad, message in ((model, "reads or writes"), (tmp_path / "no" / "r.html", "does not exist")):
        assert cli.main(["optimize", str(model), "--html", str(bad), "--quiet"]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
    assert model.read_bytes() == before
