"""Python's functions of tensors, in converted code."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

from flowrt import dtypes
from flowrt.autograph.loops import Items, items_of, length_of
from flowrt.autograph.variables import is_symbolic
from flowrt.base.structure import flatten
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.array.ranges import range_op
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.base.shape_manipulation import size_op
from flowrt.graph.ops.elementwise.arithmetic import add_v2, minimum, multiply
from flowrt.graph.ops.text.python_calls import print_ as print_tensors


def _range(*args: Any) -> Any:
    if not any(map(is_symbolic, args)):
        return builtins.range(*args)
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    count = size_op(range_op(start, stop, step))
    return Items(count, lambda i: add_v2(multiply(i, step), start))


def _len(value: Any) -> Any:
    if not is_symbolic(value):
        return builtins.len(value)
    shape = convert_to_tensor(value).spec.shape
    return shape[0] if shape and shape[0] is not None else length_of(value)


def _enumerate(iterable: Any, start: Any = 0) -> Any:
    items = items_of(iterable)
    if items is None:
        return builtins.enumerate(iterable, start)
    return Items(items.count, lambda i: (add_v2(i, start), items.item(i)))


def _zip(*iterables: Any, strict: bool = False) -> Any:
    found = [items_of(iterable) for iterable in iterables]
    if not any(found):
        return builtins.zip(*iterables, strict=strict)
    columns = [items or _rows(iterable) for items, iterable in builtins.zip(found, iterables, strict=True)]
    count = columns[0].count
    for column in columns[1:]:
        count = minimum(count, column.count)
    return Items(count, lambda i: tuple(column.item(i) for column in columns))


def _rows(iterable: Any) -> Items:
    """Python's items, indexed like those of a tensor."""
    rows = convert_to_tensor(list(iterable))
    return Items(length_of(rows), lambda i: gather_op(rows, i, 0))


def _cast(to: Any, dtype: Any) -> Callable[..., Any]:
    return lambda *args: cast_op(args[0], DstT=dtype) if any(map(is_symbolic, args)) else to(*args)


def _print(*values: Any, sep: Any = None, end: Any = None, file: Any = None, flush: bool = False) -> Any:
    if any(is_symbolic(leaf) for leaf in flatten(values)):
        sep, end = " " if sep is None else sep, "\n" if end is None else end
        return print_tensors(*values, output_stream=file or sys.stdout, sep=sep, end=end)
    return builtins.print(*values, sep=sep, end=end, file=file, flush=flush)


OVERLOADS: dict[Any, Callable[..., Any]] = {
    builtins.range: _range,
    builtins.len: _len,
    builtins.enumerate: _enumerate,
    builtins.zip: _zip,
    builtins.int: _cast(int, dtypes.int32),
    builtins.float: _cast(float, dtypes.float32),
    builtins.bool: _cast(bool, dtypes.bool_),
    builtins.print: _print,
}
"""Replacements of Python's functions in converted code."""
