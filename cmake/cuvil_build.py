"""PEP 517 backend: scikit-build-core, plus the build requirements that only compiling the execution provider has."""

from __future__ import annotations

from typing import Any

from cuvil_requirements import build_requirements, wants_ep
from scikit_build_core import build as _backend


def _settings(config_settings: dict[str, Any] | None) -> dict[str, Any]:
    settings = dict(config_settings or {})
    settings.setdefault("cmake.define.CUVIL_BUILD_EP", "ON" if wants_ep() else "OFF")
    return settings


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*_backend.get_requires_for_build_wheel(config_settings), *build_requirements()]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*_backend.get_requires_for_build_editable(config_settings), *build_requirements()]


def get_requires_for_build_sdist(config_settings: dict[str, Any] | None = None) -> list[str]:
    return list(_backend.get_requires_for_build_sdist(config_settings))


def build_wheel(directory: str, config_settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    return str(_backend.build_wheel(directory, _settings(config_settings), metadata))


def build_editable(directory: str, config_settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    return str(_backend.build_editable(directory, _settings(config_settings), metadata))


def build_sdist(directory: str, config_settings: dict[str, Any] | None = None) -> str:
    return str(_backend.build_sdist(directory, config_settings))


def prepare_metadata_for_build_wheel(directory: str, config_settings: dict[str, Any] | None = None) -> str:
    return str(_backend.prepare_metadata_for_build_wheel(directory, _settings(config_settings)))


def prepare_metadata_for_build_editable(directory: str, config_settings: dict[str, Any] | None = None) -> str:
    return str(_backend.prepare_metadata_for_build_editable(directory, _settings(config_settings)))
