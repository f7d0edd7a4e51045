"""Accesses to rows of lists, called from Python: a stack is last in, first out, and grows when it must."""

from __future__ import annotations

import numpy as np
import pytest

from flowrt.device.llvm import host_jit
from flowrt.errors import InvalidArgumentError
from flowrt.executor.lists.row_access import stack_access
from flowrt.loops.control_nest import END, TOP, Push, Take

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))


def run(access):
    function, arguments = access.bound()
    return lambda: function(*arguments)


def refuse():
    raise InvalidArgumentError("no row")


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", ["bool", "float32", "int64"])
def test_last_in_first_out(shape, dtype):
    source, target = np.zeros(shape, dtype), np.zeros(shape, dtype)
    rows = np.zeros((5, *shape), dtype)
    grown = []

    def grow():
        grown.append(rows.shape)
        words[[TOP, END]] = rows.ctypes.data, rows.ctypes.data + rows.nbytes

    pushing = stack_access(Push(0, source.nbytes), source, grow)
    taking = stack_access(Take(0, target.nbytes), target, refuse)
    words, push, take = pushing.table.words, run(pushing), run(taking)
    for i in range(5):
        source[...] = i % 2 if dtype == "bool" else i
        push()
    assert len(grown) == 1
    taking.table.words[[TOP, END]] = words[TOP], rows.ctypes.data
    for i in reversed(range(5)):
        take()
        np.testing.assert_array_equal(target, rows[i])
    with pytest.raises(InvalidArgumentError):
        take()
    assert taking.table.words[TOP] == rows.ctypes.data
