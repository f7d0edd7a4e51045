"""`shard_map`: a function of one coordinate of a mesh, called for all of them.

    x [8, 6], layout ["dp", "tp"]  ->  a part per coordinate [dp, tp, 8 / dp, 6 / tp]
       | fn is traced once, on the shape of one part, and rewritten for all (`vectorize`, per axis)
    results [dp, tp, ...]          ->  y, in the layout that its parts have

All of these are ordinary operations in layouts: a part is computed where it is, sums over coordinates become
collectives, and gradients follow. The collectives have the names that JAX gives them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from flowrt.base.structure import Structure, flatten, pack_as
from flowrt.distribute.strategies.layouts.layout_strategy import Entries, check_mesh
from flowrt.errors import DTypeError, FailedPreconditionError
from flowrt.functions.vectorization import vectorize
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.functions.batching import has_rule
from flowrt.graph.layouts.attributes import attributes_of
from flowrt.graph.layouts.layout import Layout, Shard, layout_of
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.array.ranges import range as range_
from flowrt.graph.ops.array.reductions import reduce_max
from flowrt.graph.ops.base.filling import broadcast_to
from flowrt.graph.ops.base.identities import relayout_op
from flowrt.graph.ops.base.shape_manipulation import reshape, transpose
from flowrt.graph.ops.collective.over_axis import over_axis_op
from flowrt.graph.ops.elementwise.division import divide
from flowrt.graph.shapes import is_static
from flowrt.graph.source import misuse
from flowrt.variables.distribution_context import layout_strategy


class _Trace(NamedTuple):
    """A function that is being traced: its mesh, and the coordinate, an index per axis."""

    mesh: Mesh
    indices: Sequence[Tensor]


class _Traces(threading.local):
    current: _Trace | None = None


_traces = _Traces()


def shard_map(
    fn: Callable[..., Structure], in_layouts: Sequence[Entries], out_layouts: Any, mesh: Mesh | None = None
) -> Callable[..., Structure]:
    """``fn`` of the parts of tensors that one coordinate has, as a function of the whole tensors.

    ``in_layouts`` has a layout per argument, ``out_layouts`` one per result, in a structure like that of the
    results: an entry per dimension, as in `relayout`. ``mesh``: by default that of the `LayoutStrategy` in
    scope. ``fn`` is called once, with tensors of one part's shape. `psum`, `pmean`, `pmax`, `pmin`,
    `all_gather`, `psum_scatter`, `ppermute` and `axis_index` work on axes by their names.

    >>> mesh = Mesh([("tp", 2)])
    >>> product = shard_map(lambda x, w: psum(tf.matmul(x, w), "tp"),
    ...                     [[None, "tp"], ["tp", None]], [None, None], mesh)
    >>> y = product(tf.ones([4, 6]), tf.ones([6, 3]))

    Calling it raises `InvalidArgumentError` for an unknown axis, another number of arguments, a dimension
    that its axes do not divide, a result that differs on an axis that its layout lacks, and an operation that
    cannot be computed for all coordinates at once.
    """
    strategy = layout_strategy()
    if mesh is None and strategy is None:
        raise misuse(
            "shard_map: expected a mesh, or the scope of a LayoutStrategy; got none", FailedPreconditionError
        )
    over = strategy.mesh if mesh is None else mesh
    check_mesh(over, "shard_map")
    if any(axis.is_time for axis in over.axes):
        raise misuse(f"shard_map: expected a mesh without axes of time; got {over}")
    if not callable(fn):
        raise misuse(f"shard_map: expected a function; got {fn!r}", DTypeError)
    if not isinstance(in_layouts, list | tuple):
        raise misuse(f"shard_map: in_layouts: expected a list with a layout per argument; got {in_layouts!r}")
    layouts = [layout_of(over, entries, f"shard_map: argument {i}") for i, entries in enumerate(in_layouts)]

    def mapped(*arguments: Any) -> Structure:
        if len(arguments) != len(layouts):
            raise misuse(f"shard_map: expected {len(layouts)} arguments; got {len(arguments)}")
        with get_default_graph().name_scope("shard_map"):
            return _Mapping(over, layouts, out_layouts)(fn, [convert_to_tensor(a) for a in arguments])

    return mapped


class _Mapping:
    """One call over ``mesh``."""

    def __init__(self, mesh: Mesh, layouts: Sequence[Layout], out_layouts: Any) -> None:
        self._mesh, self._layouts, self._out = mesh, layouts, out_layouts
        self._by_axis = layout_of(mesh, [axis.name for axis in mesh.axes])
        self._results: list[Layout] = []

    def __call__(self, fn: Callable[..., Structure], arguments: Sequence[Tensor]) -> Structure:
        parts = [
            self._parts(x, layout, f"argument {i}")
            for i, (x, layout) in enumerate(zip(arguments, self._layouts, strict=True))
        ]
        found = self._over_axes(fn, (), parts)
        wholes = [
            self._whole(convert_to_tensor(each), layout)
            for each, layout in zip(flatten(found), self._results, strict=True)
        ]
        return pack_as(found, wholes)

    def _over_axes(
        self, fn: Callable[..., Structure], indices: tuple[Tensor, ...], parts: Sequence[Tensor]
    ) -> Structure:
        """``fn`` of ``parts`` for all coordinates that begin with ``indices``, with a dimension per axis."""
        if len(indices) == len(self._mesh.axes):
            first = get_default_graph().version
            with _tracing(_Trace(self._mesh, indices)):
                returned = fn(*parts)
            made = frozenset(get_default_graph().get_operations()[first:])
            self._check_results(returned, parts, indices, made)
            return returned
        axis = self._mesh.axes[len(indices)]
        numbers = relayout_op(range_(axis.size), **attributes_of(layout_of(self._mesh, [axis.name])))

        def at(index: Tensor, *rows: Tensor) -> Structure:
            return self._over_axes(fn, (*indices, index), rows)

        return vectorize(at, [numbers, *parts], axis.size, _refuse)

    # --- arguments

    def _parts(self, x: Tensor, layout: Layout, where: str) -> Tensor:
        """The parts of ``x``, with a dimension per axis of the mesh before their own."""
        dims = x.spec.shape
        if not is_static(dims):
            raise misuse(f"shard_map: {where}: expected a tensor of known shape; got {x!r}")
        layout.check_rank(len(dims), f"shard_map: {where}")
        sizes, split, front = self._mesh.shape, list[int](), dict[int, int]()
        inner: list[int] = []
        for dim, size in enumerate(dims):
            axes = layout.axes_of(dim)
            count = math.prod(sizes[axis] for axis in axes)
            if size % count:
                names = ", ".join(self._mesh.axes[axis].name for axis in axes)
                raise misuse(
                    f"shard_map: {where}: expected a dimension {dim} that the {count} parts of {names} "
                    f"divide; got {size}"
                )
            for axis in axes:
                front[axis] = len(split)
                split.append(sizes[axis])
            inner.append(len(split))
            split.append(size // count)
        named = relayout_op(x, **attributes_of(layout))
        moved = transpose(reshape(named, split), [*[front[a] for a in sorted(front)], *inner])
        local = [split[i] for i in inner]
        grid = reshape(moved, [*[n if a in front else 1 for a, n in enumerate(sizes)], *local])
        return relayout_op(broadcast_to(grid, [*sizes, *local]), **attributes_of(self._by_axis))

    # --- results

    def _check_results(
        self,
        returned: Structure,
        parts: Sequence[Tensor],
        indices: Sequence[Tensor],
        made: Collection[Operation],
    ) -> None:
        """Raise `InvalidArgumentError` unless each result is as its layout says. ``made``: the operations of
        the function.
        """
        leaves = [convert_to_tensor(leaf) for leaf in flatten(returned)]
        entries = list(self._out) if isinstance(returned, (list, tuple)) else [self._out]
        if len(entries) != len(leaves):
            raise misuse(
                f"shard_map: expected a layout for each of {len(leaves)} results; got {len(entries)}"
            )
        given = dict(zip(parts, [_axes_in(layout) for layout in self._layouts], strict=True))
        given |= {index: frozenset([axis]) for axis, index in enumerate(indices)}
        for i, (leaf, entry) in enumerate(zip(leaves, entries, strict=True)):
            where = f"shard_map: result {i}"
            layout = layout_of(self._mesh, entry, where)
            dims = leaf.spec.shape
            if not is_static(dims):
                raise misuse(f"{where}: expected a tensor of known shape; got {leaf!r}")
            layout.check_rank(len(dims), where)
            lacks = _varying(leaf, given, made, frozenset(range(len(self._mesh.axes)))) - _axes_in(layout)
            if lacks:
                names = ", ".join(repr(self._mesh.axes[axis].name) for axis in sorted(lacks))
                raise misuse(
                    f"{where}: expected a layout with {names}, on which it differs; got {list(entry)}. Name "
                    "the axis, or reduce over it, for instance by psum"
                )
            self._results.append(layout)

    def _whole(self, parts: Tensor, layout: Layout) -> Tensor:
        """The tensor that has these ``parts``; those that differ only in other axes are equal."""
        sizes, local = self._mesh.shape, [n or 0 for n in parts.shape.as_list()[len(self._mesh.axes) :]]
        grid = relayout_op(parts, **attributes_of(self._by_axis))
        used = sorted(_axes_in(layout))
        equal = [axis for axis in range(len(sizes)) if axis not in used]
        if equal:
            grid = reduce_max(grid, equal)
        order: list[int] = []
        for dim in range(len(local)):
            order += [*map(used.index, layout.axes_of(dim)), len(used) + dim]
        dims = [size * math.prod(sizes[a] for a in layout.axes_of(i)) for i, size in enumerate(local)]
        return relayout_op(reshape(transpose(grid, order), dims), **attributes_of(layout))


def _axes_in(layout: Layout) -> frozenset[int]:
    """The axes that shard a dimension."""
    return frozenset(axis for axis, placement in enumerate(layout.placements) if isinstance(placement, Shard))


def _varying(
    result: Tensor, given: Mapping[Tensor, frozenset[int]], made: Collection[Operation], every: frozenset[int]
) -> frozenset[int]:
    """The axes on which ``result`` may differ, if the arguments differ on those ``given``. What other
    operations than those ``made`` compute is one value.
    """
    known = dict(given)
    stack = [result]
    while stack:
        tensor = stack[-1]
        op = tensor.op
        missing = [t for t in op.inputs if t not in known] if op in made else []
        if tensor in known or not missing:
            stack.pop()
            is_own = op in made
            varies = _result_varies(op, [known[t] for t in op.inputs], every) if is_own else frozenset()
            known.setdefault(tensor, varies)
        else:
            stack += missing
    return known[result]


def _result_varies(op: Operation, inputs: Sequence[frozenset[int]], every: frozenset[int]) -> frozenset[int]:
    if op.op_def.effect is Effect.RANDOM:
        return every
    if op.op_def is over_axis_op and op.node.attrs["kind"] not in ("psum_scatter", "ppermute"):
        value, index = inputs
        return value - index  # equal on the axis from here on
    return frozenset[int]().union(*inputs)


def _refuse(ops: Sequence[Operation], *_: Any) -> list[Tensor]:
    lacking = [op for op in ops if op.inputs and not has_rule(op.op_def)] or list(ops)
    names = ", ".join(dict.fromkeys(op.type for op in lacking))
    raise misuse(
        f"shard_map: expected operations that can be computed for all coordinates at once; got {names}"
    )


# --- collectives in a function


@contextmanager
def _tracing(trace: _Trace) -> Iterator[None]:
    outer, _traces.current = _traces.current, trace
    try:
        yield
    finally:
        _traces.current = outer


def _trace(name: str) -> _Trace:
    if _traces.current is None:
        raise misuse(f"{name}: expected a call in a function of shard_map", FailedPreconditionError)
    return _traces.current


def _over(kind: str, x: Any, axis: str, dim: int = 0, sources: Sequence[int] = ()) -> Tensor:
    trace = _trace(kind)
    number = trace.mesh.axis(axis)
    result: Tensor = over_axis_op(
        convert_to_tensor(x), trace.indices[number], kind=kind, size=trace.mesh.shape[number], dim=dim,
        sources=list(sources), name=kind,
    )  # fmt: skip
    return result


def psum(x: Any, axis: str) -> Tensor:
    """The sum of ``x`` over the coordinates of ``axis``, on each of them."""
    return _over("psum", x, axis)


def pmean(x: Any, axis: str) -> Tensor:
    """The mean of ``x`` over the coordinates of ``axis``, on each of them."""
    total, mesh = psum(x, axis), _trace("pmean").mesh
    return divide(total, constant(mesh.shape[mesh.axis(axis)], dtype=total.dtype))


def pmax(x: Any, axis: str) -> Tensor:
    """The maximum of ``x`` over the coordinates of ``axis``, on each of them."""
    return _over("pmax", x, axis)


def pmin(x: Any, axis: str) -> Tensor:
    """The minimum of ``x`` over the coordinates of ``axis``, on each of them."""
    return _over("pmin", x, axis)


def all_gather(x: Any, axis: str, dim: int = 0) -> Tensor:
    """The parts ``x`` of all coordinates of ``axis``, concatenated along ``dim``, on each of them."""
    return _over("all_gather", x, axis, dim)


def psum_scatter(x: Any, axis: str, dim: int = 0) -> Tensor:
    """Part i, along ``dim``, of the sum of ``x`` over ``axis``, on coordinate i of the axis."""
    return _over("psum_scatter", x, axis, dim)


def ppermute(x: Any, axis: str, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """``x`` of the coordinate ``source`` of ``axis`` on ``target``, for each (source, target) of ``pairs``;
    zeros on a coordinate that is no target. Raises `InvalidArgumentError` for one that is twice a target.
    """
    mesh = _trace("ppermute").mesh
    size = mesh.shape[mesh.axis(axis)]
    sources = [-1] * size
    for source, target in pairs:
        if not (0 <= source < size and 0 <= target < size) or sources[target] >= 0:
            raise misuse(f"ppermute: expected pairs of 0 to {size - 1}, each target once; got {list(pairs)}")
        sources[target] = source
    return _over("ppermute", x, axis, sources=sources)


def axis_index(axis: str) -> Tensor:
    """The index of the coordinate on ``axis``: an int32 scalar."""
    trace = _trace("axis_index")
    return trace.indices[trace.mesh.axis(axis)]
