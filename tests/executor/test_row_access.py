"""Accesses to rows of lists, called from Python: a stack is last in, first out, and grows when it must."""

from __future__ import annotations

import numpy as np
import pytest

from flowrt.device.llvm import host_jit
from flowrt.errors import InvalidArgumentError
from flowrt.executor.lists.row_access import stack_access
from flowrt.loops.control_nest import END, TOP, Push, Take

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

ZERO = np.zeros((), np.int64)


def run(access):
    function, arguments = access.bound()
    return lambda: function(*arguments)


def refuse():
    raise InvalidArgumentError("no row")


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", ["bool", "float32", "int64"])
def test_last_in_first_out(shape, dtype):
    source, target, length = np.zeros(shape, dtype), np.zeros(shape, dtype), np.array(0)
    rows = np.zeros((5, *shape), dtype)
    grown = []

    def grow():
        grown.append(int(length))
        words[[TOP, END]] = rows.ctypes.data, rows.ctypes.data + rows.nbytes

    pushing = stack_access(Push(0, source.nbytes), source, length, ZERO, grow)
    taking = stack_access(Take(0, target.nbytes), target, length, ZERO, refuse)
    words, push, take = pushing.table.words, run(pushing), run(taking)
    for i in range(5):
        source[...] = i % 2 if dtype == "bool" else i
        push()
    assert (length, grown) == (5, [0])
    taking.table.words[TOP] = words[TOP]
    for i in reversed(range(5)):
        take()
        np.testing.assert_array_equal(target, rows[i])
    assert length == 0
    with pytest.raises(InvalidArgumentError):
        take()
    assert (length, taking.table.words[TOP]) == (0, rows.ctypes.data)


def test_a_take_waits_for_the_end_of_the_list_taken_before():
    rows, length, target = np.array([7, 8]), np.array(2), np.array(0)

    def skip():
        skipped.append(int(target))
        target[...] = 0

    skipped = []
    access = stack_access(Take(0, 8), target, length, target, skip)
    access.table.words[TOP] = rows.ctypes.data + rows.nbytes
    take = run(access)
    take()
    assert (target, skipped) == (8, [])
    take()
    assert (target, skipped, length) == (7, [8], 0)
