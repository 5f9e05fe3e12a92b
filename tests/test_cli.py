"""The ``cuvil`` command: results, JSON, and one-line errors with exit code 2 for everything a user may get wrong."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cuvil_onnx
from cuvil_onnx import cli
from cuvil_onnx.errors import VerificationError
from models import zoo


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "tiny.onnx"
    onnx.save(zoo.get("tiny").build(), path)
    return path


def run(capsys, *args):
    code = cli.main([str(a) for a in args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def fails(capsys, *args):
    """The message of a call that must fail as every failure does: exit code 2, one line, nothing on stdout."""
    code, out, err = run(capsys, *args, "--quiet")
    assert code == 2
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("cuvil: ")
    return lines[0]


def test_optimize_writes_a_model_that_computes_the_same(capsys, model, tmp_path):
    import onnxruntime

    out = tmp_path / "out.onnx"
    code, text, _ = run(capsys, "optimize", model, "-o", out, "--verify")
    assert code == 0
    assert "before" in text and str(out) in text
    feed = zoo.get("tiny").inputs(2, 0)
    results = [
        onnxruntime.InferenceSession(p, providers=["CPUExecutionProvider"]).run(None, feed)[0] for p in (model, out)
    ]
    # fp32 sums in another order over at most 64 terms of order one
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_optimize_default_output_stands_beside_the_model(capsys, model):
    assert run(capsys, "optimize", model)[0] == 0
    assert model.with_name("tiny.cuvil.onnx").is_file()


def test_optimize_json(capsys, model, tmp_path):
    code, out, _ = run(capsys, "optimize", model, "-o", tmp_path / "o.onnx", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["output"] == str(tmp_path / "o.onnx")
    assert report["after"]["nodes"] < report["before"]["nodes"]


def test_compare_on_the_cpu(capsys, model, tmp_path):
    chart = tmp_path / "c.svg"
    code, out, _ = run(
        capsys, "compare", model, "--cpu", "--seconds", 0.05, "--dim", "N=2", "--chart", chart, "--json", "--quiet"
    )
    result = json.loads(out)
    assert code == 0
    assert result["device"] == "CPU"
    assert result["inputs"] == {"x": "float32[2, 3, 32, 32]"}
    assert [row["key"] for row in result["rows"]] == ["stock_default", "cuvil"]
    assert result["rows"][0]["max_abs_err"] == 0
    assert result["rows"][1]["max_rel_err"] < 1e-5
    assert chart.read_text().startswith("<svg")


def test_compare_table_says_that_it_ran_on_the_cpu(capsys, model, tmp_path):
    np.savez(tmp_path / "in.npz", **zoo.get("tiny").inputs(1, 0))
    code, out, _ = run(capsys, "compare", model, "--cpu", "--seconds", 0.05, "--inputs", tmp_path / "in.npz", "--quiet")
    assert code == 0
    assert "No usable GPU" in out
    assert "p50 ms" in out


def test_info(capsys):
    code, out, _ = run(capsys, "info")
    assert code == 0
    assert "CuvilExecutionProvider: " in out
    code, out, _ = run(capsys, "info", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["provider"]["available"] == (facts["provider"]["reason"] is None)


def test_compare_shows_a_difference_that_the_verification_refuses(capsys, model, monkeypatch):
    """16 bits are verified, since that keeps what they would spoil in float32; a failure is for the table to show."""
    original, asked = cuvil_onnx.optimize, []

    def optimize(*args, **options):
        asked.append(options.get("verify"))
        if options.get("verify") is not False:
            raise VerificationError("differs")
        return original(*args, **options)

    monkeypatch.setattr(cuvil_onnx, "optimize", optimize)
    code, _, _ = run(capsys, "compare", model, "--cpu", "--seconds", 0.05, "--precision", "fp16", "--json", "--quiet")
    assert (code, asked) == (0, [None, False])


def test_info_warns_of_two_builds_of_onnxruntime(capsys, monkeypatch):
    monkeypatch.setattr("cuvil_onnx.runtime.info._version", lambda _: "1.31.1")
    _, out, _ = run(capsys, "info")
    assert "warning: onnxruntime and onnxruntime-gpu are both installed" in out
    _, out, _ = run(capsys, "info", "--json")
    assert len(json.loads(out)["warnings"]) == 1


def test_progress_goes_to_standard_error(capsys, model, tmp_path):
    _, out, err = run(capsys, "optimize", model, "-o", tmp_path / "o.onnx", "--json")
    assert "optimizing" in err
    json.loads(out)


def one_node(op="Relu", domain="", opset=18, ir_version=9, nodes=True):
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], name="the_node", domain=domain)] if nodes else [],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])] if nodes else [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])] if nodes else [],
    )
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version).SerializeToString()


BAD_FILES = {
    "missing": (None, "no such file"),
    "text": (b"just some text, no protobuf at all\n" * 20, "not an ONNX file"),
    "truncated": (zoo.get("tiny").build().SerializeToString()[:3000], "not an ONNX file, or truncated"),
    "empty file": (b"", "not an ONNX file"),
    "empty graph": (one_node(nodes=False), "empty"),
    "newer IR": (one_node(ir_version=99), "IR version 99"),
    "newer opset": (one_node(opset=99), "opset 99"),
    "unknown custom op": (one_node("Frobnicate", "com.example"), "com.example::Frobnicate (the_node)"),
}


@pytest.mark.parametrize("command", ["optimize", "compare"])
@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_models(capsys, tmp_path, command, case):
    content, message = BAD_FILES[case]
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    assert message in fails(capsys, command, path)
    assert sorted(tmp_path.iterdir()) == before


def test_unknown_ops_can_be_allowed(capsys, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(one_node("Frobnicate", "com.example"))
    assert run(capsys, "optimize", path, "--allow-unknown-ops")[0] == 0


def test_output_over_the_input_is_refused(capsys, model):
    before = model.read_bytes()
    fails(capsys, "optimize", model, "-o", model)
    assert model.read_bytes() == before


def test_output_in_a_missing_or_unwritable_folder(capsys, model, tmp_path):
    assert str(tmp_path / "no") in fails(capsys, "optimize", model, "-o", tmp_path / "no" / "o.onnx")
    (tmp_path / "file").write_text("a file, no folder")
    fails(capsys, "optimize", model, "-o", tmp_path / "file" / "o.onnx")


def test_a_full_disk_leaves_nothing_behind(capsys, model, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(os, "rename", full)
    assert "No space left" in fails(capsys, "optimize", model, "-o", tmp_path / "o.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["optimize", "compare", "quantize"])
def test_a_picture_is_never_written_over_a_model_or_a_folder(capsys, model, tmp_path, command):
    """Found out before the work: no model beside the error, and none that a picture took the place of."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model.read_bytes())
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    before = sorted(tmp_path.iterdir())
    option = "--html" if command == "optimize" else "--chart"
    for bad in (path, tmp_path / "link", tmp_path / "hard", tmp_path, "/dev/null", tmp_path / "no" / "x.svg"):
        message = fails(capsys, command, path, option, bad)
        assert str(bad) in message and "Errno" not in message
        assert sorted(tmp_path.iterdir()) == before and path.read_bytes() == model.read_bytes()


