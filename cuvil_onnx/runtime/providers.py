"""What a session's ``providers`` argument becomes, and the one warning when the GPU cannot be used."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime

from cuvil_onnx.runtime.registration import EP_NAME, unavailable_reason

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"  # of onnxruntime-gpu
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
    def cuda(self) -> dict[str, str] | None:
        """The options of onnxruntime-gpu's own CUDA provider; None when the session does not use it."""
        return self.options[self.names.index(CUDA)] if CUDA in self.names else None

    @property
    def foreign(self) -> list[str]:
        """Providers that share no stream with ours."""
        return [name for name in self.names if name not in (EP_NAME, CUDA, CPU)]

    @property
    def ours_first(self) -> bool:
        """Whether memory of the GPU is ours in a session with several providers: the first one's arena serves all."""
        return self.cuda is None or self.names.index(EP_NAME) < self.names.index(CUDA)


def resolve(
    providers: ProviderArgument, provider_options: Sequence[dict[Any, Any]] | None, *, no_cpu: bool = False
) -> Providers:
    """Normalises ONNX Runtime's two arguments; None stands for ours, then the CPU.

    ``no_cpu``: the session options forbid the CPU (``session.disable_cpu_ep_fallback``), and so its name among the
    providers. Then a missing GPU is an error: RuntimeError says why it is missing.
    Raises ValueError where ONNX Runtime would: options of another length than names, entries of another form.
    """
    if isinstance(providers, str):
        raise ValueError(f"'providers' must be a sequence such as [{providers!r}], not a string.")
    defaults = [EP_NAME] if no_cpu else [EP_NAME, CPU]
    entries = defaults if providers is None else list(providers)
    if provider_options is not None:
        _check_options(provider_options, entries)
    names: list[str] = []
    options: list[dict[str, str]] = []
    for i, entry in enumerate(entries):
        own = (entry, provider_options[i] if provider_options else {})
        name, given = entry if isinstance(entry, tuple) and len(entry) == 2 else own
        if not isinstance(name, str) or not isinstance(given, dict):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        names.append(name)
        options.append({str(key): str(value) for key, value in given.items()})
    reason = unavailable_reason() if EP_NAME in names else None
    if reason is None:
        return Providers(names, options, None)
    if no_cpu:
        raise RuntimeError(f"session.disable_cpu_ep_fallback is set, and {EP_NAME} is not available: {reason}")
    kept = [(n, o) for n, o in zip(names, options, strict=True) if n != EP_NAME] or [(CPU, {})]
    return Providers([n for n, _ in kept], [o for _, o in kept], reason)


def _check_options(provider_options: Any, entries: list[Any]) -> None:
    if isinstance(provider_options, Mapping) or not isinstance(provider_options, Sequence):
        raise ValueError("'provider_options' should be a sequence of dicts, one for each provider.")
    if len(provider_options) != len(entries):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    if any(isinstance(entry, tuple) for entry in entries):
        raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
    if not all(isinstance(options, dict) for options in provider_options):
        raise ValueError("'provider_options' values must be dicts.")


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """A provider option that is on or off, by the provider's own rule; raises ValueError for anything else."""
    value = options.get(name, str(int(default)))
    if value.lower() not in ("0", "1", "false", "true"):
        raise ValueError(f"option {name}={value!r} is neither 0 nor 1")
    return value.lower() in ("1", "true")


def number(options: Mapping[str, str], name: str) -> int:
    """A provider option that is a whole number from 0; raises ValueError for anything else."""
    if not options[name].isdecimal():
        raise ValueError(f"option {name}={options[name]!r} is not a number")
    return int(options[name])


def warn_fallback(providers: Providers, stacklevel: int) -> None:
    """The one warning of a session that wanted the GPU and does not get it."""
    if providers.fallback is not None:
        warnings.warn(
            f"{EP_NAME} is not available, running on {', '.join(providers.names)}: {providers.fallback}",
            CuvilFallbackWarning,
            stacklevel=stacklevel + 1,
        )


def with_cuda(resolved: Providers) -> Providers | None:
    """The providers of a session that ours leaves nodes of to the CPU, with onnxruntime-gpu's CUDA provider behind
    ours; None where it is not installed, or is there already."""
    ours = resolved.ours
    if ours is None or resolved.cuda is not None or CUDA not in onnxruntime.get_available_providers():
        return None
    # TF32 is on by default there, and would cost float32 models the accuracy that they have on this provider.
    cuda = {"device_id": ours.get("device_id", "0"), "use_tf32": ours.get("use_tf32", "0")}
    at = resolved.names.index(EP_NAME) + 1
    names = [*resolved.names[:at], CUDA, *resolved.names[at:]]
    options = [dict(o) for o in (*resolved.options[:at], cuda, *resolved.options[at:])]
    return Providers(names, options, None)


def shared_stream(resolved: Providers) -> str | None:
    """The stream that the caller gave to a provider, as its option; raises ValueError for two different ones.

    Work of both providers depends on each other without a word between them, so they must work on one stream.
    """
    owners = [options for options in (resolved.ours, resolved.cuda) if options is not None]
    given = {options["user_compute_stream"] for options in owners if "user_compute_stream" in options}
    if len(given) > 1:
        raise ValueError(f"{EP_NAME} and {CUDA} must be given the same user_compute_stream in one session")
    return given.pop() if given else None
