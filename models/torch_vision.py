"""torchvision's ViT-B/16, Swin-T, ConvNeXt-T, MobileNetV3-L and EfficientNet-B0 as torch exports them, random weights.

Input input float32 [N, 3, 224, 224], output logits [N, 1000]. Needs torch and torchvision.
"""

from __future__ import annotations

import functools
from typing import Any

from models import data, torch_export, zoo

SIZE = 224


def _make(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torchvision

    photographs = torch_export.tensor(data.images(2, SIZE, SIZE))
    return torch_export.settle(torchvision.models.get_model(name), photographs), (photographs,)


def _inputs(batch: int, seed: int) -> zoo.Feed:
    return {"input": data.images(batch, SIZE, SIZE, seed)}


def _model(name: str, torchvision_name: str, about: str, dynamo: bool = False) -> zoo.ZooModel:
    make = functools.partial(_make, torchvision_name)
    build = functools.partial(torch_export.build, make, ["input"], dynamo)
    exporter = "dynamo" if dynamo else "tracing"
    return zoo.ZooModel(name, f"{about}, random weights (torchvision, {exporter} exporter)", build, _inputs, (1, 8))


MODELS = (
    _model("torch_vit", "vit_b_16", "ViT-B/16"),
    _model("torch_swin", "swin_t", "Swin-T"),
    _model("torch_convnext", "convnext_tiny", "ConvNeXt-T"),
    _model("torch_mobilenet_v3", "mobilenet_v3_large", "MobileNetV3-L"),
    _model("torch_efficientnet", "efficientnet_b0", "EfficientNet-B0"),
    _model("dynamo_vit", "vit_b_16", "ViT-B/16", dynamo=True),
    _model("dynamo_swin", "swin_t", "Swin-T", dynamo=True),
    _model("dynamo_convnext", "convnext_tiny", "ConvNeXt-T", dynamo=True),
    _model("dynamo_mobilenet_v3", "mobilenet_v3_large", "MobileNetV3-L", dynamo=True),
)
