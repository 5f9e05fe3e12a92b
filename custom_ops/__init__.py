"""The ops of domain `cuvil`: each is a model-local ONNX function, so that any ONNX Runtime can run a model that has it.

`make` builds a node with its function; `custom_ops/ops/<op>.py` specifies an op; `python -m custom_ops.generate` writes
what C++ and the documentation need from the specifications.
"""

from custom_ops.factory import fingerprint, install, make, retype
from custom_ops.program import UnsupportedError
from custom_ops.region import Region
from custom_ops.registry import get, specs
from custom_ops.spec import DOMAIN, VERSION, OpError, OpSpec

__all__ = [
    "DOMAIN",
    "VERSION",
    "OpError",
    "OpSpec",
    "Region",
    "UnsupportedError",
    "fingerprint",
    "get",
    "install",
    "make",
    "retype",
    "specs",
]
