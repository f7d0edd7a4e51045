"""Arguments of a bound call: known at bind time, or read when the call is made.

An operand is the location of a tensor. If it does not change between steps (an array of the plan, a
variable's memory, a constant's value as Python integers), it is bound as an argument. Values that are new in
every step, in a register or computed on the host, become a `Later`, read by a wrapper around the call. What
computes by addresses takes a `LateArray` in its place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.node import Node, TensorSpec, static_shape
from flowrt.graph.op_def import Argument, Ufunc
from flowrt.graph.partial_value import as_host_value
from flowrt.graph.shapes import is_static

Array = np.ndarray[Any, Any]

MAX_CHANNELS = 4
"""Channels that are copied one by one; 8 are faster together."""

Convert = Callable[[Any], Any]
"""Converts an array of the device to a NumPy array, or back."""


class Operand(NamedTuple):
    """Location of a tensor: ``value`` (an existing array or resource), or register ``slot``."""

    value: Any
    slot: int | None
    text: str
    host_value: Any = None
    """A NumPy array of the elements, if they never change."""
    is_host: bool = False
    """Whether the array is NumPy's although the device is remote: shapes and other answers of the host."""
    host_slot: int | None = None
    """Register with the elements also as a NumPy array, if they came from the host."""


KNOWN = -1
"""Stands for a register: the argument is known."""


class _Item(NamedTuple):
    slot: int | None
    value: Any
    convert: Convert | None

    def read(self, registers: list[Any]) -> Any:
        value = self.value if self.slot is None else registers[self.slot]
        return value if self.convert is None else self.convert(value)


class Later(NamedTuple):
    """An argument, one tensor or a list of them, that is read when the call is made."""

    items: tuple[_Item, ...]
    is_list: bool

    def read(self, registers: list[Any]) -> Any:
        if self.is_list:
            return tuple([item.read(registers) for item in self.items])
        return self.items[0].read(registers)

    @property
    def plain_slot(self) -> int | None:
        """The register, if reading it is all there is to do."""
        item = self.items[0]
        return None if self.is_list or item.convert is not None else item.slot


class LateArray(NamedTuple):
    """An array that is in register ``slot`` when the call is made, of the ``stand_in``'s shape and dtype."""

    slot: int
    stand_in: Array
    """Stand-in in C order."""

    def read(self, registers: Sequence[Any]) -> Array:
        """The array, in C order. Raises `InvalidArgumentError` for one of another shape."""
        array: Array = registers[self.slot]
        shape, dtype = self.stand_in.shape, self.stand_in.dtype
        is_array = type(array) is np.ndarray  # a scalar has no memory
        if not (is_array and array.flags.c_contiguous and array.flags.aligned and array.dtype == dtype):
            array = _in_c_order(array, dtype)
        if array.shape != shape:
            message = f"expected a value of shape {list(shape)}; got {list(array.shape)}"
            raise InvalidArgumentError(message)
        return array


def _in_c_order(array: Any, dtype: Any) -> Array:
    """A copy in C order. Few channels that are last now are copied one by one: 3 of 320x320 pixels take
    0.11 ms, and 0.35 where NumPy's innermost loop is over them.
    """
    copy: Array = np.empty(array.shape, dtype)
    if copy.ndim > 1 and 1 < copy.shape[-1] <= MAX_CHANNELS and array.strides[-1] > array.strides[-2]:
        for channel in range(copy.shape[-1]):
            copy[..., channel] = array[..., channel]
    else:
        copy[...] = array
    return copy


def late_array(argument: Any, spec: TensorSpec) -> Any:
    """An ``argument`` of ``spec`` in a register and of known shape as a `LateArray`; any other as it is."""
    if not isinstance(argument, Later) or argument.plain_slot is None or not is_static(spec.shape):
        return argument
    return LateArray(argument.plain_slot, np.empty(static_shape(spec), spec.dtype.np))


def _same(array: Any) -> Any:
    return array


def bound_kernel(
    xp: Any,
    node: Node,
    operands: Sequence[Operand],
    to_host: Convert = np.asarray,
    to_device: Convert = _same,
    kernel: Callable[..., Any] | None = None,
) -> tuple[Any, tuple[Any, ...]]:
    """The node's kernel with attrs and array module bound, and one argument per input of its signature; one
    that is not known yet is a `Later`. ``kernel``: the device's own, if it has one.
    """
    op = node.op
    arguments = _arguments_of(node, operands, to_host, to_device)
    if isinstance(op.kernel, Ufunc):
        return op.kernel.bind(xp), arguments
    attrs = {key: node.attrs[key] for key in op.kernel_attrs}
    return functools.partial(kernel or op.kernel, xp, **attrs), arguments


def _arguments_of(
    node: Node, operands: Sequence[Operand], to_host: Convert, to_device: Convert
) -> tuple[Any, ...]:
    left, convert = iter(operands), (to_host, to_device)
    return tuple([
        _as_list([_argument(argument, o, *convert) for o in islice(left, argument.length(node.attrs))])
        if argument.is_list
        else _argument(argument, next(left), *convert)
        for argument in node.op.inputs
    ])  # fmt: skip


def _argument(argument: Argument, operand: Operand, to_host: Convert, to_device: Convert) -> Any:
    if not argument.on_host:
        if operand.is_host:
            return Later((_Item(operand.slot, operand.value, to_device),), False)
        return operand.value if operand.slot is None else later_of(operand.slot)
    if operand.host_value is not None:
        return as_host_value(np.asarray(operand.host_value))
    read = np.asarray if operand.is_host else to_host
    return Later((_Item(operand.slot, operand.value, lambda value: as_host_value(read(value))),), False)


@functools.lru_cache(maxsize=4096)
def later_of(slot: int) -> Later:
    """The content of register ``slot`` when the call is made."""
    return Later((_Item(slot, None, None),), False)


def _as_list(items: list[Any]) -> Any:
    """One argument of ``items``, of which each is known or a `Later` itself."""
    if Later not in {type(item) for item in items}:
        return tuple(items)
    return Later(tuple([i.items[0] if isinstance(i, Later) else _Item(None, i, None) for i in items]), True)


def late_call(registers: list[Any], function: Any, arguments: Sequence[Any]) -> Callable[[], Any]:
    """A call that reads its `Later` arguments when made. Plain registers are read by one ``itemgetter``."""
    slots: list[Any] = [a.plain_slot if isinstance(a, Later) else KNOWN for a in arguments]
    if None in slots:
        return lambda: function(*[a.read(registers) if isinstance(a, Later) else a for a in arguments])
    for position, argument in enumerate(arguments):
        if slots[position] == KNOWN:  # becomes a register that never changes
            slots[position] = len(registers)
            registers.append(argument)
    if len(slots) == 1:
        slot = slots[0]
        return lambda: function(registers[slot])
    get = itemgetter(*slots)
    return lambda: function(*get(registers))
