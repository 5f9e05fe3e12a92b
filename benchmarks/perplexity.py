"""Perplexity of a language model in ONNX on texts that the package gensim ships (news and Wikipedia)."""

from __future__ import annotations

import bz2
import html
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np

from models import llama, smollm2, zoo
from models.weights import Array

WINDOW = 512
WINDOWS = 4
"""4 windows of 512 tokens, each of which predicts 511: 2,044 tokens."""

WIKI = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


def _file(name: str) -> Path:
    return zoo.file_of_package("gensim", f"test/test_data/{name}")


def news() -> list[str]:
    """300 short news documents in English (the Lee background corpus)."""
    return _file("lee_background.cor").read_text(encoding="utf-8").splitlines()


def wiki(shortest: int = 2000) -> list[str]:
    """Wikipedia articles of at least so many characters, markup removed, paragraphs only."""
    filter_wiki = importlib.import_module("gensim.corpora.wikicorpus").filter_wiki
    dump = bz2.decompress(_file(WIKI).read_bytes()).decode("utf-8")
    found = []
    for match in re.finditer(r"<text[^>]*>(.*?)</text>", dump, re.DOTALL):
        text = filter_wiki(html.unescape(match[1]))
        text = "\n".join(line for line in text.splitlines() if len(line) > 80)
        if len(text) >= shortest:
            found.append(text)
    return found


def articles() -> list[str]:
    """Two articles, on New York and Berlin, that are not among those of :func:`wiki`."""
    return [_file(f"para2para_text{i}.txt").read_text(encoding="utf-8") for i in (1, 2)]


def tokens(texts: list[str], count: int) -> Array:
    """The first ``count`` tokens of the texts, int64."""
    ids: Array = np.array(smollm2.tokenizer().encode("\n".join(texts)).ids[:count], np.int64)
    return ids


def perplexity(path: Path, ids: Array) -> float:
    """exp of the mean cross entropy of each window's next tokens.

    Args:
        path: a model with the inputs of models/smollm2.py; 4-bit products compute in float32.
        ids: int64 [windows * WINDOW].
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    losses = [_loss(session, window) for window in ids.reshape(-1, WINDOW)]
    return float(np.exp(np.mean(losses)))


def _loss(session: Any, ids: Array) -> float:
    (logits,) = session.run(["logits"], llama.feed(smollm2.CONFIG, ids[None]))
    scores = logits[0, :-1].astype(np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    normal = np.log(np.exp(scores).sum(axis=-1))
    return float((normal - scores[np.arange(len(ids) - 1), ids[1:]]).mean())
