"""Calls of kernels on large arrays, split by rows among threads.

NumPy computes on one core. Compiled loops share the cores; until they are there, or where there is no
compiler, the kernels of operations on large arrays do so in parts. An op's sharding rule says which dimension
of its inputs goes with the rows of its outputs: what holds for the devices of a mesh holds for threads.
BERT-tiny's second step takes 140 ms of its thread's time instead of 168.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from flowrt.device.host.shared_calls import run_shared
from flowrt.device.llvm.host_pool import num_threads
from flowrt.errors import OpError
from flowrt.executor.program.arguments import Later
from flowrt.graph.layouts.derived_rules import arguments_of, rule_of
from flowrt.graph.layouts.sharding_rule import dim_of
from flowrt.graph.node import Node, TensorSpec
from flowrt.graph.op_def import Effect, OpDef, Ufunc
from flowrt.graph.op_facets import LoopPattern

Array: TypeAlias = np.ndarray[Any, Any]
Call: TypeAlias = Callable[[], object]

MIN_BYTES = 2 << 20
"""Minimum size of the largest result of a call to split. A sum of two arrays takes 0.2 ms then, and half of
that is worth the 50 us that it takes to wake a thread.
"""

PART_BYTES = 1 << 20
"""Size of a part's result; each thread has at least two, for one that begins late."""


def split_call(
    node: Node, specs: Sequence[TensorSpec], function: Callable[..., Any], arguments: Sequence[Any],
    outs: Sequence[Array],
) -> Call | None:  # fmt: skip
    """A call of ``function`` in parts: ``node``'s own kernel, for inputs of ``specs``, with ``arguments`` and
    ``outs`` in memory that stays. Raises the errors of the whole call. None if its parts may depend on each
    other, or if ``function`` is a library's kernel, which has threads of its own.
    """
    threads = num_threads()
    if threads < 2 or not _is_separable(node.op, function) or any(map(_is_told_its_shape, _members(node))):
        return None
    dims = _dims_of_rows(node, specs, arguments, len(outs))
    if dims is None or not _are_apart(_flat(arguments), outs):
        return None
    rows = len(outs[0])
    n_parts = min(rows, max(2 * threads, max(out.nbytes for out in outs) // PART_BYTES))
    bounds = [rows * part // n_parts for part in range(n_parts + 1)]
    parts = [
        _bound(node.op, function, _cut(node.op, arguments, dims, part), [out[part] for out in outs])
        for part in map(slice, bounds[:-1], bounds[1:])
    ]
    return functools.partial(_run, tuple(parts), _bound(node.op, function, arguments, outs))


def _run(parts: Sequence[Call], whole: Call) -> None:
    try:
        run_shared(parts)
    except OpError:  # it may name a place in a part
        whole()
        raise


def _is_separable(op: OpDef, function: Callable[..., Any]) -> bool:
    """Whether ``function`` gives parts of a result, cut by the sharding rule, with the bits of the whole."""
    is_own = isinstance(op.kernel, Ufunc) or getattr(function, "func", None) is op.kernel
    is_along_rows = op.loop is not None and op.loop.pattern is LoopPattern.ALONG_ROWS
    is_pure = op.state is None and op.effect is Effect.PURE
    return is_own and is_pure and (op.elementwise or op.reduction is not None or is_along_rows)


def _members(node: Node) -> Sequence[Node]:
    """The nodes that ``node``'s kernel computes: of a group its members."""
    group = node.attrs.get("group")
    return (node,) if group is None else group.members


def _is_told_its_shape(node: Node) -> bool:
    """Whether a value may say how large the result is, as of BroadcastTo and Fill: that is the whole's."""
    return node.op.reduction is None and any(each.on_host for each in arguments_of(node.op, node.attrs))


def _dims_of_rows(
    node: Node, specs: Sequence[TensorSpec], arguments: Sequence[Any], n_outs: int
) -> list[int | None] | None:
    """The dimension of each input that goes with the first of all outputs, None for one that each part reads
    whole. None instead of the list if outputs have no such dimension, or if arguments are in registers.
    """
    if Later in map(type, arguments):
        return None
    rule = rule_of(node.op, node.attrs, specs, node.outputs, arguments.__getitem__)
    if rule is None or len(rule.outputs) != n_outs:
        return None
    first = {dims[0] if dims else () for dims in rule.outputs}
    if len(first) > 1 or len(factors := first.pop()) != 1 or not rule.may_cut(factors[0], 1):
        return None
    return [dim_of(factors[0], dims) for dims in rule.inputs]


def _are_apart(arrays: Sequence[Any], outs: Sequence[Array]) -> bool:
    """Whether no output shares memory with an input, other than the input's own, element by element."""
    return not any(
        np.may_share_memory(array, out) and not _is_same(array, out)
        for array in arrays
        for out in outs
        if isinstance(array, np.ndarray)
    )


def _is_same(a: Array, b: Array) -> bool:
    return a.ctypes.data == b.ctypes.data and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """The arguments, with those of a list in its place."""
    return [item for a in arguments for item in (a if isinstance(a, tuple | list) else (a,))]


def _cut(op: OpDef, arguments: Sequence[Any], dims: Sequence[int | None], rows: slice) -> list[Any]:
    """The arguments of the part that computes ``rows``."""
    left = iter(dims)

    def part(argument: Any) -> Any:
        dim = next(left)
        return argument if dim is None else argument[(slice(None),) * dim + (rows,)]

    pairs = zip(op.inputs, arguments, strict=True)
    return [tuple(map(part, given)) if argument.is_list else part(given) for argument, given in pairs]


def _bound(op: OpDef, function: Callable[..., Any], arguments: Sequence[Any], outs: Sequence[Array]) -> Call:
    out = outs[0] if len(outs) == 1 and not op.outputs[0].is_list else tuple(outs)
    if isinstance(op.kernel, Ufunc):
        return functools.partial(function, *arguments, out)
    return functools.partial(function, *arguments, out=out)
