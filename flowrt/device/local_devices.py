"""The devices of one session in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from flowrt.device.cuda.cuda import CudaExecutor, GpuDescription, visible_devices, why_no_gpu
from flowrt.device.device import Device
from flowrt.device.device_kinds import KINDS, DeviceKind, register_kind
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
    """Number of devices by type, and memory limits of CPUs and GPUs.

    Without a number there is one CPU, all visible GPUs, and none of others. ``cpu_memory_limit_mb[i]``: the
    limit in MiB of CPU i, 0 for none, as for CPUs without an entry. ``visible_gpus``: ``"1,0"``, the
    CUDA devices to use, in order; empty for all. ``gpu_memory_fraction``: above 0, up to 1.
    ``virtual_gpu_mb[i]``: the limits in MiB, at least 1, of the virtual devices of GPU i. Settings for GPUs
    that do not exist are ignored.
    """

    counts: Mapping[str, int] = {}
    cpu_memory_limit_mb: Sequence[int] = ()
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
    _gpus(request)
    return [device for kind in KINDS.values() for device in kind.open(request, job, task)]


def _cpus(request: DeviceRequest, job: str, task: int) -> list[Device]:
    specs = specs_of("CPU", request.counts.get("CPU", 1), job, task)
    limits = request.cpu_memory_limit_mb
    if len(limits) > len(specs):
        raise InvalidArgumentError(
            f"cpu_memory_limit_mb: expected one limit for each of {len(specs)} CPUs; got {len(limits)}"
        )
    streams = request.num_streams
    return [
        Device(spec, HostExecutor(spec.to_string()), num_streams=streams, memory_limit=mb * MIB or None)
        for spec, mb in zip(specs, chain(limits, repeat(0)), strict=False)
    ]


def _nulls(request: DeviceRequest, job: str, task: int) -> list[Device]:
    specs = specs_of("NULL", request.counts.get("NULL", 0), job, task)
    return [Device(s, NullExecutor(s.to_string()), num_streams=request.num_streams) for s in specs]


def _gpu_devices(request: DeviceRequest, job: str, task: int) -> list[Device]:
    found = _gpus(request)
    specs = specs_of("GPU", len(found), job, task)
    return [_gpu(spec, *each, request) for spec, each in zip(specs, found, strict=True)]


def specs_of(device_type: str, count: int, job: str, task: int) -> list[DeviceSpec]:
    """The names of ``count`` devices of one type in a task."""
    return [DeviceSpec(job, 0, task, device_type, index) for index in range(count)]


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
    count = request.counts.get("GPU")
    found = visible_devices() if count != 0 else []
    if not found:
        return []
    ordinals = _ordinals(request.visible_gpus, len(found))[:count]
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


register_kind(DeviceKind("CPU", _cpus, rank=1))
register_kind(DeviceKind("GPU", _gpu_devices, rank=0, is_made_by_count=False, why_none=why_no_gpu))
register_kind(DeviceKind("NULL", _nulls))
