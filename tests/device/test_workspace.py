"""`Workspace`: one piece of memory a thread, which grows."""

from __future__ import annotations

import threading

import numpy as np

from flowrt.device.workspace import ALIGNMENT, Workspace


def test_the_same_memory_until_more_is_asked_for() -> None:
    workspace = Workspace()
    small = workspace.address(100)
    assert workspace.address(50) == small
    large = workspace.address(1 << 20)
    assert large % ALIGNMENT == 0
    assert workspace.address(100) == large
    assert workspace.array((3, 5), np.float32).ctypes.data == large


def test_an_array_has_its_own_elements() -> None:
    array = Workspace().array((7, 9), np.float64)
    array[...] = np.arange(63).reshape(7, 9)
    assert array.sum() == 62 * 63 / 2
    assert array.flags.c_contiguous


def test_each_thread_has_its_own() -> None:
    workspace, addresses = Workspace(), [0, 0]
    both_have = threading.Barrier(2, timeout=30)

    def ask(i: int) -> None:
        addresses[i] = workspace.address(1 << 16)
        both_have.wait()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert abs(addresses[0] - addresses[1]) >= 1 << 16
