"""Convolutions and products of oneDNN's on the memory of a program: in a step nothing but the library is
called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowrt.device.onednn import onednn
from flowrt.executor.kernels.onednn_kernels import ONEDNN_KERNELS, PRIMITIVES, primitive_on
from flowrt.executor.program.arguments import LateArray, Later, late_array
from flowrt.executor.program.primitive_action import BoundPrimitive
from flowrt.graph.node import Node, TensorSpec

Array = np.ndarray[Any, Any]


def bound_primitive(
    node: Node,
    arguments: Sequence[Any],
    specs: Sequence[TensorSpec],
    constants: Collection[int],
    out: Array,
    registers: list[Any],
) -> BoundPrimitive | None:
    """The convolution or product of ``node`` on ``arguments``, as its kernel takes them, into ``out``; None
    if it is none, or is not computed by one primitive. Its inputs have ``specs``; those of the numbers
    ``constants`` never change.
    """
    if node.op not in PRIMITIVES or not onednn.is_available():
        return None
    late = [late_array(a, spec) for a, spec in zip(_one_by_one(arguments), specs, strict=True)]
    arrays = [a.stand_in if isinstance(a, LateArray) else a for a in late]
    if not all(isinstance(array, np.ndarray) for array in (*arrays, out)):
        return None
    attrs = {key: node.attrs[key] for key in node.op.kernel_attrs}
    try:
        found = primitive_on(node.op, attrs, arrays, out)
    except onednn.Unsupported:
        return None
    kernel = partial(ONEDNN_KERNELS[node.op], node.op, np, out=out, **attrs)
    on = [
        late[source] if source is not None and isinstance(late[source], LateArray) else array
        for array, source in zip(found.arrays, found.sources, strict=True)
    ]
    fixed = [i for i, source in enumerate(found.sources) if source in constants]
    otherwise = partial(_call, kernel, arguments, registers)
    return BoundPrimitive(found.find, on, fixed, registers, otherwise)


def _one_by_one(arguments: Sequence[Any]) -> Iterator[Any]:
    """Each input: those of lists one by one."""
    for argument in arguments:
        if isinstance(argument, tuple) and not isinstance(argument, Later):
            yield from argument
        elif isinstance(argument, Later) and argument.is_list:
            yield from [item.value if item.slot is None else Later((item,), False) for item in argument.items]
        else:
            yield argument


def _call(kernel: Callable[..., Any], arguments: Sequence[Any], registers: list[Any]) -> None:
    kernel(*[a.read(registers) if isinstance(a, Later) else a for a in arguments])
