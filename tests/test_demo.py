"""The demo that README's first command runs."""

from __future__ import annotations

import sys

import pytest

from cuvil_onnx import demo
from cuvil_onnx.errors import CuvilError


def test_demo_shows_every_stage(capsys):
    demo.demo("tiny", seconds=0.05)
    out = capsys.readouterr().out
    for piece in ("optimized", "before", "output (1, 10)", "CUDA Graph:", "stock ORT", "max rel err"):
        assert piece in out


def test_unknown_model_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["demo", "nothing"])
    assert demo.main() == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_model_that_is_not_installed_is_passed_over(monkeypatch):
    monkeypatch.setattr(demo, "PREFERRED", ("minilm", "tiny"))
    monkeypatch.setattr("models.zoo.importlib.metadata.files", lambda _: [])
    assert demo.choose(None)[0].name == "tiny"
    with pytest.raises(CuvilError, match="no model is installed"):
        demo.choose("minilm")
