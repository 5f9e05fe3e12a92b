"""A detector of YOLOv5's shape as torch exports it, random weights: CSP blocks with SiLU, SPPF, PAN neck, three heads.

Input images float32 [N, 3, 320, 320], output [N, 6300, 85]: boxes in pixels, objectness, classes. Needs torch.
Source: Redmon et al., "You Only Look Once"; Wang et al., "CSPNet"; Liu et al., "Path Aggregation Network".
"""

from __future__ import annotations

import functools
from typing import Any

from models import data, torch_export, zoo

SIZE, CLASSES, WIDTH = 320, 80, 16
_ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)


def _network() -> Any:
    import torch
    from torch import nn

    class Conv(nn.Module):
        def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
            super().__init__()
            self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
            self.norm = nn.BatchNorm2d(outputs)

        def forward(self, x: Any) -> Any:
            return nn.functional.silu(self.norm(self.conv(x)))

    class Bottleneck(nn.Module):
        def __init__(self, channels: int, add: bool) -> None:
            super().__init__()
            self.body, self.add = nn.Sequential(Conv(channels, channels), Conv(channels, channels, 3)), add

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.add else self.body(x)

    class Csp(nn.Module):
        def __init__(self, inputs: int, outputs: int, blocks: int, add: bool = True) -> None:
            super().__init__()
            half = outputs // 2
            self.left, self.right, self.out = Conv(inputs, half), Conv(inputs, half), Conv(outputs, outputs)
            self.body = nn.Sequential(*(Bottleneck(half, add) for _ in range(blocks)))

        def forward(self, x: Any) -> Any:
            return self.out(torch.cat([self.body(self.left(x)), self.right(x)], 1))

    class Pyramid(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.reduce, self.out = Conv(channels, channels // 2), Conv(2 * channels, channels)

        def forward(self, x: Any) -> Any:
            levels = [self.reduce(x)]
            for _ in range(3):
                levels.append(nn.functional.max_pool2d(levels[-1], 5, 1, 2))
            return self.out(torch.cat(levels, 1))

    class Head(nn.Module):
        def __init__(self, channels: int, stride: int, anchors: Any) -> None:
            super().__init__()
            self.stride, self.side = stride, SIZE // stride
            self.conv = nn.Conv2d(channels, 3 * (5 + CLASSES), 1)
            y, x = torch.meshgrid(torch.arange(self.side), torch.arange(self.side), indexing="ij")
            self.register_buffer("grid", torch.stack([x, y], -1).float()[None, None] - 0.5)
            self.register_buffer("anchors", torch.tensor(anchors).float()[None, :, None, None])

        def forward(self, x: Any) -> Any:
            y = self.conv(x).view(-1, 3, 5 + CLASSES, self.side, self.side).permute(0, 1, 3, 4, 2).sigmoid()
            centre, size, rest = y.split((2, 2, 1 + CLASSES), -1)
            boxes = torch.cat([(centre * 2 + self.grid) * self.stride, (size * 2) ** 2 * self.anchors, rest], -1)
            return boxes.reshape(-1, 3 * self.side * self.side, 5 + CLASSES)

    class Yolo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            a, b, c, d, e = (WIDTH * n for n in (1, 2, 4, 8, 16))
            self.stem = nn.Sequential(Conv(3, a, 6, 2), Conv(a, b, 3, 2), Csp(b, b, 1))
            self.stem[0].conv.padding = (2, 2)
            self.small = nn.Sequential(Conv(b, c, 3, 2), Csp(c, c, 2))
            self.middle = nn.Sequential(Conv(c, d, 3, 2), Csp(d, d, 3))
            self.large = nn.Sequential(Conv(d, e, 3, 2), Csp(e, e, 1), Pyramid(e))
            self.lateral = nn.ModuleList([Conv(e, d), Conv(d, c)])
            self.up = nn.ModuleList([Csp(2 * d, d, 1, False), Csp(2 * c, c, 1, False)])
            self.down = nn.ModuleList([Conv(c, c, 3, 2), Conv(d, d, 3, 2)])
            self.out = nn.ModuleList([Csp(2 * c, d, 1, False), Csp(2 * d, e, 1, False)])
            self.heads = nn.ModuleList(
                Head(n, 8 << i, anchors) for i, (n, anchors) in enumerate(zip((c, d, e), _ANCHORS, strict=True))
            )

        def forward(self, x: Any) -> Any:
            small = self.small(self.stem(x))
            middle = self.middle(small)
            top = self.lateral[0](self.large(middle))
            middle = self.up[0](torch.cat([nn.functional.interpolate(top, scale_factor=2.0), middle], 1))
            waist = self.lateral[1](middle)
            small = self.up[1](torch.cat([nn.functional.interpolate(waist, scale_factor=2.0), small], 1))
            middle = self.out[0](torch.cat([self.down[0](small), waist], 1))
            large = self.out[1](torch.cat([self.down[1](middle), top], 1))
            levels = (small, middle, large)
            return torch.cat([head(level) for head, level in zip(self.heads, levels, strict=True)], 1)

    return Yolo()


def _make() -> tuple[Any, tuple[Any, ...]]:
    pictures = torch_export.tensor(inputs(2, 0)["images"])
    network = torch_export.settle(_network(), pictures)
    for head in network.heads:  # untrained logits are wide; a trained detector's are not, and wide ones hide rounding
        head.conv.weight.mul_(0.1)
    return network, (pictures,)


def inputs(batch: int, seed: int) -> zoo.Feed:
    return {"images": data.images(batch, SIZE, SIZE, seed)}


build = functools.partial(torch_export.build, _make, ["images"])
MODEL = zoo.ZooModel("torch_yolo", "detector of YOLOv5's shape, random weights (torch)", build, inputs, batches=(1, 8))
