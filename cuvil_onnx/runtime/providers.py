"""What a session's ``providers`` argument becomes, and the one warning when the GPU cannot be used."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuvil_onnx.runtime.registration import EP_NAME, unavailable_reason

CPU = "CPUExecutionProvider"
ProviderArgument = Sequence[str | tuple[str, dict[Any, Any]]] | None


class CuvilFallbackWarning(UserWarning):
    """A session that was to run on CuvilExecutionProvider runs on other providers."""


@dataclass(frozen=True)
class Providers:
    """Provider names with their options. ``fallback`` is why ours is missing although it was wanted."""

    names: list[str]
    options: list[dict[str, str]]
    fallback: str | None

    @property
    def ours(self) -> dict[str, str] | None:
        """The options of CuvilExecutionProvider; None when the session does not use it."""
        return self.options[self.names.index(EP_NAME)] if EP_NAME in self.names else None

    @property
    def alone(self) -> bool:
        """Whether no other GPU provider takes part: such a session cannot be captured."""
        return set(self.names) <= {EP_NAME, CPU}


def resolve(providers: ProviderArgument, provider_options: Sequence[dict[Any, Any]] | None) -> Providers:
    """Normalises ONNX Runtime's two arguments; None stands for ours, then the CPU.

    Raises ValueError where ONNX Runtime would: options of another length than names, entries of another form.
    """
    entries = [EP_NAME, CPU] if providers is None else list(providers)
    if provider_options is not None and len(provider_options) != len(entries):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    names: list[str] = []
    options: list[dict[str, str]] = []
    for i, entry in enumerate(entries):
        name, given = entry if isinstance(entry, tuple) else (entry, (provider_options or [{}] * (i + 1))[i])
        if not isinstance(name, str) or not isinstance(given, dict):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        names.append(name)
        options.append({str(key): str(value) for key, value in given.items()})
    reason = unavailable_reason() if EP_NAME in names else None
    if reason is None:
        return Providers(names, options, None)
    kept = [(n, o) for n, o in zip(names, options, strict=True) if n != EP_NAME] or [(CPU, {})]
    return Providers([n for n, _ in kept], [o for _, o in kept], reason)


def warn_fallback(providers: Providers, stacklevel: int) -> None:
    """The one warning of a session that wanted the GPU and does not get it."""
    if providers.fallback is not None:
        warnings.warn(
            f"{EP_NAME} is not available, running on {', '.join(providers.names)}: {providers.fallback}",
            CuvilFallbackWarning,
            stacklevel=stacklevel + 1,
        )
