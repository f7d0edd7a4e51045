"""`local_devices`: which GPUs a request makes, and what it says to one that does not fit the machine."""

from __future__ import annotations

from typing import Any

import pytest

from flowrt.device.cuda import cuda
from flowrt.device.local_devices import MIB, DeviceRequest, local_devices
from flowrt.errors import InvalidArgumentError
from tests.device.pretend_cupy import Cupy

TOTAL_MB = 64


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    machine = Cupy(count=2, total=TOTAL_MB * MIB)
    monkeypatch.setattr(cuda, "load_cupy", lambda: machine)
    return machine


def gpus(**request: Any) -> list[tuple[int, int]]:
    """(CUDA's ordinal, limit in MiB) of the GPU devices."""
    devices = local_devices(DeviceRequest(**request))
    assert [device.device_type for device in devices[:1]] == ["CPU"]
    found = [(d.executor, d.pool.stats().bytes_limit // MIB) for d in devices[1:]]
    for device in devices:
        device.close()
    return [(executor.ordinal, limit) for executor, limit in found]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, [(0, 64), (1, 64)]),
        ({"counts": {"GPU": 0}, "visible_gpus": "7"}, []),
        ({"counts": {"GPU": 1}}, [(0, 64)]),
        ({"counts": {"GPU": 5}}, [(0, 64), (1, 64)]),
        ({"visible_gpus": " 1, 0"}, [(1, 64), (0, 64)]),
        ({"visible_gpus": "1,0", "counts": {"GPU": 1}}, [(1, 64)]),
        ({"gpu_memory_fraction": 0.25}, [(0, 16), (1, 16)]),
        ({"virtual_gpu_mb": [[8, 4]]}, [(0, 8), (0, 4), (1, 64)]),
        ({"virtual_gpu_mb": [[], [60, 4]], "gpu_memory_fraction": 0.5}, [(0, 32), (1, 60), (1, 4)]),
        ({"virtual_gpu_mb": [[8]], "visible_gpus": "1,0"}, [(1, 8), (0, 64)]),
    ],
)
def test_gpus_are_as_the_request_says(request_: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    assert gpus(**request_) == expected


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("text", ["²", "5", "a", "-1", "0,0", "0,00", "0,", ",0", "1.0"])
def test_a_list_that_names_no_gpus_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        gpus(visible_gpus=text)
    expected = "expected numbers of different GPUs below 2"
    assert str(caught.value) == f"visible_device_list: {expected}; got {text!r}"


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"virtual_gpu_mb": [[1], [], [5]]}, "one entry for each of 2 GPUs; got 3 entries"),
        ({"virtual_gpu_mb": [[1], [5]], "counts": {"GPU": 1}}, "one entry for each of 1 GPUs; got 2 entries"),
        ({"virtual_gpu_mb": [[], [40, 40]]}, r"into the 64 MiB of GPU 1; got \[40, 40\]"),
        ({"virtual_gpu_mb": [[1 << 20]]}, r"into the 64 MiB of GPU 0; got \[1048576\]"),
    ],
)
def test_a_division_that_does_not_fit_the_machine_is_refused(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        gpus(**request_)


def test_what_is_said_of_gpus_is_no_mistake_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_reason_against_cuda", lambda: "it is a small machine")
    assert gpus(visible_gpus="1", virtual_gpu_mb=[[8], [8]], gpu_memory_fraction=0.5) == []
