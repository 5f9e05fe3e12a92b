"""A denoising UNet of Stable Diffusion's shape as torch exports it, random weights, a third of its channels.

Residual blocks with GroupNorm, SiLU and the time's embedding; at each level but the lowest, transformers with
self-attention, cross-attention to a text and a GEGLU layer; nearest upsampling. Inputs sample float32 [N, 4, 64, 64],
timestep float32 [N], text float32 [N, 77, 256]; output [N, 4, 64, 64]. Needs torch.
Source: Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models".
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from models import torch_export, zoo

SIZE, TEXT, TEXT_WIDTH = 64, 77, 256
_CHANNELS, _HEADS, _GROUPS = (96, 192, 384), 4, 32


def _network() -> Any:
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, inputs: int, outputs: int, time: int) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.GroupNorm(_GROUPS, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, 1, 1))
            self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, outputs))
            self.second = nn.Sequential(nn.GroupNorm(_GROUPS, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, 1, 1))
            self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            y = self.first(x) + self.time(time)[:, :, None, None]
            return self.skip(x) + self.second(y)

    class Attention(nn.Module):
        def __init__(self, width: int, context: int) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(n, width, bias=False) for n in (width, context, context))
            self.out = nn.Linear(width, width)

        def forward(self, x: Any, context: Any) -> Any:
            q, k, v = (
                y.view(y.shape[0], -1, _HEADS, y.shape[-1] // _HEADS).transpose(1, 2)
                for y in (self.q(x), self.k(context), self.v(context))
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out(y.transpose(1, 2).reshape(x.shape[0], -1, x.shape[-1]))

    class Transformer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.enter = nn.GroupNorm(_GROUPS, width), nn.Conv2d(width, width, 1)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
            self.itself, self.text = Attention(width, width), Attention(width, TEXT_WIDTH)
            self.gate, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)
            self.leave = nn.Conv2d(width, width, 1)

        def forward(self, x: Any, text: Any) -> Any:
            y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
            rows = self.norms[0](y)
            y = y + self.itself(rows, rows)
            y = y + self.text(self.norms[1](y), text)
            value, gate = self.gate(self.norms[2](y)).chunk(2, -1)
            y = y + self.down(value * nn.functional.gelu(gate))
            return x + self.leave(y.transpose(1, 2).reshape(x.shape))

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            a, b, c = _CHANNELS
            time = 4 * a
            self.time = nn.Sequential(nn.Linear(a, time), nn.SiLU(), nn.Linear(time, time))
            self.enter = nn.Conv2d(4, a, 3, 1, 1)
            self.down = nn.ModuleList(Residual(i, o, time) for i, o in ((a, a), (a, b), (b, c)))
            self.attend = nn.ModuleList(Transformer(n) for n in (a, b))
            self.halve = nn.ModuleList(nn.Conv2d(n, n, 3, 2, 1) for n in (a, b))
            self.middle = nn.ModuleList((Residual(c, c, time), Transformer(c), Residual(c, c, time)))
            self.up = nn.ModuleList(Residual(i, o, time) for i, o in ((2 * c, c), (c + b, b), (b + a, a)))
            self.attend_up = nn.ModuleList(Transformer(n) for n in (b, a))
            self.grow = nn.ModuleList(nn.Conv2d(n, n, 3, 1, 1) for n in (c, b))
            self.leave = nn.Sequential(nn.GroupNorm(_GROUPS, a), nn.SiLU(), nn.Conv2d(a, 4, 3, 1, 1))

        def forward(self, sample: Any, timestep: Any, text: Any) -> Any:
            half = _CHANNELS[0] // 2
            rates = torch.exp(-math.log(10000) * torch.arange(half) / half)
            angles = timestep[:, None] * rates[None]
            time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
            x, kept = self.enter(sample), []
            for level in range(3):
                x = self.down[level](x, time)
                if level < 2:
                    x = self.attend[level](x, text)
                kept.append(x)
                if level < 2:
                    x = self.halve[level](x)
            x = self.middle[2](self.middle[1](self.middle[0](x, time), text), time)
            for level in range(3):
                x = self.up[level](torch.cat([x, kept.pop()], 1), time)
                if level:
                    x = self.attend_up[level - 1](x, text)
                if level < 2:
                    x = self.grow[level](nn.functional.interpolate(x, scale_factor=2.0))
            return self.leave(x)

    return Unet()


def _make() -> tuple[Any, tuple[Any, ...]]:
    return _network().eval(), tuple(torch_export.tensor(value) for value in inputs(2, 0).values())


def inputs(batch: int, seed: int) -> zoo.Feed:
    rng = np.random.default_rng(seed)
    return {
        "sample": rng.standard_normal((batch, 4, SIZE, SIZE), np.float32),
        "timestep": rng.integers(1, 1000, batch).astype(np.float32),
        "text": rng.standard_normal((batch, TEXT, TEXT_WIDTH), np.float32),
    }


_NAMES = ["sample", "timestep", "text"]
MODELS = tuple(
    zoo.ZooModel(
        f"{exporter}_unet",
        f"denoising UNet, random weights (torch, {exporter} exporter)",
        functools.partial(torch_export.build, _make, _NAMES, exporter == "dynamo"),
        inputs,
        batches=(1, 2),
    )
    for exporter in ("torch", "dynamo")
)
