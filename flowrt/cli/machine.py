"""Facts about this machine: devices, cores, memory, and the libraries that flowrt uses.

Missing devices and libraries never raise an error: they are reported, with the reason.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import threadpoolctl

from flowrt.device.cuda.cuda import CudaExecutor, GpuDescription, load_cupy, visible_devices
from flowrt.device.host.host import HostExecutor
from flowrt.device.llvm import host_jit
from flowrt.device.onednn import onednn
from flowrt.errors import FailedPreconditionError

CPU_NAME = "/device:CPU:0"

NOT_INSTALLED = "not installed"
REQUIRED = ("numpy", "protobuf", "grpcio", "ml_dtypes", "safetensors", "opt_einsum", "threadpoolctl")
OPTIONAL = ("llvmlite", "onednn-cpu-gomp", "diastatic-malt")
CUPY_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
"""One library under three names; at most one of them is installed."""


@dataclass(frozen=True)
class DeviceFacts:
    """One device. ``name`` is valid in a device scope; the last two fields are a GPU's, with
    ``compute_capability`` (major, minor).
    """

    name: str
    device_type: str
    description: str
    free_bytes: int
    total_bytes: int
    compute_capability: tuple[int, int] | None = None
    pci_bus_id: str | None = None


class Blas(NamedTuple):
    """A library for matrix products that is loaded, and the threads that it uses."""

    name: str
    version: str
    threads: int


def local_devices() -> list[DeviceFacts]:
    """The CPU and the GPUs that this process can use, as they are now. Opens each GPU."""
    return [host_facts(), *map(_gpu_facts, visible_devices())]


def host_facts() -> DeviceFacts:
    """The CPU, with the machine's memory or what this process may use of it."""
    free, total = HostExecutor(CPU_NAME).memory_info()
    return DeviceFacts(CPU_NAME, "CPU", processor_name(), free, total)


def _gpu_facts(gpu: GpuDescription) -> DeviceFacts:
    name = f"/device:GPU:{gpu.ordinal}"
    executor = CudaExecutor(gpu.ordinal, name)
    try:
        free, total = executor.memory_info()
    finally:
        executor.close()
    return DeviceFacts(name, "GPU", gpu.name, free, total, gpu.compute_capability, gpu.pci_bus_id)


def cuda_versions() -> dict[str, str]:
    """The versions of CUDA's parts; empty without a GPU."""
    try:
        cuda = load_cupy().cuda
    except FailedPreconditionError:
        return {}
    return {
        "CUDA driver": _dotted(cuda.runtime.driverGetVersion(), 1000, 10),
        "CUDA runtime": _dotted(cuda.runtime.runtimeGetVersion(), 1000, 10),
        "cuBLAS": _cublas_version(cuda),
    }


def _cublas_version(cuda: Any) -> str:
    try:
        return _dotted(cuda.cublas.getVersion(cuda.device.get_cublas_handle()), 10000, 100)
    except ImportError as error:  # CuPy 14's packages do not include it and search for it on demand
        return f"cannot be loaded: {error}".partition("\n")[0]


def _dotted(number: int, major: int, minor: int) -> str:
    """CUDA's 12040, with 1000 for a major and 10 for a minor number, is 12.4; cuBLAS's 120403 is 12.4."""
    return f"{number // major}.{number % major // minor}"


def package_version(name: str) -> str:
    """The installed version of a package, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return NOT_INSTALLED


def cupy_version() -> str:
    """CuPy's package and version."""
    found = ((name, package_version(name)) for name in CUPY_PACKAGES)
    return next((f"{number} ({name})" for name, number in found if number != NOT_INSTALLED), NOT_INSTALLED)


def library_versions() -> dict[str, str]:
    """The versions of all libraries that flowrt uses, by package; for an unusable one, the reason. Raises
    `InvalidArgumentError` for an invalid value of ``FLOWRT_ONEDNN``.
    """
    versions = {name: package_version(name) for name in REQUIRED}
    optional = {name: package_version(name) for name in OPTIONAL}
    reasons = {"llvmlite": host_jit.why_unusable(), onednn.PACKAGE: onednn.why_unusable()}
    unusable = {name: f"cannot be used: {reason}" for name, reason in reasons.items() if reason}
    return versions | {"cupy": cupy_version()} | optional | unusable


def blas_libraries() -> list[Blas]:
    """The loaded BLAS libraries, including NumPy's."""
    return [
        Blas(pool["internal_api"], pool["version"] or "of unknown version", pool["num_threads"])
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    ]


def processor_name() -> str:
    """The model, if the system reports it; else the architecture."""
    return next(_model_names(), "") or platform.processor() or platform.machine()


def _model_names() -> Iterator[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            yield value.strip()


def cores() -> tuple[int, int]:
    """The number of cores of the machine, and of those available to this process."""
    there = os.cpu_count() or 1
    return there, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
