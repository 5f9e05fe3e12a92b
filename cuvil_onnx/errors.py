"""Errors a user can act on. Each message is one line; the command line prints it and exits with 2."""

from __future__ import annotations


class CuvilError(Exception):
    """Base of every error this package raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ModelLoadError(CuvilError):
    """The model cannot be read: missing file, truncated file, not an ONNX file, missing external data."""


class UnsupportedModelError(CuvilError):
    """The model is well formed but cannot be worked on.

    It is newer than what the installed ONNX Runtime accepts, has nothing to run, or gives names of this package to
    functions of its own.
    """


class InvalidModelError(CuvilError):
    """The model breaks the ONNX rules (dangling names, cycles, wrong arity)."""


class RewriteError(CuvilError):
    """A rule or pass produced something impossible: a defect of this package, named with its rule and node."""


class VerificationError(CuvilError):
    """The optimized model does not compute what the original computes; nothing was written."""


class OutputError(CuvilError):
    """The optimized model cannot be written: unwritable folder, full disk, or the path of the input model."""


class OptionError(CuvilError):
    """An argument of ``optimize`` has no meaning: unknown precision, level, rule name or input name."""
