"""Finding and registering the provider's library."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import cuvil_onnx
from cuvil_onnx.runtime import registration


@pytest.fixture
def unregistered(monkeypatch):
    monkeypatch.setattr(registration, "_state", None)


def test_names():
    assert cuvil_onnx.get_ep_name() == "CuvilExecutionProvider"
    assert cuvil_onnx.get_ep_names() == ["CuvilExecutionProvider"]


def test_library_path_is_a_file_or_a_clear_error():
    path = cuvil_onnx.get_library_path(missing_ok=True)
    if path:
        assert os.path.isfile(path)
    else:
        with pytest.raises(FileNotFoundError, match="not built"):
            cuvil_onnx.get_library_path()


def test_register_is_idempotent():
    first = cuvil_onnx.register()
    assert cuvil_onnx.register() == first


def test_missing_library_is_a_reason(monkeypatch, unregistered):
    monkeypatch.setattr(registration, "get_library_path", lambda missing_ok=False: "")
    state = registration.register()
    assert not state.registered
    assert "not built" in state.reason


def test_broken_library_is_a_reason(monkeypatch, unregistered, tmp_path):
    broken = tmp_path / "libcuvil_ep.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(registration, "get_library_path", lambda missing_ok=False: str(broken))
    monkeypatch.setattr(registration, "EP_NAME", "BrokenProviderOfThisTest")
    state = registration.register()
    assert not state.registered
    assert "could not be registered" in state.reason
    assert "\n" not in state.reason


def test_old_onnxruntime_is_a_reason(monkeypatch, unregistered, tmp_path):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "__version__", "1.26.3")
    monkeypatch.setattr(registration, "get_library_path", lambda missing_ok=False: str(tmp_path))
    assert "1.26.3 is too old" in registration.register().reason


@pytest.mark.parametrize(("text", "version"), [("1.31.1", (1, 31)), ("1.27.0.dev2026", (1, 27)), ("odd", (0, 0))])
def test_version_numbers(text, version):
    assert registration.ort_version(text) == version


def test_pip_library_folders_are_exported_after_the_users_own(monkeypatch):
    monkeypatch.setenv("CUVIL_LIBRARY_PATH", "/mine")
    monkeypatch.setattr(registration, "nvidia_library_dirs", lambda: ["/pip/cublas/lib", "/mine"])
    registration._export_library_path()
    assert os.environ["CUVIL_LIBRARY_PATH"].split(os.pathsep) == ["/mine", "/pip/cublas/lib"]


def test_import_stays_light():
    """A script that imports the package and exits must not pay for onnx and onnx_ir."""
    code = "import sys, cuvil_onnx; print([m for m in ('onnx', 'onnx_ir', 'ml_dtypes') if m in sys.modules])"
    env = {**os.environ, "CUVIL_REGISTER": "0"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert out.stdout.strip() == "[]"
