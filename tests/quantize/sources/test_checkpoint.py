"""AWQ and GPTQ checkpoints: codes, zero points, scales and row order come out as they were put in, bit for bit."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.sources.checkpoint import open_checkpoint
from cuvil_onnx.quantize.sources.safetensors_file import Tensors
from cuvil_onnx.quantize.sources.source import dequantized
from tests.quantize.sources.checkpoints import Layer, awq_tensors, gptq_tensors, write_folder, write_safetensors

K, N = 64, 24
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}


def read(folder, tensors, name="l", **config):
    source = open_checkpoint(write_folder(folder, tensors, **config))
    shape, decode = source.quantized[name]
    weight = decode()
    assert weight.shape == shape
    return weight


def check(weight, layer: Layer) -> None:
    quantized = weight.quantized
    order = np.arange(layer.k) if weight.order is None else weight.order
    middle = 1 << (layer.bits - 1) if weight.grid.symmetric else 0
    np.testing.assert_array_equal(quantized.codes.astype(np.int64) + middle, layer.codes[order])
    np.testing.assert_array_equal(quantized.scales, layer.scales.astype(np.float32))
    if weight.grid.symmetric:
        assert quantized.zero_points is None and (layer.zeros == middle).all()
    else:
        np.testing.assert_array_equal(quantized.zero_points, layer.zeros)
    np.testing.assert_array_equal(dequantized(weight), layer.weight())
    assert weight.grid.scale_dtype == ir.DataType.FLOAT16
    assert quantized.codes.min() >= weight.grid.low and quantized.codes.max() <= weight.grid.high


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_gptq(version, bits, symmetric, tmp_path):
    layer = Layer(K, N, 16, bits, symmetric=symmetric)
    layout = {1: "gptq", 2: "gptq_v2"}[version]
    tensors = gptq_tensors("l", layer, version)
    weight = read(tmp_path, tensors, **GPTQ | {"bits": bits, "checkpoint_format": layout})
    assert weight.order is None and weight.grid.symmetric == symmetric
    check(weight, layer)


def test_gptq_zero_points_of_zero_survive_version_1(tmp_path):
    """0 - 1 borrows from the next field of the word; GPTQModel's reader, and this one, add the same word again."""
    layer = Layer(K, N, 16)
    layer.zeros[:, 2] = layer.zeros[0, 5:9] = 0
    check(read(tmp_path, gptq_tensors("l", layer, 1), **GPTQ), layer)


@pytest.mark.parametrize("group", [16, 32, -1])
def test_gptq_act_order(group, tmp_path):
    layer = Layer(K, N, group)
    layer.scatter()
    weight = read(tmp_path, gptq_tensors("l", layer, 1), **GPTQ | {"group_size": group, "desc_act": True})
    assert (weight.order is None) == (group == -1)
    check(weight, layer)


def test_gptq_whose_last_group_is_short(tmp_path):
    layer = Layer(40, N, 32)
    layer.scatter()
    weight = read(tmp_path, gptq_tensors("l", layer, 1), **GPTQ | {"group_size": 32})
    assert weight.quantized.scales.shape == (2, N)
    check(weight, layer)


def test_gptq_without_g_idx(tmp_path):
    layer = Layer(K, N, 16)
    tensors = gptq_tensors("l", layer, 2)
    del tensors["l.g_idx"]
    check(read(tmp_path, tensors, **GPTQ | {"checkpoint_format": "gptq_v2"}), layer)


def test_gptq_groups_of_uneven_size_are_an_error(tmp_path):
    layer = Layer(K, N, 16)
    layer.groups_of_rows[0] = 3
    source = open_checkpoint(write_folder(tmp_path, gptq_tensors("l", layer, 1), **GPTQ))
    with pytest.raises(ModelLoadError, match="layer 'l': g_idx makes groups of 15 to 17 rows, 16 each"):
        source.quantized["l"][1]()


@pytest.mark.parametrize("group", [16, 64, -1])
@pytest.mark.parametrize("symmetric", [False, True])
def test_awq(group, symmetric, tmp_path):
    layer = Layer(K, N, group, symmetric=symmetric)
    layer.zeros[:, 3] = 8 if symmetric else 0
    weight = read(tmp_path, awq_tensors("l", layer), **AWQ | {"group_size": group})
    assert weight.grid.symmetric == symmetric
    check(weight, layer)


def test_the_fields_of_a_word():
    """Written down by hand: column c of eight holds the code c."""
    tensors = awq_tensors("l", Layer(1, 8, -1))
    layer = Layer(1, 8, -1)
    layer.codes[:] = np.arange(8)
    tensors = awq_tensors("l", layer)
    assert tensors["l.qweight"].view(np.uint32)[0, 0] == 0x75316420
    gptq = gptq_tensors("l", layer, 2)
    assert gptq["l.qweight"][0].tolist() == list(range(8))


