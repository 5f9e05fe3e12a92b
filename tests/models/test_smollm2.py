"""SmolLM2 as built from its GGUF: it knows what it should, with and without its cache. Skipped without the package."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import cuvil_onnx
from models import llama, smollm2, zoo


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    try:
        model = smollm2.build()
    except zoo.MissingModelError as missing:
        pytest.skip(str(missing))
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def tokenizer():
    try:
        return smollm2.tokenizer()
    except zoo.MissingModelError as missing:
        pytest.skip(str(missing))


def test_text_survives_the_tokenizer(tokenizer):
    text = "Don't  count 1984 naïve 漢字\n\n\tif x == 3:\n"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    tokens = [tokenizer.id_to_token(i) for i in ids]
    assert [t for t in tokens if t.isdigit()] == ["1", "9", "8", "4", "3"]


def test_special_tokens_are_one_each(tokenizer):
    ids = tokenizer.encode("<|im_start|>user<|im_end|>").ids
    assert ids[0] == 1 and ids[-1] == smollm2.END and len(ids) == 3


def test_it_knows_the_capital_of_france(session, tokenizer):
    assert smollm2.generate(session, "The capital of France is", 3).startswith(" Paris")


def test_text_is_likely(session, tokenizer):
    """Uniform guessing costs log(49152) = 10.8 a token, a model of this size 2 to 4 on such a sentence."""
    ids = np.array([tokenizer.encode("Paris is the capital and the largest city of France.").ids])
    logits = session.run(["logits"], llama.feed(smollm2.CONFIG, ids))[0][0].astype(np.float64)
    loss = np.log(np.exp(logits).sum(-1))[:-1] - logits[np.arange(ids.shape[1] - 1), ids[0, 1:]]
    assert loss.mean() < 4


def test_a_cache_and_padding_change_nothing(session, tokenizer):
    ids = smollm2.token_ids(["The ferry to the island leaves twice a day in winter."], 12)
    names = [output.name for output in session.get_outputs()]
    whole = dict(zip(names, session.run(names, llama.feed(smollm2.CONFIG, ids)), strict=True))
    # The first eight tokens behind three of padding, then the rest.
    first = llama.feed(smollm2.CONFIG, np.concatenate([np.full((1, 3), smollm2.END), ids[:, :8]], 1))
    first["attention_mask"][:, :3] = 0
    first["position_ids"] = np.maximum(first["position_ids"] - 3, 0)
    half = dict(zip(names, session.run(names, first), strict=True))
    rest = llama.feed(smollm2.CONFIG, ids[:, 8:], past=11)
    rest["attention_mask"][:, :3] = 0
    rest["position_ids"] -= 3
    rest |= {n.replace("present", "past_key_values"): v for n, v in half.items() if n != "logits"}
    split = dict(zip(names, session.run(names, rest), strict=True))
    assert split["present.0.key"].shape == (1, 3, 15, 64)
    # float32 sums in another order through 30 layers, of logits up to 30.
    np.testing.assert_allclose(split["logits"], whole["logits"][:, 8:], atol=2e-3)


def test_its_quantized_weights_come_back_without_loss(session, tokenizer):
    """As codes and scales in ONNX the weights are what the GGUF holds, so logits differ by the order of sums alone."""
    result = cuvil_onnx.quantize.from_gguf(smollm2.build(), smollm2.gguf_path())
    summary = result.report.quantization
    assert len(summary.layers) == 211 and {layer.relative_error for layer in summary.layers} == {0.0}
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # activations stay float32
    feed = smollm2.inputs(1, 0)
    want = session.run(["logits"], feed)[0]
    optimized = cuvil_onnx.optimize(result.model, verify=False)
    # A layer: one product for queries, keys and values, one for gate and up, two more; the head.
    kinds = optimized.report.after.ops
    assert kinds["cuvil::MatMulInt4"] == 4 * 30 + 1
    assert kinds["cuvil::Attention"] == kinds["cuvil::GatedUnit"] == 30
    for model in (result.model, optimized.model):
        data = model.SerializeToString()
        quantized = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        # Of logits up to 30, through 30 layers; 3e-4 was seen.
        np.testing.assert_allclose(quantized.run(["logits"], feed)[0], want, atol=2e-3)
