"""The GPUs of this machine, as far as the provider is concerned."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cuvil_onnx.runtime import cuda_driver


@dataclass(frozen=True)
class Device:
    """One NVIDIA GPU. ``id`` is the value for the provider option ``device_id``."""

    id: int
    name: str
    compute_capability: str
    memory_bytes: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def devices() -> list[Device]:
    """Every NVIDIA GPU the driver reports; an empty list without a driver or GPU."""
    try:
        drv = cuda_driver.driver()
        return [
            Device(i, drv.device_name(i), "{}.{}".format(*drv.compute_capability(i)), drv.total_memory(i))
            for i in range(drv.device_count())
        ]
    except cuda_driver.CudaError:
        return []
