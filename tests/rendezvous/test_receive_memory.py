"""Memory of large arrays: used anew when the last view is dead, and not before."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from flowrt.rendezvous.channel import receive_memory
from flowrt.rendezvous.channel.receive_memory import LARGE, ReceiveMemory


def address(array: np.ndarray) -> int:
    return array.ctypes.data


@pytest.mark.parametrize("nbytes", [0, 1, LARGE - 1, LARGE, LARGE + 1, 5 * LARGE])
def test_arrays_are_aligned_and_can_be_written(nbytes: int) -> None:
    array = ReceiveMemory().allocate(nbytes)
    assert array.nbytes == nbytes
    assert array.dtype == np.uint8
    array[:] = 1
    assert not nbytes or address(array) % 64 == 0


def test_memory_is_used_anew_when_the_last_view_is_dead() -> None:
    memory = ReceiveMemory()
    first = memory.allocate(LARGE + 1)
    view, at = first[5:].view(), address(first)
    del first
    second = memory.allocate(LARGE + 1)
    assert address(second) != at
    del view
    assert address(memory.allocate(LARGE + 2)) == at
    assert address(memory.allocate(4 * LARGE)) != at


def test_free_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_memory, "MAX_FREE", 3 * LARGE)
    memory = ReceiveMemory()
    arrays = [memory.allocate(LARGE) for _ in range(8)]
    arrays.clear()
    memory.allocate(LARGE)
    assert len(memory._free) == 2  # of three, one was given out


def test_threads_never_share_memory() -> None:
    memory = ReceiveMemory()
    failures: list[int] = []

    def use(value: int) -> None:
        for _ in range(60):
            array = memory.allocate(LARGE)
            array[:] = value
            if not (array == value).all():
                failures.append(value)

    threads = [threading.Thread(target=use, args=(value,)) for value in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
