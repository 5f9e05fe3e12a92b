"""Samples from whatever the user has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.calibrate_data import MAX_SAMPLES, Samples, Texts, as_calibration, language_feed
from tests.quantize.quantize_testing import graph, rows


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def inputs(text: str) -> list[ir.Value]:
    return list(ir.from_proto(graph(f"({text}) => (int64[n] y) {{ y = Shape(input_ids) }}", opset=17)).graph.inputs)


DECODER = (
    "int64[batch,sequence] input_ids, int64[batch,total] attention_mask, int64[batch,sequence] position_ids, "
    "float[batch,3,past,8] past_key_values_0, int32[batch,sequence] token_type_ids"
)


def test_windows_are_drawn_by_the_seed() -> None:
    texts = Texts([" ".join(map(str, range(300))), "xyz" * 100], letters, samples=5, length=16)
    one, two, other = texts.windows(3), texts.windows(3), texts.windows(4)
    assert len(one) == 5 and all(w.shape == (1, 16) and w.dtype == np.int64 for w in one)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert len({w.tobytes() for w in Texts(["".join(map(chr, range(256)))], letters, 99, 16).windows(0)}) == 16


def test_short_texts_give_one_short_window() -> None:
    (window,) = Texts(["abc"], letters, separator=0).windows(0)
    np.testing.assert_array_equal(window, [[97, 98, 99, 0]])
    with pytest.raises(OptionError, match="no tokens"):
        Texts(["", ""], letters).windows(0)


def test_tokenizers_of_several_kinds() -> None:
    for tokenizer in (
        letters,
        SimpleNamespace(encode=letters),
        SimpleNamespace(encode=lambda text: SimpleNamespace(ids=letters(text))),
    ):
        (window,) = Texts(["ab"], tokenizer).windows(0)
        np.testing.assert_array_equal(window, [[97, 98]])
    with pytest.raises(OptionError, match="no encode"):
        Texts(["ab"], 3).windows(0)


def test_inputs_of_a_decoder() -> None:
    feed = language_feed(inputs(DECODER), np.array([[5, 6, 7]]))
    np.testing.assert_array_equal(feed["input_ids"], [[5, 6, 7]])
    np.testing.assert_array_equal(feed["attention_mask"], [[1, 1, 1]])
    np.testing.assert_array_equal(feed["position_ids"], [[0, 1, 2]])
    np.testing.assert_array_equal(feed["token_type_ids"], [[0, 0, 0]])
    assert feed["token_type_ids"].dtype == np.int32
    assert feed["past_key_values_0"].shape == (1, 3, 0, 8)


def test_an_input_that_text_says_nothing_of() -> None:
    with pytest.raises(OptionError, match="'pixels'"):
        language_feed(inputs("int64[n] input_ids, float[n] pixels"), np.array([[1]]))


def test_samples_of_all_kinds(tmp_path: Path) -> None:
    feed = {"x": rows(2, 3)}
    assert len(as_calibration(feed).for_model(None)) == 1  # type: ignore[arg-type]
    assert len(as_calibration([feed, feed]).feeds) == 2
    assert len(as_calibration(feed for _ in range(10**6)).feeds) == MAX_SAMPLES
    samples = Samples([feed])
    assert as_calibration(samples) is samples
    for name in ("b.npz", "a.npz"):
        np.savez(tmp_path / name, x=np.full(2, ord(name[0])))
    found = as_calibration(tmp_path).feeds
    assert [int(f["x"][0]) for f in found] == [ord("a"), ord("b")]
    np.testing.assert_array_equal(as_calibration(tmp_path / "b.npz").feeds[0]["x"], [98, 98])


def test_texts_in_files(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"the": 0, "cat": 1, "sat": 2, "?": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "one.txt").write_text("the cat")
    (tmp_path / "two.txt").write_text("sat the dog")
    with pytest.raises(OptionError, match=r"tokenizer\.json beside"):
        as_calibration(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = ir.from_proto(graph("(int64[b,s] input_ids) => (int64[n] y) { y = Shape(input_ids) }", opset=17))
    (feed,) = as_calibration(str(tmp_path)).for_model(model)
    np.testing.assert_array_equal(feed["input_ids"], [[0, 1, 2, 0, 3]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "neither inputs"),
        ([], "no samples"),
        (["a text"], "need a tokenizer"),
        ([rows(2, 2)], "sample 0 is a ndarray"),
        ("/no/such/file", "no such file"),
    ],
)
def test_other_things_are_refused(data: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        as_calibration(data)


def test_files_that_are_no_samples(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(OptionError, match=r"neither .* files nor texts"):
        as_calibration(tmp_path)
    (tmp_path / "x.npz").write_bytes(b"not a zip file")
    with pytest.raises(OptionError, match=r"cannot be read as \.npz"):
        as_calibration(tmp_path / "x.npz")