def test_a_chart_over_the_inputs_is_refused(capsys, model, tmp_path):
    np.savez(tmp_path / "in.npz", **zoo.get("tiny").inputs(1, 0))
    given = tmp_path / "in.npz"
    assert "reads or writes" in fails(capsys, "compare", model, "--cpu", "--inputs", given, "--chart", given)


def test_sizes_that_no_memory_holds(capsys, model):
    assert "fits into no memory" in fails(capsys, "compare", model, "--cpu", "--dim", f"N={2**62}")
    assert "at most" in fails(capsys, "compare", model, "--cpu", "--dim", f"N={10**23}")


@pytest.mark.parametrize("suffix", [".json", ".textproto", ".onnxtxt", ".txt"])
def test_files_of_onnx_s_other_formats_that_are_none(capsys, tmp_path, suffix):
    path = tmp_path / f"bad{suffix}"
    path.write_text("not this either")
    assert "not an ONNX file" in fails(capsys, "optimize", path)


def test_a_chart_that_cannot_be_written(capsys, model, tmp_path):
    chart = tmp_path / "no" / "c.svg"
    assert str(chart.parent) in fails(capsys, "compare", model, "--cpu", "--seconds", 0.05, "--chart", chart)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(3, np.float32)}, "the model's inputs are ['x']"),
        ({"x": np.zeros((1, 3, 32, 31), np.float32)}, "Got: 31 Expected: 32"),
        ({"x": np.zeros((1, 3, 32, 32))}, "Unexpected input data type"),
    ],
    ids=["name", "shape", "dtype"],
)
def test_wrong_inputs(capsys, model, tmp_path, arrays, message):
    np.savez(tmp_path / "in.npz", **arrays)
    assert message in fails(capsys, "compare", model, "--cpu", "--inputs", tmp_path / "in.npz")


