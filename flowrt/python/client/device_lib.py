"""``device_lib.list_local_devices()``: how TensorFlow 1's scripts ask what a machine has."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowrt.machine import DeviceFacts, local_devices


class DeviceAttributes(NamedTuple):
    """One device; ``memory_limit`` in bytes."""

    name: str
    device_type: str
    memory_limit: int
    physical_device_desc: str


def list_local_devices(session_config: Any = None) -> list[DeviceAttributes]:
    """The CPU and the GPUs that this process can use. ``session_config`` is accepted and has no effect."""
    return [
        DeviceAttributes(facts.name, facts.device_type, facts.total_bytes, _describe(facts))
        for facts in local_devices()
    ]


def _describe(facts: DeviceFacts) -> str:
    """Of a GPU, in the form that scripts take apart; of a CPU, as in TensorFlow, nothing."""
    if facts.compute_capability is None:
        return ""
    number = facts.name.rpartition(":")[2]
    major, minor = facts.compute_capability
    name, bus = facts.description, facts.pci_bus_id
    return f"device: {number}, name: {name}, pci bus id: {bus}, compute capability: {major}.{minor}"
