"""Rules are found, not listed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cuvil_onnx.errors import RewriteError
from cuvil_onnx.pipeline import all_rules
from cuvil_onnx.rewrite.discovery import discover

RULE = """
from tests.rewrite.engine_testing import ExactRule
class {name}(ExactRule):
    name = "{rule}"
    roots = (("", "Neg"),)
    def match(self, node, ctx):
        return None
    def rewrite(self, match, ctx):
        raise AssertionError
"""


def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> object:
    folder = tmp_path / "found_rules"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [m for m in sys.modules if m.startswith("found_rules")]:
        monkeypatch.delitem(sys.modules, name)
    return __import__("found_rules")


def test_one_rule_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"b": RULE.format(name="B", rule="b"), "a": RULE.format(name="A", rule="a"), "_help": "x = 1"}
    found = discover(_package(tmp_path, monkeypatch, **modules))
    assert [rule.name for rule in found] == ["a", "b"]


@pytest.mark.parametrize(
    "modules",
    [
        {"a": "x = 1"},
        {"a": RULE.format(name="A", rule="a") + RULE.format(name="B", rule="b")},
        {"a": RULE.format(name="A", rule="a"), "b": RULE.format(name="B", rule="a")},
    ],
)
def test_anything_else_is_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: dict[str, str]) -> None:
    with pytest.raises(RewriteError):
        discover(_package(tmp_path, monkeypatch, **modules))


def test_this_package_s_rules_say_what_they_do() -> None:
    for rule in all_rules():
        module = sys.modules[type(rule).__module__]
        assert module.__doc__ and type(rule).__doc__, rule.name
        assert rule.roots, rule.name
        assert module.__name__.rsplit(".", 1)[1] == rule.name
