"""The devices of one session in this process."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flowrt.device.cuda import CudaExecutor, visible_devices
from flowrt.device.device import Device
from flowrt.device.host import HostExecutor
from flowrt.device.memory_pool import MemoryPool, Owner
from flowrt.device.null import NullExecutor
from flowrt.device.spec import DeviceSpec
from flowrt.device.stream_executor import DeviceMemory, Stream
from flowrt.errors import InvalidArgumentError

MIB = 1 << 20

TEMPORARY = Owner("a kernel's result or temporary", None)


class DeviceRequest(NamedTuple):
    """How many devices of each type, and how much of a GPU's memory they may take.

    ``gpus`` None: all that are visible. ``visible_gpus``: ``"1,0"``, which of CUDA's devices they are, in
    order; empty for all. ``virtual_gpu_mb[i]``: the limits in MiB of the devices that GPU i is divided into.
    """

    cpus: int = 1
    gpus: int | None = None
    nulls: int = 0
    num_streams: int = 1
    visible_gpus: str = ""
    gpu_memory_fraction: float = 1.0
    virtual_gpu_mb: Sequence[Sequence[int]] = ()
    captures_gpu_steps: bool = True


def local_devices(request: DeviceRequest, job: str = "localhost", task: int = 0) -> list[Device]:
    """New devices by ``request``, the CPUs first. Raises `InvalidArgumentError` for a request that does not
    fit this machine.
    """
    devices = []
    for index in range(request.cpus):
        spec = DeviceSpec(job, 0, task, "CPU", index)
        devices.append(Device(spec, HostExecutor(spec.to_string()), num_streams=request.num_streams))
    for index, (ordinal, limit) in enumerate(_gpus(request)):
        spec = DeviceSpec(job, 0, task, "GPU", index)
        devices.append(_gpu(spec, ordinal, limit, request))
    for index in range(request.nulls):
        spec = DeviceSpec(job, 0, task, "NULL", index)
        devices.append(Device(spec, NullExecutor(spec.to_string()), num_streams=request.num_streams))
    return devices


def _gpu(spec: DeviceSpec, ordinal: int, limit: int | None, request: DeviceRequest) -> Device:
    """A GPU whose CuPy arrays come from the device's pool too: there is one pool."""
    executor = CudaExecutor(ordinal, spec.to_string())
    device = Device(
        spec,
        executor,
        num_streams=request.num_streams,
        memory_limit=limit,
        captures=request.captures_gpu_steps,
    )
    executor.set_allocator(functools.partial(_allocate, device.pool))
    return device


def _allocate(pool: MemoryPool, nbytes: int, stream: Stream) -> DeviceMemory:
    return pool.allocate(nbytes, TEMPORARY, stream)


def _gpus(request: DeviceRequest) -> Iterator[tuple[int, int | None]]:
    """(CUDA's ordinal, limit in bytes) of each GPU device."""
    if request.gpus == 0:
        return
    found = visible_devices()
    ordinals = _ordinals(request.visible_gpus, len(found))
    for position, ordinal in enumerate(ordinals[: request.gpus]):
        limits = request.virtual_gpu_mb[position] if position < len(request.virtual_gpu_mb) else ()
        for limit in limits:
            yield ordinal, limit * MIB
        if not limits:
            total = found[ordinal].memory_bytes
            fraction = request.gpu_memory_fraction
            yield ordinal, None if fraction >= 1 else int(total * fraction)


def _ordinals(text: str, count: int) -> list[int]:
    """``"1,0"`` as numbers below ``count``; all of them for an empty text."""
    if not text.strip():
        return list(range(count))
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) < count for part in parts) or len(set(parts)) < len(parts):
        raise InvalidArgumentError(
            f"visible_device_list: expected numbers of different GPUs below {count}; got {text!r}"
        )
    return list(map(int, parts))
