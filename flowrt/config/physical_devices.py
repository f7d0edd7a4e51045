"""The machine's devices, as ``tf.config`` lists them: `PhysicalDevice`."""

from __future__ import annotations

from typing import NamedTuple

from flowrt.cli.machine import local_devices
from flowrt.errors import DTypeError, InvalidArgumentError


class PhysicalDevice(NamedTuple):
    """One device of the machine, which a session may divide into several: ``/physical_device:GPU:0``,
    ``GPU``.
    """

    name: str
    device_type: str


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The CPU and the GPUs that this process can use, or those of ``device_type``."""
    found = [
        PhysicalDevice(facts.name.replace("/device:", "/physical_device:"), facts.device_type)
        for facts in local_devices()
    ]
    return [device for device in found if device_type in (None, device.device_type)]


def set_memory_growth(device: PhysicalDevice, enable: bool) -> None:
    """Does nothing: a GPU's pool always grows on demand, see `GPUOptions`. So ``enable`` may not be False.

    Raises `InvalidArgumentError` for that and for anything but a GPU of this machine, `DTypeError` for
    anything but True and False.
    """
    if not isinstance(enable, bool):
        raise DTypeError(f"set_memory_growth: expected True or False; got {enable!r}")
    gpus = list_physical_devices("GPU")
    if device not in gpus:
        names = ", ".join(gpu.name for gpu in gpus) or "none, there is no GPU"
        raise InvalidArgumentError(f"set_memory_growth: expected a GPU of {names}; got {device!r}")
    if not enable:
        raise InvalidArgumentError(
            "set_memory_growth: expected True; got False. Memory pools always grow on demand; "
            "GPUOptions.per_process_gpu_memory_fraction bounds them"
        )
