"""``flowrt devices`` and what else tells a script which devices there are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import flowrt
from flowrt.cli import machine
from flowrt.cli.devices import lines
from flowrt.cli.main import main
from flowrt.device.cuda import cuda
from flowrt.device.cuda.cuda import GpuDescription
from flowrt.device.llvm import host_jit
from flowrt.device.onednn import onednn
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from flowrt.python.client import device_lib
from flowrt.test import gpu_device_name, is_gpu_available
from tests.device.pretend_cupy import Cupy

GPU = GpuDescription(0, "NVIDIA H100 80GB HBM3", 80 << 30, (9, 0), "0000:01:00.0")


class OpenedGpu:
    """Stands for a `CudaExecutor`; counts those that were left open."""

    left_open = 0

    def __init__(self, ordinal: int, name: str) -> None:
        OpenedGpu.left_open += 1

    def memory_info(self) -> tuple[int, int]:
        return 70 << 30, 80 << 30

    def close(self) -> None:
        OpenedGpu.left_open -= 1


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_cupy() -> Any:
        raise FailedPreconditionError("there is no NVIDIA driver")

    monkeypatch.setattr(machine, "visible_devices", list)
    monkeypatch.setattr(machine, "load_cupy", load_cupy)
    monkeypatch.setattr("flowrt.cli.devices.why_no_gpu", lambda: "there is no NVIDIA driver")


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("flowrt.cli.machine", "flowrt.test"):
        monkeypatch.setattr(f"{module}.visible_devices", lambda: [GPU])
    monkeypatch.setattr(machine, "CudaExecutor", OpenedGpu)
    monkeypatch.setattr("flowrt.cli.devices.why_no_gpu", lambda: None)


@pytest.mark.usefixtures("no_gpu")
def test_json_says_what_the_cpu_has_and_why_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    (cpu,) = facts["devices"]
    assert cpu["name"] == "/device:CPU:0"
    assert 0 < cpu["free_bytes"] <= cpu["total_bytes"]
    assert 0 < facts["usable_cores"] <= facts["cores"]
    assert facts["blas"][0]["threads"] >= 1
    assert facts["libraries"]["numpy"].count(".") == 2
    assert facts["why_no_gpu"] == "there is no NVIDIA driver"


@pytest.mark.usefixtures("no_gpu")
def test_text_has_a_line_a_device_and_one_for_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[:2]] == ["device", "/device:CPU:0"]
    assert any(line.split("  ")[0] == "BLAS" for line in printed)
    assert printed[-1] == "no GPU           there is no NVIDIA driver"


@pytest.mark.usefixtures("one_gpu")
def test_a_gpu_has_a_line_with_memory_and_capability(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("/device:GPU"))
    assert line.split() == ["/device:GPU:0", "70.0", "GiB", "80.0", "GiB", "9.0", *GPU.name.split()]
    assert OpenedGpu.left_open == 0


def test_the_text_is_all_of_the_json() -> None:
    device = {"name": "/device:CPU:0", "device_type": "CPU", "description": "A CPU"}
    facts = {
        "devices": [device | {"free_bytes": 1 << 30, "total_bytes": 3 << 29}],
        "why_no_gpu": None,
        "why_no_onednn": "it is switched off",
        "cores": 4,
        "usable_cores": 2,
        "blas": [{"name": "openblas", "version": "0.3", "threads": 2}],
        "libraries": {"numpy": "2.4"},
    }
    assert lines(facts) == [
        "device         free     total    compute  description",
        "/device:CPU:0  1.0 GiB  1.5 GiB  -        A CPU",
        "",
        "cores      4, 2 usable by this process",
        "BLAS       openblas 0.3, 2 threads",
        "numpy      2.4",
        "no oneDNN  it is switched off",
    ]


def test_a_library_that_cannot_be_used_is_shown_with_the_reason_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_jit, "why_unusable", lambda: "llvmlite: it is half there")
    for name in ("why_unusable", "why_unavailable"):
        monkeypatch.setattr(onednn, name, lambda: "oneDNN: it is an old one")
    assert main(["devices"]) == 0
    printed = capsys.readouterr().out
    assert re.search("^llvmlite +cannot be used: llvmlite: it is half there$", printed, re.MULTILINE)
    assert re.search("^onednn-cpu-gomp +cannot be used: oneDNN: it is an old one$", printed, re.MULTILINE)
    assert "no oneDNN" not in printed


def test_device_lib_lists_cpu_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "load_cupy", lambda: Cupy(count=2, total=64 << 20))
    cpu, gpu, other = device_lib.list_local_devices()
    assert (cpu.name, cpu.device_type) == ("/device:CPU:0", "CPU")
    assert cpu.physical_device_desc == f"device: 0, name: {machine.processor_name()}"
    assert cpu.memory_limit > 0
    assert gpu[:3] == ("/device:GPU:0", "GPU", 64 << 20)
    described = r"device: 0, name: .+, pci bus id: .+, compute capability: \d+\.\d+"
    assert re.fullmatch(described, gpu.physical_device_desc)
    assert len({cpu.incarnation, gpu.incarnation, other.incarnation}) == 3


def test_device_lib_lists_the_devices_of_a_configuration() -> None:
    config = flowrt.ConfigProto(device_count={"CPU": 2, "GPU": 0, "NULL": 1})
    names = [device.name for device in device_lib.list_local_devices(config)]
    assert names == ["/device:CPU:0", "/device:CPU:1", "/device:NULL:0"]
    with pytest.raises(DTypeError, match="expected a ConfigProto; got 2"):
        device_lib.list_local_devices(2)  # type: ignore[arg-type]


@pytest.mark.usefixtures("one_gpu")
def test_physical_devices_are_listed_by_type() -> None:
    gpu = ("/physical_device:GPU:0", "GPU")
    assert flowrt.config.list_physical_devices() == [("/physical_device:CPU:0", "CPU"), gpu]
    assert flowrt.config.experimental.list_physical_devices("GPU") == [gpu]
    assert flowrt.config.list_physical_devices("TPU") == []


@pytest.mark.usefixtures("one_gpu")
def test_memory_growth_is_what_there_is() -> None:
    set_memory_growth = flowrt.config.experimental.set_memory_growth
    cpu, gpu = flowrt.config.list_physical_devices()
    set_memory_growth(gpu, True)
    for device, enable, message in (
        (gpu, False, "expected True; got False. Memory pools always grow"),
        (gpu, 1, "expected True or False; got 1"),
        (cpu, True, "expected a GPU of /physical_device:GPU:0; got"),
        ("GPU:0", True, "expected a GPU of /physical_device:GPU:0; got 'GPU:0'"),
    ):
        with pytest.raises(InvalidArgumentError, match=re.escape(message)):
            set_memory_growth(device, enable)


@pytest.mark.usefixtures("one_gpu")
def test_a_gpu_is_available_if_it_can_enough() -> None:
    assert gpu_device_name() == "/device:GPU:0"
    assert is_gpu_available(cuda_only=True, min_cuda_compute_capability=(9, 0))
    assert not is_gpu_available(min_cuda_compute_capability=(9, 1))


def test_without_a_gpu_none_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrt.test.visible_devices", list)
    assert gpu_device_name() == ""
    assert not is_gpu_available()


@pytest.mark.parametrize(
    ("number", "major", "minor", "text"), [(12040, 1000, 10, "12.4"), (130000, 10000, 100, "13.0")]
)
def test_cuda_counts_versions_in_one_number(number: int, major: int, minor: int, text: str) -> None:
    assert machine._dotted(number, major, minor) == text
