"""Checkpoints in ONNX models: the result computes what a float model of the same numbers computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil_onnx
from cuvil_onnx.cli import main
from cuvil_onnx.errors import ModelLoadError
from models import llama
from tests.quantize.sources.checkpoints import Layer, awq_tensors, gptq_tensors, write_folder
from tests.rules.rule_testing import ops, run

CONFIG = llama.Config(
    layers=2, hidden=64, heads=4, key_heads=2, inner=96, vocabulary=80, rope_base=10000.0, epsilon=1e-5
)
LINEARS = {name.removesuffix(".weight") for name in llama.linear_names(CONFIG)}
IDS = np.arange(10).reshape(2, 5) * 7 % CONFIG.vocabulary
# Sums of at most 96 products of order 1 in another order, twice.
TOLERANCE = 2e-5


def sizes(name: str) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    kv = CONFIG.hidden // 2
    by_part = {"k_proj": kv, "v_proj": kv, "gate_proj": CONFIG.inner, "up_proj": CONFIG.inner}
    inputs = CONFIG.inner if name.endswith("down_proj") else CONFIG.hidden
    return inputs, by_part.get(name.rpartition(".")[2], CONFIG.hidden)


def floats(seed: int) -> dict[str, np.ndarray]:
    """Norms and the embedding."""
    rng = np.random.default_rng(seed)
    found = {"model.embed_tokens.weight": rng.standard_normal((CONFIG.vocabulary, CONFIG.hidden))}
    norms = [f"model.layers.{i}.{part}" for i in (0, 1) for part in ("input_layernorm", "post_attention_layernorm")]
    found |= {f"{name}.weight": rng.uniform(0.5, 1.5, CONFIG.hidden) for name in (*norms, "model.norm")}
    return {name: array.astype(np.float32) for name, array in found.items()}


def network(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    return llama.build("small", CONFIG, lambda name: weights[name].astype(np.float32))


def other_network() -> onnx.ModelProto:
    """The same network with other numbers, none of which may survive."""
    rng = np.random.default_rng(99)
    linears = {f"{name}.weight": rng.standard_normal(sizes(name)) * 0.1 for name in LINEARS}
    return network(floats(98) | linears)


def outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    return run(model, llama.feed(CONFIG, IDS, past=3))


def same(result, want: onnx.ModelProto) -> None:
    onnx.checker.check_model(result.model, full_check=True)
    for new, old in zip(outputs(result.model), outputs(want), strict=True):
        np.testing.assert_allclose(new, old, rtol=TOLERANCE, atol=TOLERANCE * np.abs(old).max())


@pytest.fixture(scope="module")
def layers() -> dict[str, Layer]:
    return {name: Layer(*sizes(name), 32, seed=i) for i, name in enumerate(sorted(LINEARS))}


def float_model(layers: dict[str, Layer], seed: int) -> onnx.ModelProto:
    return network(floats(seed) | {f"{name}.weight": layer.weight() for name, layer in layers.items()})


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}


@pytest.mark.parametrize("form", ["gptq", "awq"])
def test_a_checkpoint_replaces_every_number(form, layers, tmp_path):
    tensors = dict(floats(1))
    for name, layer in layers.items():
        tensors |= gptq_tensors(name, layer, 1) if form == "gptq" else awq_tensors(name, layer)
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float16)  # of no effect, and not in the model
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    folder = write_folder(tmp_path / "c", tensors, files=2, **(GPTQ if form == "gptq" else AWQ))
    result = cuvil_onnx.quantize.from_safetensors(other_network(), folder)
    assert ops(result.model)["cuvil::MatMulInt4"] == len(LINEARS)
    assert ops(result.model)["Gather"] == ops(other_network())["Gather"]
    same(result, float_model(layers, 1))
    summary = result.report.quantization
    assert {layer.scheme for layer in summary.layers} == {form}
    assert any("is it the same model?" in w for w in summary.warnings)  # indeed it is another one


def test_the_same_model_differs_by_nothing(layers, tmp_path):
    tensors = dict(floats(1))
    for name, layer in layers.items():
        tensors |= awq_tensors(name, layer)
    result = cuvil_onnx.quantize.from_safetensors(float_model(layers, 1), write_folder(tmp_path / "c", tensors, **AWQ))
    summary = result.report.quantization
    assert not summary.warnings and {layer.relative_error for layer in summary.layers} == {0.0}


def test_act_order_gathers_each_input_once(layers, tmp_path):
    """Queries, keys and values share their input and, being ordered by it, the order."""
    tensors, scattered = dict(floats(1)), {}
    for i, name in enumerate(sorted(LINEARS)):
        scattered[name] = Layer(*sizes(name), 32, seed=i)
        scattered[name].scatter(seed=6)
        tensors |= gptq_tensors(name, scattered[name], 1)
    folder = write_folder(tmp_path / "c", tensors, **GPTQ | {"desc_act": True})
    result = cuvil_onnx.quantize.from_safetensors(other_network(), folder)
    gathers = ops(result.model)["Gather"] - ops(other_network())["Gather"]
    assert gathers == 4 * CONFIG.layers
    same(result, float_model(scattered, 1))
    optimized = cuvil_onnx.optimize(result.model, verify=False)
    same(optimized, float_model(scattered, 1))
    # The order of the last projection's input moves into gate and up.
    others = ops(cuvil_onnx.optimize(other_network(), verify=False).model)["Gather"]
    assert ops(optimized.model)["Gather"] == others + 3 * CONFIG.layers


def gguf_file(
    path, weights: dict[str, np.ndarray], kinds: dict[str, str], architecture="llama"
) -> dict[str, np.ndarray]:
    """Writes a file as llama.cpp's converter does; returns what its tensors stand for, by transformers' names."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(CONFIG.heads)
    writer.add_head_count_kv(CONFIG.key_heads)
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "o_proj": "attn_output"}
    parts |= {f"{p}_proj": f"attn_{p}" for p in "qkv"} | {f"{p}_proj": f"ffn_{p}" for p in ("gate", "up", "down")}
    found = {}
    for name, weight in weights.items():
        stem = name.removesuffix(".weight")
        short = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}.get(stem)
        last = stem.rpartition(".")[2]
        tensor = f"{short or 'blk.' + stem.split('.')[2] + '.' + parts[last]}.weight"
        array = weight.T if stem in LINEARS else weight  # [outputs, inputs]
        heads = {"q_proj": CONFIG.heads, "k_proj": CONFIG.key_heads}.get(last) if architecture == "llama" else None
        if heads:
            # Halves of a head become pairs: row 2i is i of the first half, row 2i + 1 is i of the second.
            size = array.shape[0] // heads
            order = [h * size + j * (size // 2) + i for h in range(heads) for i in range(size // 2) for j in (0, 1)]
            array = array[order]
        kind = kinds.get(last, "F32")
        raw = np.ascontiguousarray(array, np.float32)
        if kind != "F32":
            raw = gguf.quantize(raw, gguf.GGMLQuantizationType[kind])
            array = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(tensor, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
        if heads:
            array = array[np.argsort(order)]
        found[name] = np.ascontiguousarray(array.T if stem in LINEARS else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_gguf(kind, architecture, tmp_path):
    rng = np.random.default_rng(3)
    weights = floats(2) | {f"{name}.weight": rng.standard_normal(sizes(name)) * 0.1 for name in sorted(LINEARS)}
    kinds = dict.fromkeys((n.rpartition(".")[2] for n in LINEARS), kind) | {"embed_tokens": "Q8_0"}
    stood_for = gguf_file(tmp_path / "f.gguf", weights, kinds, architecture)
    result = cuvil_onnx.quantize.from_gguf(other_network(), tmp_path / "f.gguf", output=tmp_path / "out.onnx")
    found = ops(result.model)
    assert found["cuvil::MatMulInt4"] == len(LINEARS) + 1 and found["MatMul"] == 1 + 2 * CONFIG.layers  # + the head
    assert found["DequantizeLinear"] == 1  # of the rows that the embedding looks up
    same(result, network(stood_for))
    saved = onnx.load(tmp_path / "out.onnx")
    assert saved.SerializeToString(deterministic=True) == result.model.SerializeToString(deterministic=True)
    largest = max(result.model.graph.initializer, key=lambda i: np.prod(i.dims))
    assert largest.data_type in (TensorProto.INT8, TensorProto.UINT4, TensorProto.INT4, TensorProto.UINT8)


def untied(model: onnx.ModelProto) -> onnx.ModelProto:
    """The output layer with a weight of its own, [K, N] without a name that tells, as torch's older exporter writes."""
    (head,) = (n for n in model.graph.node if n.name == "/lm_head/MatMul")
    head.input[1] = "onnx::MatMul_99"
    rng = np.random.default_rng(4)
    table = rng.standard_normal((CONFIG.hidden, CONFIG.vocabulary)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "onnx::MatMul_99"))
    return model


@pytest.mark.parametrize("form", ["gguf", "awq"])
def test_the_output_layer_of_a_tied_checkpoint(form, layers, tmp_path):
    """The checkpoint holds the table once, quantized or in floats; both places of an untied export get it."""
    if form == "gguf":
        rng = np.random.default_rng(3)
        weights = floats(2) | {f"{name}.weight": rng.standard_normal(sizes(name)) * 0.1 for name in sorted(LINEARS)}
        stood_for = gguf_file(tmp_path / "f.gguf", weights, {"embed_tokens": "Q8_0"})
        result = cuvil_onnx.quantize.from_gguf(untied(other_network()), tmp_path / "f.gguf")
        same(result, network(stood_for))
        return
    tensors = dict(floats(1))
    for name, layer in layers.items():
        tensors |= awq_tensors(name, layer)
    folder = write_folder(tmp_path / "c", tensors, **AWQ)
    same(cuvil_onnx.quantize.from_safetensors(untied(other_network()), folder), float_model(layers, 1))


def test_gguf_of_other_architectures_needs_names(tmp_path):
    weights = floats(2) | {f"{name}.weight": np.ones(sizes(name)) for name in LINEARS}
    gguf_file(tmp_path / "f.gguf", weights, {"down_proj": "Q4_1"}, "bert")
    with pytest.raises(ModelLoadError, match="architecture 'bert'; names are known for llama"):
        cuvil_onnx.quantize.from_gguf(other_network(), tmp_path / "f.gguf")
    from cuvil_onnx.quantize.sources.gguf import transformers_name

    result = cuvil_onnx.quantize.from_gguf(other_network(), tmp_path / "f.gguf", names=transformers_name)
    assert ops(result.model)["cuvil::MatMulInt4"] == CONFIG.layers


def linear(name: str = "a.b.weight", node: str = "/a/b/MatMul", form: str = "MatMul", k: int = 32, n: int = 16):
    """One linear layer in one of the ways in which exporters write it."""
    w = np.zeros((k, n) if form == "MatMul" else (n, k), np.float32)
    nodes = {
        "MatMul": [helper.make_node("MatMul", ["x", name], ["y"], name=node)],
        "Transpose": [
            helper.make_node("Transpose", [name], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["y"], name=node),
        ],
        "Gemm": [helper.make_node("Gemm", ["x", name, "a.b.bias"], ["y"], name=node, transB=1)],
    }[form]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", n])],
        [numpy_helper.from_array(w, name), numpy_helper.from_array(np.zeros(n, np.float32), "a.b.bias")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("form", ["MatMul", "Transpose", "Gemm"])
@pytest.mark.parametrize("name", ["a.b.weight", "onnx::MatMul_7", "wrapper.a.b.weight", "b.weight"])
def test_layers_are_found_by_weight_or_node(form, name, tmp_path):
    layer = Layer(32, 16, 16)
    tensors = gptq_tensors("a.b", layer, 1)
    bias = np.arange(16, dtype=np.float32)
    if form == "Gemm":
        tensors["a.b.bias"] = bias
    made = linear(name, form=form)
    result = cuvil_onnx.quantize.from_safetensors(
        made, write_folder(tmp_path / "c", tensors, **GPTQ | {"group_size": 16})
    )
    x = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    want = x @ layer.weight() + (bias if form == "Gemm" else 0)
    np.testing.assert_allclose(run(result.model, {"x": x})[0], want, rtol=1e-5, atol=1e-5)
    assert ops(result.model) == {"cuvil::MatMulInt4": 1}


def test_scopes_of_dynamo_name_layers_too(tmp_path):
    made = linear("val_3", "node_MatMul_4")
    made.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'a', 'a.b', 'linear']")
    folder = write_folder(tmp_path / "c", awq_tensors("a.b", Layer(32, 16, 16)), **AWQ | {"group_size": 16})
    assert ops(cuvil_onnx.quantize.from_safetensors(made, folder).model) == {"cuvil::MatMulInt4": 1}


def test_half_models_keep_half_scales(tmp_path):
    made = linear()
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for info in (*made.graph.input, *made.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    layer = Layer(32, 16, 16)
    folder = write_folder(tmp_path / "c", awq_tensors("a.b", layer), **AWQ | {"group_size": 16})
    result = cuvil_onnx.quantize.from_safetensors(made, folder)
    scales = [numpy_helper.to_array(i) for i in result.model.graph.initializer if i.data_type == TensorProto.FLOAT16]
    np.testing.assert_array_equal(scales[0], layer.scales)
    assert not result.report.quantization.layers[0].note


def test_what_has_no_place_is_an_error(tmp_path):
    tensors = awq_tensors("a.b", Layer(32, 16, 16)) | awq_tensors("a.c", Layer(32, 16, 16))
    folder = write_folder(tmp_path / "c", tensors, **AWQ | {"group_size": 16})
    with pytest.raises(ModelLoadError, match=r"1 quantized layers have no place in the model: a\.c; names"):
        cuvil_onnx.quantize.from_safetensors(linear(), folder)
    result = cuvil_onnx.quantize.from_safetensors(linear(), folder, strict=False)
    assert any("a.c" in w for w in result.report.quantization.warnings)
    tensors = awq_tensors("a.b", Layer(32, 16, 16)) | {"norm.weight": np.ones(3, np.float32)}
    with pytest.raises(ModelLoadError, match=r"1 parameters have no place in the model: norm\.weight"):
        cuvil_onnx.quantize.from_safetensors(
            linear(), write_folder(tmp_path / "c", tensors, **AWQ | {"group_size": 16})
        )


def test_other_shapes_are_an_error(tmp_path):
    folder = write_folder(tmp_path / "c", awq_tensors("a.b", Layer(32, 24, 16)), **AWQ | {"group_size": 16})
    with pytest.raises(
        ModelLoadError, match=r"'a\.b' has 32 inputs and 24 outputs, the model's 'a\.b\.weight' has 32 and 16"
    ):
        cuvil_onnx.quantize.from_safetensors(linear(), folder)
    tensors = awq_tensors("a.b", Layer(32, 16, 16)) | {"a.b.bias": np.ones(5, np.float32)}
    with pytest.raises(ModelLoadError, match=r"'a\.b\.bias' has the shape \[5\]"):
        cuvil_onnx.quantize.from_safetensors(
            linear(form="Gemm"), write_folder(tmp_path / "c", tensors, **AWQ | {"group_size": 16})
        )


def test_the_callers_model_stays_as_it_is(tmp_path):
    made = linear()
    before = made.SerializeToString()
    folder = write_folder(tmp_path / "c", awq_tensors("a.b", Layer(32, 16, 16)), **AWQ | {"group_size": 16})
    cuvil_onnx.quantize.from_safetensors(made, folder)
    assert made.SerializeToString() == before


def test_the_command_takes_weights(tmp_path, capsys):
    onnx.save(linear(), tmp_path / "m.onnx")
    layer = Layer(32, 16, 16)
    folder = write_folder(tmp_path / "c", awq_tensors("a.b", layer), **AWQ | {"group_size": 16})
    assert main(["quantize", str(tmp_path / "m.onnx"), "--weights", str(folder)]) == 0
    assert "1 weights as awq from" in capsys.readouterr().out
    x = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    result = run(onnx.load(tmp_path / "m.int4.onnx"), {"x": x})[0]
    np.testing.assert_allclose(result, x @ layer.weight(), rtol=1e-5, atol=1e-5)
    assert main(["quantize", str(tmp_path / "m.onnx"), "--weights", str(tmp_path / "none.gguf")]) == 2
