"""What the documentation says exists: its code runs, its tables of options and variables are complete."""

from __future__ import annotations

import pathlib
import re
import warnings

import numpy as np
import onnx
import pytest
from onnx import helper

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPTIONS = (ROOT / "docs" / "options.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Variables of the system, of this project's own benchmark records, and a constant that names one.
FOREIGN = {"HOME", "PATH", "PYTHONPATH", "XDG_CACHE_HOME", "CUVIL_COMMIT", "STRICT_VARIABLE"}


def blocks(page: pathlib.Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.S | re.M)


@pytest.mark.parametrize("code", [pytest.param(c, id=f"{p.name}-{i}") for p in PAGES for i, c in enumerate(blocks(p))])
def test_code_runs_as_written(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = helper.make_graph(
        [helper.make_node("Relu", ["input"], ["a"]), helper.make_node("Add", ["a", "input"], ["output"])],
        "g",
        [helper.make_tensor_value_info("input", 1, ["N", 4])],
        [helper.make_tensor_value_info("output", 1, ["N", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, "model.onnx")
    names = {"x": np.array([[-1, 2, -3, 4]], np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the fallback where there is no GPU
        exec(compile(code, "documentation", "exec"), names)
    np.testing.assert_array_equal(names["outputs"][0], [[-1, 4, -3, 8]])


def test_there_is_code_to_run():
    assert blocks(ROOT / "README.md")


def test_every_option_of_the_provider_is_documented():
    source = (ROOT / "csrc" / "ep" / "options.cc").read_text()
    known = re.findall(r'key == "(\w+)"', source)
    assert "device_id" in known
    documented = re.findall(r"^\| `(\w+)`", OPTIONS.split("## Environment")[0], flags=re.M)
    assert sorted(documented) == sorted(known)


def test_every_environment_variable_is_documented():
    read = set()
    for path in (*(ROOT / "csrc").rglob("*"), *(ROOT / "cuvil_onnx").rglob("*.py"), *(ROOT / "cmake").iterdir()):
        if path.suffix in {".cc", ".cu", ".h", ".cuh", ".py", ".cmake"}:
            text = path.read_text()
            read |= set(re.findall(r'(?:getenv\(|environ(?:\.get\(|\[)|ENV\{|env\.get\()"?([A-Z]\w+)', text))
            if "getenv(name)" in text or "environ" in text:  # the name stands elsewhere in the file
                read |= set(re.findall(r'"(CUVIL_\w+)"', text))
    assert {"CUVIL_TUNING", "CUVIL_CACHE_DIR", "CUVIL_BUILD_EP"} <= read
    documented = set(re.findall(r"`([A-Z][A-Z_]+)(?:=\w+)?`", OPTIONS))
    assert read - FOREIGN <= documented


def test_links_lead_somewhere():
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "custom_ops" / "OPS.md"):
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
