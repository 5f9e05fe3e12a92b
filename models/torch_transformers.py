"""Encoders of transformers as torch exports them, random weights: Whisper's, Wav2Vec2, T5's. Needs both packages.

``torch_whisper`` takes log-mel features float32 [N, 80, 3000], ``torch_wav2vec2`` sound float32 [N, 16000],
``torch_t5`` input_ids and attention_mask int64 [N, 64]; each gives its last hidden state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from models import data, torch_export, zoo

SOUND, FRAMES, TOKENS = 16000, 3000, 64


def _last_hidden_state(model: Any, names: tuple[str, ...]) -> Any:
    """The model as a module of tensors in, one tensor out: an export knows no configurations and dictionaries."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            return self.model(**dict(zip(names, tensors, strict=True)), return_dict=True).last_hidden_state

    return Module().eval()


def _whisper() -> tuple[Any, tuple[Any, ...]]:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048)
    module = _last_hidden_state(WhisperEncoder(config), ("input_features",))
    return module, (torch_export.tensor(_features(1, 0)["input_features"]),)


def _wav2vec2() -> tuple[Any, tuple[Any, ...]]:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    module = _last_hidden_state(Wav2Vec2Model(Wav2Vec2Config(num_hidden_layers=6)), ("input_values",))
    return module, (torch_export.tensor(_sound(2, 0)["input_values"]),)


def _t5() -> tuple[Any, tuple[Any, ...]]:
    from transformers import T5Config, T5EncoderModel

    names = ("input_ids", "attention_mask")
    module = _last_hidden_state(T5EncoderModel(T5Config()), names)  # T5-small's sizes are the defaults
    return module, tuple(torch_export.tensor(_tokens(2, 0)[name]) for name in names)


def _features(batch: int, seed: int) -> zoo.Feed:
    """Logarithms of the energy in 80 bands, every 10 ms: the bands are even instead of mel's, the range is the same."""
    sound = data.speech(batch, 160 * FRAMES + 240, seed)
    windows = np.lib.stride_tricks.sliding_window_view(sound, 400, axis=1)[:, ::160]
    power = np.abs(np.fft.rfft(windows * np.hanning(400).astype(np.float32), axis=2)[:, :, :160]) ** 2
    bands = np.log10(power.reshape(batch, -1, 80, 2).mean(axis=3) + 1e-10).transpose(0, 2, 1)[:, :, :FRAMES]
    bands = np.maximum(bands, bands.max() - 8) / 4 + 1
    return {"input_features": np.ascontiguousarray(bands, dtype=np.float32)}


def _sound(batch: int, seed: int) -> zoo.Feed:
    sound = data.speech(batch, SOUND, seed)
    return {"input_values": (sound - sound.mean()) / sound.std()}


def _tokens(batch: int, seed: int) -> zoo.Feed:
    ids, mask = data.token_ids(batch, TOKENS, seed)
    return {"input_ids": ids, "attention_mask": mask}


def _model(
    name: str,
    about: str,
    make: Callable[[], tuple[Any, tuple[Any, ...]]],
    inputs: Callable[[int, int], zoo.Feed],
    batches: tuple[int, ...],
) -> zoo.ZooModel:
    build = functools.partial(torch_export.build, make, list(inputs(1, 0)))
    return zoo.ZooModel(name, f"{about}, random weights (transformers)", build, inputs, batches)


MODELS = (
    _model("torch_whisper", "Whisper-base encoder", _whisper, _features, (1, 4)),
    _model("torch_wav2vec2", "Wav2Vec2-base, 6 layers", _wav2vec2, _sound, (1, 4)),
    _model("torch_t5", "T5-small encoder", _t5, _tokens, (1, 8)),
)
