"""The 8-bit float formats of csrc/device/float8.cuh against ml_dtypes, and what it lacks: saturation."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

FORMATS = {
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
}


@pytest.fixture(scope="module")
def tool(compile_cpp: Callable[..., pathlib.Path]) -> pathlib.Path:
    return compile_cpp(["tests/csrc/float8_tool.cc"], ["-O1", "-fsanitize=undefined"])


def encode(tool: pathlib.Path, kind: int, x: np.ndarray, *, saturate: bool) -> np.ndarray:
    command = [str(tool), "encode", str(kind), str(int(saturate))]
    return np.frombuffer(subprocess.run(command, input=x.tobytes(), capture_output=True, check=True).stdout, np.uint8)


def every_kind_of_float() -> np.ndarray:
    """All upper halves of a float32 with the lower halves that decide a rounding, and random ones."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    random = np.random.default_rng(0).integers(0, 2**32, 300_000, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([upper, upper + 1, upper - 1, upper + 0x8000, random]).view(np.float32)


@pytest.mark.parametrize("kind", FORMATS)
def test_decode(tool: pathlib.Path, kind: int) -> None:
    codes = np.arange(256, dtype=np.uint8)
    done = subprocess.run([str(tool), "decode", str(kind)], input=codes.tobytes(), capture_output=True, check=True)
    found, expected = np.frombuffer(done.stdout, np.float32), codes.view(FORMATS[kind]).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found)[~np.isnan(found)], np.signbit(expected)[~np.isnan(found)])


@pytest.mark.parametrize("kind", FORMATS)
def test_encode(tool: pathlib.Path, kind: int) -> None:
    x, dtype = every_kind_of_float(), FORMATS[kind]
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
    found = encode(tool, kind, x, saturate=False).view(dtype)
    number = ~np.isnan(x)  # codes of NaN differ in bits that mean nothing
    assert np.isnan(found[~number].astype(np.float32)).all()
    np.testing.assert_array_equal(found[number].view(np.uint8), expected[number].view(np.uint8))
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    clipped = np.clip(x[number], -largest, largest).astype(dtype)
    np.testing.assert_array_equal(encode(tool, kind, x[number], saturate=True), clipped.view(np.uint8))
