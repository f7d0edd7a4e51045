"""The devices of one session in this process."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from flowrt.device.cuda.cuda import CudaExecutor, GpuDescription, visible_devices
from flowrt.device.device import Device
from flowrt.device.host.host import HostExecutor
from flowrt.device.memory_pool import MemoryPool, Owner
from flowrt.device.null import NullExecutor
from flowrt.device.onednn import onednn
from flowrt.device.spec import DeviceSpec
from flowrt.device.stream_executor import DeviceMemory, Stream
from flowrt.errors import InvalidArgumentError

MIB = 1 << 20

TEMPORARY = Owner("a kernel's result or temporary", None)


class DeviceRequest(NamedTuple):
    """Number of devices of each type, and memory limits of GPUs.

    ``gpus`` None: all that are visible. ``visible_gpus``: ``"1,0"``, the CUDA devices to use, in order; empty
    for all. ``gpu_memory_fraction``: above 0, up to 1. ``virtual_gpu_mb[i]``: the limits in MiB, at least 1,
    of the virtual devices of GPU i. Settings for GPUs that do not exist are ignored.
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
    fit this machine, and for a value that ``FLOWRT_ONEDNN`` has not; nothing is opened then.
    """
    onednn.is_switched_on()  # else a wrong value would be reported by the first large product, or never
    gpus = _gpus(request)
    devices = []
    for index in range(request.cpus):
        spec = DeviceSpec(job, 0, task, "CPU", index)
        devices.append(Device(spec, HostExecutor(spec.to_string()), num_streams=request.num_streams))
    for index, (ordinal, limit) in enumerate(gpus):
        spec = DeviceSpec(job, 0, task, "GPU", index)
        devices.append(_gpu(spec, ordinal, limit, request))
    for index in range(request.nulls):
        spec = DeviceSpec(job, 0, task, "NULL", index)
        devices.append(Device(spec, NullExecutor(spec.to_string()), num_streams=request.num_streams))
    return devices


def _gpu(spec: DeviceSpec, ordinal: int, limit: int | None, request: DeviceRequest) -> Device:
    """A GPU that also allocates CuPy arrays from the device's pool: there is a single pool."""
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


def _gpus(request: DeviceRequest) -> list[tuple[int, int | None]]:
    """(CUDA's ordinal, limit in bytes) of each GPU device."""
    found = visible_devices() if request.gpus != 0 else []
    if not found:
        return []
    ordinals = _ordinals(request.visible_gpus, len(found))[: request.gpus]
    if len(request.virtual_gpu_mb) > len(ordinals):
        raise InvalidArgumentError(
            f"virtual_devices: expected one entry for each of {len(ordinals)} GPUs; got "
            f"{len(request.virtual_gpu_mb)} entries"
        )
    divided = dict(zip(ordinals, request.virtual_gpu_mb, strict=False))
    return [
        (ordinal, limit)
        for ordinal in ordinals
        for limit in _limits(found[ordinal], divided.get(ordinal, ()), request.gpu_memory_fraction)
    ]


def _limits(gpu: GpuDescription, limits_mb: Sequence[int], fraction: float) -> Sequence[int | None]:
    """Memory limits in bytes of the virtual devices of ``gpu``, or of the GPU itself."""
    if not limits_mb:
        return [None if fraction == 1 else int(gpu.memory_bytes * fraction)]
    if sum(limits_mb) * MIB > gpu.memory_bytes:
        raise InvalidArgumentError(
            f"memory_limit_mb: expected limits that fit together into the {gpu.memory_bytes // MIB} MiB of "
            f"GPU {gpu.ordinal}; got {list(limits_mb)}"
        )
    return [limit * MIB for limit in limits_mb]


def _ordinals(text: str, count: int) -> list[int]:
    """``"1,0"`` as numbers below ``count``; all of them for an empty text."""
    if not text.strip():
        return list(range(count))
    parts = text.split(",")
    ordinals = [int(part) for part in parts if part.strip().isdecimal()]
    if len(set(ordinals)) < len(parts) or max(ordinals) >= count:
        raise InvalidArgumentError(
            f"visible_device_list: expected numbers of different GPUs below {count}; got {text!r}"
        )
    return ordinals
