"""Saving harms no file: the target is complete or what stood there before."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest

import cuvil_onnx
from cuvil_onnx.errors import OutputError
from tests.api_testing import TEXT, W, expected, made, run, saved


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
    path = saved(tmp_path)
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


def test_external_weights_convert_to_fp16(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    big = {"w": np.resize(W, (8, 400)), "c": np.zeros(400, np.float32)}
    onnx.save(made(TEXT.replace("N,4", "N,400"), **big), source, save_as_external_data=True, location="in.bin")
    cuvil_onnx.optimize(source, tmp_path / "out.onnx", precision="fp16")
    assert not (tmp_path / "out.onnx.data").exists(), "nothing external is left"
    np.testing.assert_allclose(run(tmp_path / "out.onnx")[0], run(source)[0], rtol=1e-2, atol=1e-2)
