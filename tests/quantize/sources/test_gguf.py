"""GGUF: every tensor type decodes to the bits of the gguf package, and what is damaged is named."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.sources import gguf_blocks, gguf_file
from cuvil_onnx.quantize.sources.source import dequantized

gguf = pytest.importorskip("gguf")
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
N, K = 6, 512


def random_blocks(kind: str, seed: int = 0) -> np.ndarray:
    """Every byte random, but the float16 scales finite and of both signs: [N, bytes of a row]."""
    block, size = gguf_file.BLOCKS[kind]
    rng = np.random.default_rng([seed, size])
    blocks = rng.integers(0, 256, (N, K // block, size), np.uint8)
    starts = {"Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q6_K": [208]}.get(kind, [0, 2])
    for start in starts:
        halves = (rng.standard_normal((N, K // block, 1)) * 0.01).astype("<f2")
        blocks[..., start : start + 2] = halves.view(np.uint8)
    blocks[0, 0, starts[0] : starts[0] + 2] = np.array([1], "<u2").view(np.uint8)  # the smallest subnormal number
    blocks[1, 0, starts[0] : starts[0] + 2] = 0
    return blocks.reshape(N, -1)


def write(path, tensors: dict[str, tuple[np.ndarray, str]], **fields) -> str:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        writer.add_array(key, value) if isinstance(value, list) else writer.add_uint32(key, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_decodes_to_the_same_bits(kind, tmp_path):
    data = random_blocks(kind)
    file = gguf_file.read(write(tmp_path / "f.gguf", {"w": (data, kind)}))
    tensor = file.tensors["w"]
    assert tensor.kind == kind and tensor.shape == (N, K)
    weight = gguf_blocks.decode(tensor)
    assert weight.shape == (K, N)
    want = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(dequantized(weight).T, want)
    np.testing.assert_array_equal(gguf_blocks.floats(tensor), want)
    grid, quantized = weight.grid, weight.quantized
    assert quantized.codes.min() >= grid.low and quantized.codes.max() <= grid.high
    # The type that is said to hold the scales does.
    for numbers in (quantized.scales, quantized.offsets):
        if numbers is not None:
            np.testing.assert_array_equal(numbers.astype(grid.scale_dtype.numpy()).astype(np.float32), numbers)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_what_gguf_quantized_decodes(kind, tmp_path):
    original = np.random.default_rng(1).standard_normal((N, K)).astype(np.float32)
    data = gguf.quantize(original, gguf.GGMLQuantizationType[kind])
    weight = gguf_blocks.decode(gguf_file.read(write(tmp_path / "f.gguf", {"w": (data, kind)})).tensors["w"])
    # Half a step of 16 levels over about 7 standard deviations, some of it for the scale's own rounding.
    assert np.abs(dequantized(weight).T - original).max() < (0.5 if kind[1] == "4" else 0.3)


def test_plain_floats_and_metadata(tmp_path):
    x = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
    brain = (x.view(np.uint32) >> 16).astype(np.uint16)
    tensors = {"a": (x, "F32"), "b": (x.astype(np.float16), "F16"), "c": (brain.view(np.uint8), "BF16")}
    file = gguf_file.read(write(tmp_path / "f.gguf", tensors, **{"n": 7, "words": ["ä", "b"], "numbers": [1, -2]}))
    assert file.metadata["n"] == 7 and file.metadata["words"] == ["ä", "b"] and file.metadata["numbers"] == [1, -2]
    assert file.metadata["general.architecture"] == "llama"
    np.testing.assert_array_equal(gguf_blocks.floats(file.tensors["a"]), x)
    np.testing.assert_array_equal(gguf_blocks.floats(file.tensors["b"]), x.astype(np.float16))
    np.testing.assert_array_equal(
        gguf_blocks.floats(file.tensors["c"]), (brain.astype(np.uint32) << 16).view(np.float32)
    )


def test_unknown_types_are_listed_and_named(tmp_path):
    data = np.zeros((2, 84), np.uint8)
    file = gguf_file.read(write(tmp_path / "f.gguf", {"w": (data, "Q2_K")}))
    assert file.tensors["w"].kind == "type 10"
    with pytest.raises(ModelLoadError, match=r"'w' is type 10 of shape \[2, 256\]; a matrix of Q4_0"):
        gguf_blocks.decode(file.tensors["w"])


def test_scales_that_are_no_numbers_are_named(tmp_path):
    data = random_blocks("Q4_1")
    data[2, :2] = np.array([np.nan], "<f2").view(np.uint8)
    file = gguf_file.read(write(tmp_path / "f.gguf", {"w": (data, "Q4_1")}))
    with pytest.raises(ModelLoadError, match="'w': some scales are NaN"):
        gguf_blocks.decode(file.tensors["w"])


@pytest.mark.parametrize("keep", [0, 3, 10, 40, 100, 200, 2000])
def test_truncated_files_are_errors(keep, tmp_path):
    path = tmp_path / "f.gguf"
    write(path, {"w": (random_blocks("Q4_1"), "Q4_1")}, words=["a"] * 5)
    whole = path.read_bytes()
    assert len(whole) > 2000
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:keep])
    with pytest.raises(ModelLoadError, match=r"cut\.gguf: "):
        gguf_file.read(cut)


def test_other_files_are_errors(tmp_path):
    path = tmp_path / "f.gguf"
    path.write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        gguf_file.read(path)
    path.write_bytes(b"GGUF\0\0\0\3" + bytes(100))
    with pytest.raises(ModelLoadError, match="version 50331648"):
        gguf_file.read(path)


def test_the_model_of_the_zoo_decodes_to_the_same_bits():
    from models import smollm2, zoo

    try:
        path = smollm2.gguf_path()
    except zoo.MissingModelError as missing:
        pytest.skip(str(missing))
    tensors = gguf_file.read(path).tensors
    kinds = {t.kind for t in tensors.values()}
    assert len(tensors) == 272 and kinds == {"F32", "Q4_1", "Q8_0"}
    for name in ("blk.0.attn_q.weight", "blk.29.ffn_down.weight", "token_embd.weight"):
        tensor = tensors[name]
        want = gguf.dequantize(tensor.data, gguf.GGMLQuantizationType[tensor.kind])
        np.testing.assert_array_equal(dequantized(gguf_blocks.decode(tensor)).T, want)
