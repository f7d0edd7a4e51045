"""`Workspace`: what a kernel needs while it runs is the next one's again."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from flowrt.device.device import Device
from flowrt.device.host.host import HostExecutor
from flowrt.device.spec import DeviceSpec
from flowrt.device.stream_executor import ALIGNMENT
from flowrt.device.workspace import MAX_KEPT, Workspace, new_bytes
from flowrt.errors import ResourceExhaustedError


class Counted:
    """Memory that remembers how often it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, nbytes: int) -> np.ndarray:
        self.asked.append(nbytes)
        return new_bytes(nbytes)


def run_kernel(workspace: Workspace, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    new = workspace.begin()
    return [new(shape, np.float32) for shape in shapes]


def test_from_the_second_call_on_a_kernel_asks_for_nothing() -> None:
    memory = Counted()
    workspace = Workspace(memory)
    for _ in range(4):
        arrays = run_kernel(workspace, (3, 5), (7,), (0, 2))
    assert len(memory.asked) == 3 + 1  # an array each, then one piece for all
    assert [a.shape for a in arrays] == [(3, 5), (7,), (0, 2)]


def test_arrays_of_one_kernel_lie_apart_in_whole_cache_lines() -> None:
    workspace = Workspace()
    for _ in range(3):
        arrays = run_kernel(workspace, (3, 5), (7,), (33,))
        for number, array in enumerate(arrays):
            array[...] = number
        assert all((array == number).all() for number, array in enumerate(arrays))
        assert all(array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous for array in arrays)


def test_a_smaller_kernel_has_part_of_what_is_kept() -> None:
    memory = Counted()
    workspace = Workspace(memory)
    for _ in range(2):
        run_kernel(workspace, (1000,))
    kept = len(memory.asked)
    for _ in range(3):
        run_kernel(workspace, (10,))
        run_kernel(workspace, (1000,))
    assert len(memory.asked) == kept


def test_what_is_kept_has_a_bound() -> None:
    memory = Counted()
    workspace = Workspace(memory)
    for _ in range(3):
        (array,) = run_kernel(workspace, (MAX_KEPT // 4 + 1,))
    assert memory.asked == [array.nbytes] * 3


def test_the_address_is_the_same_until_more_is_asked_for() -> None:
    workspace = Workspace()
    small = workspace.address(100)
    assert workspace.address(50) == small
    large = workspace.address(1 << 20)
    assert large % ALIGNMENT == 0
    assert workspace.address(100) == large


def test_two_threads_share_nothing() -> None:
    workspace, both_have = Workspace(), threading.Barrier(2, timeout=200)
    seen = [0.0, 0.0]

    def compute(i: int) -> None:
        for _ in range(2):
            run_kernel(workspace, (100,))
        (array,) = run_kernel(workspace, (100,))
        array[...] = i + 1
        both_have.wait()
        seen[i] = float(array.sum())

    threads = [threading.Thread(target=compute, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [100, 200]


@pytest.fixture
def device() -> Device:
    return Device(DeviceSpec.from_string("/device:CPU:0"), HostExecutor("host"))


def test_a_devices_is_counted_in_its_pool_and_goes_back(device: Device) -> None:
    for _ in range(2):
        arrays = run_kernel(device.workspace, (1000,))
    del arrays
    assert device.pool.stats().bytes_in_use >= 4000
    assert "workspace" in device.pool.report()
    device.workspace.let_go()
    assert device.pool.stats().bytes_in_use == 0


def test_who_is_refused_memory_gets_what_is_kept() -> None:
    device = Device(DeviceSpec.from_string("/device:CPU:0"), HostExecutor("host"), memory_limit=4 << 20)
    for _ in range(2):
        run_kernel(device.workspace, (3 << 18,))
    assert device.pool.stats().bytes_in_use >= 3 << 20
    assert device.allocate(3 << 20).nbytes == 3 << 20
    run_kernel(device.workspace, (100,))  # and goes on with less


def test_an_array_in_use_outlives_what_is_let_go() -> None:
    workspace = Workspace()
    for _ in range(2):
        (array,) = run_kernel(workspace, (1000,))
    array[...] = 1
    workspace.let_go()
    run_kernel(workspace, (1000,))[0][...] = 2
    assert array.sum() == 1000


def test_memory_that_cannot_be_kept_stops_no_kernel() -> None:
    """The large request has gone; what comes after it has what it needs."""
    left = [1 << 20]

    def allocate(nbytes: int) -> np.ndarray:
        if nbytes > left[0]:
            raise ResourceExhaustedError(f"no room for {nbytes}")
        return new_bytes(nbytes)

    workspace = Workspace(allocate)
    run_kernel(workspace, (1 << 10,), (1 << 10,))
    left[0] = 5000  # enough for each, and not for both
    for _ in range(2):
        assert len(run_kernel(workspace, (1 << 10,), (1 << 10,))) == 2
