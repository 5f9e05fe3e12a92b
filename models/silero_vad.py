"""Silero's voice activity detector, from the silero-vad wheel (MIT): six exports of a small convolution + LSTM.

``silero_vad`` chooses its rate by nested If nodes, which hold 684 of its 689 nodes. A chunk is 512 samples of 16 kHz
behind 64 of the chunk before; the state [2, N, 128] is that of the LSTM.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from models import data, zoo

CHUNK = 64 + 512


def _build(file: str) -> Callable[[], onnx.ModelProto]:
    return lambda: onnx.load(zoo.file_of_package("silero-vad", f"data/{file}.onnx"))


def _chunk(batch: int, seed: int) -> zoo.Feed:
    rng = np.random.default_rng(seed)  # a state as the LSTM leaves it: within -1..1
    state = np.tanh(rng.standard_normal((2, batch, 128), np.float32))
    return {"input": data.speech(batch, CHUNK, seed), "state": state}


def _chunk_with_rate(batch: int, seed: int) -> zoo.Feed:
    return {**_chunk(batch, seed), "sr": np.array(16000, np.int64)}


def _sequence(batch: int, seed: int) -> zoo.Feed:
    """``batch`` chunks of one recording."""
    zero = np.zeros((1, 1, 128), np.float32)
    return {"input": data.speech(batch, CHUNK, seed), "h": zero, "c": zero}


def _model(file: str, about: str, inputs: Callable[[int, int], zoo.Feed], batches: tuple[int, ...]) -> zoo.ZooModel:
    return zoo.ZooModel(
        file, f"voice activity, {about} (silero-vad)", _build(file), inputs, batches, package="silero-vad"
    )


MODELS = (
    _model("silero_vad", "nested If", _chunk_with_rate, (1, 4)),
    _model("silero_vad_op18_ifless", "masked rates", _chunk_with_rate, (1, 4)),
    _model("silero_vad_16k_op15", "16 kHz", _chunk_with_rate, (1, 4)),
    _model("silero_vad_half", "16-bit weights", _chunk, (1, 4)),
    _model("silero_vad_openvino_16k", "fixed shapes", _chunk, (1,)),
    _model("silero_vad_16k_sequence", "whole recordings", _sequence, (4, 32)),
)
