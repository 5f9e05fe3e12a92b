# mypy: allow-subclassing-any
"""Exports of torch with random weights, on which ``optimizer_peers`` compares optimizers.

python -m benchmarks.peer_exports FOLDER [NAME ...] [--dialects legacy17 dynamo18 dynamo23 dynamo24]

Needs torch, transformers and onnxscript. Writes FOLDER/<name>_<dialect>.onnx; the batch and the lengths are free.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.peer_modules import Control, Dense, Residual, Speech, UNet

DIALECTS = ("legacy17", "dynamo18", "dynamo23", "dynamo24")
VOCABULARY = 512
HEADS, GROUPS, LAYERS, WIDTH = 8, 2, 4, 256


@dataclass(frozen=True)
class Exportable:
    """A model with inputs.

    Attributes:
        inputs: by name, in the order of the arguments.
        free: which axes of an input are free, and their names.
        outputs: names, in order.
    """

    module: nn.Module
    inputs: Mapping[str, torch.Tensor]
    free: Mapping[str, Mapping[int, str]]
    outputs: tuple[str, ...] = ("y",)


class _Named(nn.Module):
    """A model of transformers that is called by name and gives one tensor."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], **more: Any) -> None:
        super().__init__()
        self.model, self.names, self.more = model, names, more

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        result = self.model(**dict(zip(self.names, values, strict=True)), **self.more)
        return result.logits if hasattr(result, "logits") else result.last_hidden_state


class _Cached(nn.Module):
    """A decoder whose keys and values come in and go out, a pair a layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        result = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        present = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return (result.logits, *present)


def _text(model: nn.Module, **more: Any) -> Exportable:
    ids = torch.randint(0, VOCABULARY, (2, 9))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    free = {key: {0: "batch", 1: "seq"} for key in inputs}
    return Exportable(_Named(model, tuple(inputs), **more), inputs, free)


def bert() -> Exportable:
    """BERT-base: 12 layers of 768."""
    return _text(transformers.BertModel(transformers.BertConfig()))


def gpt2() -> Exportable:
    """GPT-2 of 4 layers without a cache."""
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
    return _text(transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCABULARY, **sizes)), use_cache=False)


def t5_encoder() -> Exportable:
    """T5's encoder: relative bias by head."""
    sizes = {"d_model": WIDTH, "num_layers": LAYERS, "num_heads": HEADS, "d_kv": WIDTH // HEADS, "d_ff": 512}
    config = transformers.T5Config(vocab_size=VOCABULARY, feed_forward_proj="gated-gelu", **sizes)
    return _text(transformers.T5EncoderModel(config))


def t5_decoder() -> Exportable:
    """T5 with its decoder: relative bias, causal, and attention across."""
    sizes = {"d_model": WIDTH, "num_layers": 2, "num_decoder_layers": 2, "num_heads": HEADS, "d_kv": 32, "d_ff": 512}
    config = transformers.T5Config(vocab_size=VOCABULARY, feed_forward_proj="gated-gelu", **sizes)
    ids = torch.randint(1, VOCABULARY, (2, 9))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :5].contiguous()}
    free = {key: {0: "batch", 1: "seq"} for key in inputs} | {"decoder_input_ids": {0: "batch", 1: "target"}}
    model = transformers.T5ForConditionalGeneration(config)
    return Exportable(_Named(model, tuple(inputs), use_cache=False), inputs, free)


def vit() -> Exportable:
    """ViT-base's 12 layers, narrower."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": 512, "num_attention_heads": HEADS}
    config = transformers.ViTConfig(image_size=64, patch_size=16, num_hidden_layers=12, **sizes)
    return _image(transformers.ViTModel(config), torch.randn(2, 3, 64, 64))


def swin() -> Exportable:
    """Swin: windows, shifted, with a relative bias."""
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return _image(transformers.SwinModel(config), torch.randn(2, 3, 32, 32))


def _image(model: nn.Module, pixels: torch.Tensor) -> Exportable:
    return Exportable(_Named(model, ("pixel_values",)), {"pixel_values": pixels}, {"pixel_values": {0: "batch"}})


def _llama() -> nn.Module:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "intermediate_size": 512}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "max_position_embeddings": 128}
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCABULARY, **sizes, **heads))
    return model


def llama() -> Exportable:
    """Llama of 4 layers, 8 heads of queries and 2 of keys, without a cache."""
    return _text(_llama(), use_cache=False)


def llama_cache() -> Exportable:
    """The same with the cache as inputs and outputs."""
    batch, seq, past = 2, 3, 5
    inputs = {
        "input_ids": torch.randint(0, VOCABULARY, (batch, seq)),
        "attention_mask": torch.ones(batch, past + seq, dtype=torch.int64),
        "position_ids": torch.arange(past, past + seq).repeat(batch, 1),
    }
    free: dict[str, dict[int, str]] = {
        "input_ids": {0: "batch", 1: "seq"},
        "attention_mask": {0: "batch", 1: "total"},
        "position_ids": {0: "batch", 1: "seq"},
    }
    outputs = ["y"]
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            name = f"past_{kind}_{layer}"
            inputs[name] = torch.randn(batch, GROUPS, past, WIDTH // HEADS)
            free[name] = {0: "batch", 2: "past"}
            outputs.append(f"present_{kind}_{layer}")
    return Exportable(_Cached(_llama()), inputs, free, tuple(outputs))


def _whisper() -> Any:
    sizes = {"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512}
    heads = {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return transformers.WhisperModel(
        transformers.WhisperConfig(
            vocab_size=VOCABULARY, max_source_positions=50, num_mel_bins=16, **sizes, **heads, **tokens
        )
    )


def whisper_encoder() -> Exportable:
    """Convolutions, then layers of attention."""
    features = {"input_features": torch.randn(2, 16, 100)}
    return Exportable(_Named(_whisper().encoder, ("input_features",)), features, {"input_features": {0: "batch"}})


def whisper_decoder() -> Exportable:
    """Causal attention and attention to the encoder's states."""
    inputs = {"input_ids": torch.randint(0, VOCABULARY, (2, 7)), "encoder_hidden_states": torch.randn(2, 50, WIDTH)}
    free = {"input_ids": {0: "batch", 1: "seq"}, "encoder_hidden_states": {0: "batch"}}
    return Exportable(_Named(_whisper().decoder, tuple(inputs), use_cache=False), inputs, free)