def test_checkpoints_of_several_files(tmp_path):
    layer = Layer(K, N, 16)
    tensors = gptq_tensors("a.b", layer, 1) | {"a.b.bias": np.ones(N, np.float16), "norm": np.ones(K, np.float32)}
    source = open_checkpoint(write_folder(tmp_path, tensors, files=3, **GPTQ))
    assert set(source.quantized) == {"a.b"} and set(source.floats) == {"a.b.bias", "norm"}
    check(source.quantized["a.b"][1](), layer)
    shape, load = source.floats["a.b.bias"]
    assert shape == (N,)
    np.testing.assert_array_equal(load(), tensors["a.b.bias"])


def test_older_configurations(tmp_path):
    layer = Layer(K, N, 16)
    path = write_safetensors(tmp_path / "model.safetensors", gptq_tensors("l", layer, 1))
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 16, "desc_act": False}))
    check(open_checkpoint(path).quantized["l"][1](), layer)
    path = write_safetensors(tmp_path / "model.safetensors", awq_tensors("l", layer))
    (tmp_path / "quantize_config.json").unlink()
    old = {"zero_point": True, "q_group_size": 16, "w_bit": 4, "version": "GEMM"}
    (tmp_path / "quant_config.json").write_text(json.dumps(old))
    check(open_checkpoint(tmp_path).quantized["l"][1](), layer)
    (tmp_path / "quant_config.json").unlink()
    check(open_checkpoint(path, old).quantized["l"][1](), layer)
    with pytest.raises(ModelLoadError, match="no quantization_config"):
        open_checkpoint(path)


WRONG = {
    "method": ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'"),
    "bits": ({"quant_method": "gptq", "bits": 3, "group_size": 16}, "GPTQ with 3 bits"),
    "version": (AWQ | {"version": "gemv"}, "version 'gemv'"),
    "format": (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    "group": (GPTQ | {"group_size": 0}, "group_size is 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_an_error(case, tmp_path):
    config, message = WRONG[case]
    folder = write_folder(tmp_path, gptq_tensors("l", Layer(K, N, 16), 1), **config)
    with pytest.raises(ModelLoadError, match=message):
        open_checkpoint(folder)


def test_shapes_that_do_not_fit_are_an_error(tmp_path):
    tensors = gptq_tensors("l", Layer(K, N, 16), 1)
    source = open_checkpoint(write_folder(tmp_path, tensors, **GPTQ | {"group_size": 32}))
    with pytest.raises(ModelLoadError, match=r"scales has the shape \[4, 24\], \[2, 24\] is required"):
        source.quantized["l"][1]()
    source = open_checkpoint(write_folder(tmp_path, tensors, **AWQ))
    with pytest.raises(ModelLoadError, match="only the layout of version 'gemm'"):
        source.quantized["l"][1]()
    del tensors["l.scales"]
    with pytest.raises(ModelLoadError, match=r"layer 'l' has no l\.scales"):
        open_checkpoint(write_folder(tmp_path, tensors, **GPTQ))


def test_scales_that_are_no_numbers_are_an_error(tmp_path):
    tensors = gptq_tensors("l", Layer(K, N, 16), 1)
    tensors["l.scales"] = tensors["l.scales"].copy()
    tensors["l.scales"][1, 1] = np.inf
    source = open_checkpoint(write_folder(tmp_path, tensors, **GPTQ))
    with pytest.raises(ModelLoadError, match="layer 'l': some scales are NaN or infinite"):
        source.quantized["l"][1]()


@pytest.mark.parametrize("keep", [0, 5, 8, 40, 400, 1000])
def test_truncated_files_are_errors(keep, tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", gptq_tensors("l", Layer(K, N, 16), 1))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"m\.safetensors: "):
        open_checkpoint(path, GPTQ)


def test_an_index_cannot_leave_its_folder(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../secret.safetensors"}}))
    with pytest.raises(ModelLoadError, match="no file of the folder"):
        open_checkpoint(tmp_path, GPTQ)


def test_files_of_the_safetensors_package(tmp_path):
    numpy_files = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.standard_normal((3, 4)).astype(np.float32),
        "b": rng.integers(-9, 9, (2, 5)).astype(np.int64),
        "c": np.zeros((0, 3), np.float16),
        "d": np.array(True),
    }
    numpy_files.save_file(arrays, tmp_path / "m.safetensors")
    found = Tensors([tmp_path / "m.safetensors"])
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found.shape(name) == array.shape
        np.testing.assert_array_equal(found[name], array)
