"""``device_lib.list_local_devices()``: TensorFlow 1's list of a machine's devices."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from flowrt.cli.machine import processor_name
from flowrt.device.cuda.cuda import CudaExecutor, visible_devices
from flowrt.device.device import Device
from flowrt.device.local_devices import local_devices
from flowrt.errors import DTypeError
from flowrt.executor.ends.config import ConfigProto, device_request


class DeviceAttributes(NamedTuple):
    """One device; ``memory_limit`` in bytes, ``incarnation`` a number that is different in each call."""

    name: str
    device_type: str
    memory_limit: int
    physical_device_desc: str
    incarnation: int


def list_local_devices(session_config: ConfigProto | None = None) -> list[DeviceAttributes]:
    """The devices that a session with ``session_config`` has; by default the CPU and the GPUs that this
    process can use. Raises as `flowrt.Session` for a configuration that does not fit this machine.
    """
    if not isinstance(session_config, ConfigProto | None):
        raise DTypeError(f"list_local_devices: expected a ConfigProto; got {session_config!r}")
    devices = local_devices(device_request(session_config or ConfigProto()))
    try:
        return [_attributes(device) for device in devices]
    finally:
        for device in devices:
            device.close()


def _attributes(device: Device) -> DeviceAttributes:
    name = f"/device:{device.device_type}:{device.spec.device_index}"
    limit = device.pool.stats().bytes_limit
    return DeviceAttributes(name, device.device_type, limit, _describe(device), secrets.randbits(64))


def _describe(device: Device) -> str:
    """The description of a GPU, in the format that scripts parse; of a CPU, its model."""
    number = device.spec.device_index
    if not isinstance(device.executor, CudaExecutor):
        model = processor_name() if device.executor.computes else "computes nothing"
        return f"device: {number}, name: {model}"
    gpu = visible_devices()[device.executor.ordinal]
    major, minor = gpu.compute_capability
    return (
        f"device: {number}, name: {gpu.name}, pci bus id: {gpu.pci_bus_id}, "
        f"compute capability: {major}.{minor}"
    )
