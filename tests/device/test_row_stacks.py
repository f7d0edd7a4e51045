"""Stacks of rows: what is pushed is taken in the reverse order, and what cannot be done is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from flowrt.device.llvm import host_jit
from flowrt.device.llvm.row_stacks import END, STATUS, TOP, pushing, taking

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))


def number(value=0):
    return np.array(value, np.int64)


def made(call):
    """``call`` as a function that says whether it was done, and the words of its table."""
    function, arguments = call.bound()
    words = arguments[0].words

    def run():
        words[STATUS] = 0
        function(*arguments)
        return not words[STATUS]

    return run, words


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", ["bool", "float32", "int64"])
def test_last_in_first_out(shape, dtype):
    source, target = np.zeros(shape, dtype), np.zeros(shape, dtype)
    rows, length = np.zeros((5, *shape), dtype), number()
    push, pushed = made(pushing(source, length))
    pushed[[TOP, END]] = rows.ctypes.data, rows.ctypes.data + rows.nbytes
    for i in range(5):
        source[...] = i % 2 if dtype == "bool" else i
        assert push()
    assert length == 5
    assert not push()
    assert (length, pushed[TOP]) == (5, pushed[END])
    take, taken = made(taking(target, length, number()))
    taken[TOP] = pushed[TOP]
    for i in reversed(range(5)):
        assert take()
        np.testing.assert_array_equal(target, rows[i])
    assert (length, taken[TOP]) == (0, rows.ctypes.data)
    assert not take()
    assert (length, taken[TOP]) == (0, rows.ctypes.data)


def test_what_is_to_be_over_before():
    """A number is not taken while another, where it goes, is not counted down."""
    rows, length, target = np.array([7, 8]), number(2), number()
    take, words = made(taking(target, length, target))
    words[TOP] = rows.ctypes.data + rows.nbytes
    assert take()
    assert target == 8
    assert not take()
    assert (target, length) == (8, 1)
    target[...] = 0
    assert take()
    assert (target, length) == (7, 0)