def test_inputs_that_are_no_arrays(capsys, model, tmp_path):
    (tmp_path / "in.npz").write_text("no zip file")
    assert "cannot be read" in fails(capsys, "compare", model, "--cpu", "--inputs", tmp_path / "in.npz")
    assert "in2.npz" in fails(capsys, "compare", model, "--cpu", "--inputs", tmp_path / "in2.npz")


def test_inputs_in_one_nameless_array(capsys, model, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros((1, 3, 32, 32), np.float32))
    assert "an .npz file is required" in fails(capsys, "compare", model, "--cpu", "--inputs", tmp_path / "in.npy")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_no_time_to_measure(model, seconds):
    with pytest.raises(SystemExit) as caught:
        cli.main(["compare", str(model), "--cpu", f"--seconds={seconds}"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("dim", "message"),
    [
        ("N", "NAME=SIZE"),
        ("M=3", "no input has the dimension 'M'"),
        ("x:2=31", "x:2=31: this dimension is 32 in the model"),
    ],
)
def test_wrong_dimensions(capsys, model, dim, message):
    assert message in fails(capsys, "compare", model, "--cpu", "--dim", dim)


def test_wrong_rule_names(capsys, model, tmp_path):
    assert "no_such_rule" in fails(capsys, "optimize", model, "-o", tmp_path / "o.onnx", "--skip", "no_such_rule")


def test_wrong_usage_exits_with_2():
    with pytest.raises(SystemExit) as caught:
        cli.main(["optimize"])
    assert caught.value.code == 2


def test_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "cuvil_onnx.cli", "optimize", str(tmp_path / "missing.onnx"), "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_leaves_nothing_behind(model, tmp_path, number):
    folder = tmp_path / "tmp"
    folder.mkdir()
    command = [sys.executable, "-m", "cuvil_onnx.cli", "compare", str(model), "--cpu", "--seconds", "60"]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(folder)}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[2/2]"):
            break
    (work,) = folder.glob("cuvil-compare-*")
    time.sleep(0.5)  # the process that measures is on its way
    process.send_signal(number)
    assert process.stderr.read().strip().endswith("cuvil: interrupted")
    assert process.wait() == 2
    assert not work.exists()
    for running in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # one that has ended meanwhile
            assert str(work).encode() not in running.read_bytes()


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m cuvil_onnx.cli info --json | true"
    done = subprocess.run(["bash", "-c", command + '; exit "${PIPESTATUS[0]}"'], capture_output=True, text=True)
    assert done.returncode in (0, 128 + signal.SIGPIPE)  # 0 where all of it fitted into the pipe in time
    assert done.stderr == ""


def test_a_comparison_that_random_inputs_do_not_fit_says_how_to_give_others(capsys, tmp_path):
    table = helper.make_tensor("t", TensorProto.FLOAT, [1, 4], [1.0] * 4)  # a made-up index is 0 or 1
    graph = helper.make_graph(
        [helper.make_node("Gather", ["t", "i"], ["y"])],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 4])],
        [table],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    assert "--inputs FILE.npz" in fails(capsys, "compare", tmp_path / "m.onnx", "--cpu")
