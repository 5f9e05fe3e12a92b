# mypy: allow-subclassing-any
"""Networks that no package ships, for :mod:`benchmarks.peer_exports`; their weights are random."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):
    """A bottleneck of ResNet."""

    def __init__(self, wide: int, narrow: int, out: int, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b, size, step in ((wide, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, out, 1, 1)):
            layers += [nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.main = nn.Sequential(*layers[:-1])
        self.side = (
            nn.Identity() if wide == out else nn.Sequential(nn.Conv2d(wide, out, 1, stride), nn.BatchNorm2d(out))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.side(x))


class Dense(nn.Module):
    """A block of DenseNet: each layer reads all before it."""

    def __init__(self, wide: int, count: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for i in range(count):
            x = wide + i * growth
            first = [nn.BatchNorm2d(x), nn.ReLU(), nn.Conv2d(x, 4 * growth, 1, bias=False)]
            second = [nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)]
            self.layers.append(nn.Sequential(*first, *second))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


class Step(nn.Module):
    """A residual block of a diffusion UNet: GroupNorm, SiLU, convolution, the time added."""

    def __init__(self, wide: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, wide), nn.Conv2d(wide, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, out), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.side: nn.Module = nn.Identity() if wide == out else nn.Conv2d(wide, out, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(nn.functional.silu(t))[:, :, None, None]
        return self.side(x) + self.conv2(nn.functional.silu(self.norm2(y)))


class Look(nn.Module):
    """Attention over the pixels."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, wide)
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        rows = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (p.view(b, h * w, 4, c // 4).transpose(1, 2) for p in self.qkv(rows).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        return x + self.out(y).transpose(1, 2).reshape(b, c, h, w)


class UNet(nn.Module):
    """Down twice and up twice."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.first = nn.Conv2d(4, 32, 3, padding=1)
        self.down = nn.ModuleList([Step(32, 32, 64), Step(32, 64, 64)])
        self.shrink = nn.ModuleList([nn.Conv2d(32, 32, 3, 2, 1), nn.Conv2d(64, 64, 3, 2, 1)])
        self.middle, self.look = nn.ModuleList([Step(64, 64, 64), Step(64, 64, 64)]), Look(64)
        self.up = nn.ModuleList([Step(128, 64, 64), Step(96, 32, 64)])
        self.grow = nn.ModuleList([nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)])
        self.last = nn.Sequential(nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 4, 3, padding=1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angles = t[:, None] * torch.exp(torch.arange(16, device=t.device) * -0.5)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x, kept = self.first(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, time)
            kept.append(x)
            x = shrink(x)
        x = self.middle[1](self.look(self.middle[0](x, time)), time)
        for block, grow in zip(self.up, self.grow, strict=True):
            x = grow(nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.last(x)


class Speech(nn.Module):
    """Two bidirectional LSTMs and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 48, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.head(torch.relu(self.lstm(x)[0])), -1)


class Control(nn.Module):
    """Layers that are chosen by the input, inside of one another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def sigmoid(y: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(self.third(y)) * y * 1.0

        def tanh(y: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.second(y)).transpose(0, 1).transpose(0, 1) * 2.0

        def relu(y: torch.Tensor) -> torch.Tensor:
            return torch.cond(y.mean() > 0.1, sigmoid, tanh, (torch.relu(self.first(y)) + y,))

        return torch.cond(x.sum() > 0, relu, tanh, (x,))
