"""The execution provider's core inside ONNX Runtime, on a fake device (fake/cuda.cc): no GPU, no CUDA toolkit."""

from __future__ import annotations

import pathlib

import pytest

from tests.ep.library import build_fake, run_scenario
from tests.ep.scenarios import GPU_ONLY, SCENARIOS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build_fake(tmp_path_factory.mktemp("fake_ep"))


@pytest.mark.parametrize("name", [n for n in SCENARIOS if n not in GPU_ONLY])
def test_scenario(library: pathlib.Path, name: str) -> None:
    run_scenario(library, name)
