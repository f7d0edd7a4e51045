"""Binding of fetches: values returned by a program belong to the caller and never change afterwards."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.kernels.sized_call import is_pooled
from flowrt.graph.node import Ref
from flowrt.graph.op_def import Effect


def bind_fetches(tensors: BoundTensors) -> list[Callable[[], Any]]:
    """Functions that return the value of each fetch, in order; the caller owns the values."""
    counts = Counter(tensors.subgraph.fetches)
    return [bind_fetch(tensors, ref, counts[ref] == 1) for ref in tensors.subgraph.fetches]


def bind_fetch(tensors: BoundTensors, ref: Ref, is_once: bool) -> Callable[[], Any]:
    """A function that returns the tensor's value; the caller owns it. ``is_once``: it is fetched once."""
    operand, source = tensors[ref], tensors.source(ref)
    registers, slot, value = tensors.registers, operand.slot, operand.value
    take = _taker(tensors, ref, is_once)
    if slot is not None:
        return lambda: take(registers[slot])
    if source.op.reads_variable:
        lock = tensors[source.inputs[0]].value.lock  # another step may be updating the variable

        def take_locked() -> Any:
            with lock:
                return take(value)

        return take_locked
    if take is copied and type(value) is np.ndarray:
        return functools.partial(np.array, value) if value.ndim else functools.partial(value.__getitem__, ())
    return functools.partial(take, value)


def _taker(tensors: BoundTensors, ref: Ref, is_once: bool) -> Callable[[Any], Any]:
    """Function that makes a value the caller's own: a no-op if it is new and fetched once, else a copy."""
    device, operand = tensors.device, tensors[ref]
    if device.is_asynchronous and tensors.subgraph.spec(ref).dtype is dtypes.resource:
        return lambda handle: _after(device.finish, handle)  # others read its value in no order with us
    if device.is_asynchronous and not operand.is_host:
        fetch = device.fetch
        return lambda array: _own(fetch(array))
    if operand.slot is None:
        return copied
    is_new = tensors.subgraph.nodes[ref[0]].op.effect in (Effect.PURE, Effect.RANDOM)
    if is_new and is_once and not tensors.is_alias(ref):
        return scalar_or_array if is_pooled(tensors.subgraph.nodes[ref[0]]) else _own
    return copied


def _after(function: Callable[[], None], value: Any) -> Any:
    function()
    return value


def scalar_or_array(value: Any) -> Any:
    """A new array as the caller gets it: 0-d arrays become scalars."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _own(value: Any) -> Any:
    """A fetched value as the caller gets it: scalars, and copies for views of larger arrays."""
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 0:
        return value[()]
    return value if value.flags.owndata else value.copy()


def copied(value: Any) -> Any:
    """A copy of a fetched value that has another owner."""
    return _own(np.array(value)) if isinstance(value, (np.ndarray, np.generic)) else value