def resnet50() -> Exportable:
    """ResNet-50's layers, a quarter as wide."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    wide = 16
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            out = 64 << stage
            layers.append(Residual(wide, out // 4, out, 2 if stage and not block else 1))
            wide = out
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 100)]
    return _pixels(nn.Sequential(*layers), 64)


def densenet121() -> Exportable:
    """DenseNet-121's layers, a quarter as wide."""
    growth, wide = 8, 16
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for stage, count in enumerate((6, 12, 24, 16)):
        layers.append(Dense(wide, count, growth))
        wide += count * growth
        if stage < 3:
            layers += [nn.BatchNorm2d(wide), nn.ReLU(), nn.Conv2d(wide, wide // 2, 1, bias=False), nn.AvgPool2d(2, 2)]
            wide //= 2
    layers += [nn.BatchNorm2d(wide), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 100)]
    return _pixels(nn.Sequential(*layers), 64)


def unet() -> Exportable:
    """A UNet as diffusion models have them."""
    inputs = {"x": torch.randn(2, 4, 32, 32), "t": torch.rand(2) * 100}
    return Exportable(UNet(), inputs, {key: {0: "batch"} for key in inputs})


def lstm() -> Exportable:
    """Recurrence."""
    return Exportable(Speech(), {"x": torch.randn(2, 9, 32)}, {"x": {0: "batch"}})


def control() -> Exportable:
    """An If in an If."""
    return Exportable(Control(), {"x": torch.randn(4, 32)}, {"x": {0: "batch"}})


def _pixels(model: nn.Module, size: int) -> Exportable:
    return Exportable(model, {"x": torch.randn(2, 3, size, size)}, {"x": {0: "batch"}})


MODELS: dict[str, Callable[[], Exportable]] = {
    f.__name__: f
    for f in (
        resnet50,
        bert,
        vit,
        gpt2,
        llama,
        llama_cache,
        t5_encoder,
        t5_decoder,
        whisper_encoder,
        whisper_decoder,
        swin,
        unet,
        densenet121,
        lstm,
        control,
    )
}


def build(name: str) -> Exportable:
    """The model with weights large enough that a wrong attention shows in its results."""
    torch.manual_seed(0)
    made = MODELS[name]()
    with torch.no_grad():
        for key, buffer in made.module.named_buffers():
            if key.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
            elif key.endswith("running_mean"):
                buffer.normal_(0, 0.1)
        for parameter in made.module.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif parameter.ndim == 2:
                parameter.mul_(2)
    made.module.eval()
    return made


def export(name: str, dialect: str, path: Path) -> None:
    """Writes one model in the way of one exporter: "legacy17" or "dynamo" and an opset."""
    made = build(name)
    arguments = tuple(made.inputs.values())
    opset = int(dialect[6:])
    names: dict[str, Any] = {"input_names": list(made.inputs), "output_names": list(made.outputs)}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dialect.startswith("legacy"):
            axes = {key: dict(value) for key, value in made.free.items()}
            keep = torch.onnx.TrainingMode.PRESERVE if name in ("resnet50", "densenet121") else None
            more = {} if keep is None else {"training": keep, "do_constant_folding": False}
            torch.onnx.export(
                made.module, arguments, str(path), dynamic_axes=axes, opset_version=opset, dynamo=False, **names, **more
            )
            return
        dims = {axis for axes in made.free.values() for axis in axes.values()}
        known = dict.fromkeys(dims, torch.export.Dim.DYNAMIC)
        shapes = [{axis: known[symbol] for axis, symbol in made.free[key].items()} for key in made.inputs]
        spec: Any = tuple(shapes)
        if isinstance(made.module, _Named):
            spec = (tuple(shapes),)
        elif isinstance(made.module, _Cached):
            spec = (*shapes[:3], tuple(shapes[3:]))
        torch.onnx.export(
            made.module,
            arguments,
            str(path),
            dynamic_shapes=spec,
            opset_version=opset,
            dynamo=True,
            external_data=False,
            verbose=False,
            **names,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}; all when left out")
    parser.add_argument("--dialects", nargs="+", default=["dynamo18"], choices=DIALECTS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in args.names or MODELS:
        for dialect in args.dialects:
            path = args.folder / f"{name}_{dialect}.onnx"
            try:
                export(name, dialect, path)
                print(f"{path}", flush=True)
            except Exception as error:
                failed += 1
                print(
                    f"{path}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr, flush=True
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
