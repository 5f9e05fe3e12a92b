"""The execution provider's core on a GPU: claims, runs, captures, threads, memory, errors (tests/ep/scenarios.py)."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest

from tests.ep.library import build_gpu, run_scenario
from tests.ep.scenarios import FAKE_ONLY, SCENARIOS
from tests.gpu.conftest import SHARED_CARD


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """CUVIL_EP_TEST_LIBRARY, or built here."""
    if not pathlib.Path("/dev/nvidiactl").exists() and not shutil.which("nvidia-smi"):
        pytest.skip("no NVIDIA GPU")
    if given := os.environ.get("CUVIL_EP_TEST_LIBRARY"):
        return pathlib.Path(given).resolve()
    return build_gpu(tmp_path_factory.mktemp("ep"))


@pytest.mark.parametrize("name", [n for n in SCENARIOS if n not in FAKE_ONLY])
def test_scenario(library: pathlib.Path, name: str) -> None:
    if name in ("the_callers_stream_is_used", "an_application_captures_around_a_run", "memory_stays_flat"):
        pytest.importorskip("torch")
    if name == "memory_stays_flat" and SHARED_CARD:
        pytest.skip("measures memory of a card that other tests use too")
    run_scenario(library, name)
