"""Copies of small arrays as compiled loops, for use in compiled sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np

from flowrt.device.llvm.call_sequence import MachineCall
from flowrt.executor.kernels.fused_program import program_of
from flowrt.executor.kernels.loop_layout import layout_of, strides_in, whole_on
from flowrt.graph.passes.fusion.group import Level
from flowrt.loops.loop_program import DTYPES, LoopValue, Store

Array = np.ndarray[Any, Any]


def copy_call(target: Array, source: Array) -> MachineCall:
    """A call that copies ``source`` to ``target``, of the same shape, with a cast to its dtype. The arrays
    must be kept alive.
    """
    return elementwise_call(lambda b, value: b.cast(value, target.dtype.name), [source, target])


def elementwise_call(rule: Callable[..., LoopValue], arrays: Sequence[Array]) -> MachineCall:
    """A call that computes the last of ``arrays`` from the others, which broadcast to its shape, by
    ``rule(builder, *values)``. The arrays must be kept alive.
    """
    return rule_call(rule, arrays, arrays[-1].shape)


def rule_call(
    rule: Callable[..., LoopValue], arrays: Sequence[Array], domain: tuple[int, ...], store: Store = Store.PUT
) -> MachineCall:
    """`elementwise_call` where the last of ``arrays`` also broadcasts to the ``domain``: a reduction, by the
    rule or by ``store``.
    """
    program = program_of(rule, [(array.dtype.name, False) for array in arrays[:-1]], store=store)
    assert program is not None
    strides = [strides_in(array, Level.ELEMENT, domain) for array in arrays]
    return whole_on(layout_of(program, domain, strides), arrays)


def clear_call(array: Array) -> MachineCall:
    """Sets ``array``, which must stay, to 0."""
    return elementwise_call(lambda b: b.spread(b.const(0, array.dtype.name)), [array])


def sum_call(target: Array, parts: Array) -> MachineCall:
    """A call that adds up ``parts``, [n, ...], each of the size of ``target``, with a cast to its dtype. The
    arrays must be kept alive.
    """
    columns = parts.reshape(len(parts), -1).T
    rows = target.reshape(-1, 1)
    return rule_call(
        lambda b, value: b.cast(b.emit("row_sum", value), target.dtype.name), [columns, rows], columns.shape
    )


def is_fit(array: Any) -> TypeGuard[Array]:
    """Whether loops can read and write it."""
    return isinstance(array, np.ndarray) and array.flags.aligned and array.dtype.name in DTYPES
