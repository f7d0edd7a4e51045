"""``vectorized_map``: a function of one element, vectorized over all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from flowrt.base.structure import Structure, flatten, pack_as
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.functions.functional_ops import Rows, map_fn
from flowrt.graph.construction.batching_rules import Value
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.functions.batching import Batching, Each, has_rule
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect
from flowrt.graph.source import user_line


def vectorized_map(
    fn: Callable[[Any], Any], elems: Structure, fallback_to_while_loop: bool = True, warn: bool = True
) -> Structure:
    """`map_fn` without a loop: each operation that ``fn`` creates is replaced by one over all rows.

    ``elems`` is a structure of tensors ``[n, ...]``; ``fn`` is called once, with a structure like it of rows,
    and may return any structure of tensors. Parts that do not depend on the row are computed once; random
    draws and effects (prints, Python calls, writes) happen once per row, each for all rows before the next
    operation of ``fn``.

    An operation that cannot be replaced runs in a loop over the rows, with one warning if ``warn``. Without
    ``fallback_to_while_loop`` that raises `InvalidArgumentError`; also raises the errors of `map_fn` for
    elems.

    Example:
        >>> rows = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> tf.vectorized_map(lambda row: tf.reduce_sum(row * row), rows).eval()
        array([ 5., 25.], dtype=float32)
    """
    with get_default_graph().name_scope("vectorized_map"):
        rows = Rows("vectorized_map", fn, elems)
        looped: dict[str, None] = {}
        each = _allowing(looped) if fallback_to_while_loop else _refuse
        row_function = lambda *row: fn(pack_as(elems, row))  # noqa: E731
        found: Structure = vectorize(row_function, rows.tensors, rows.length, each)
    if looped and warn:
        message = f"vectorized_map: these operations run in a loop over the rows: {', '.join(looped)}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return found


def vectorize(fn: Callable[..., Structure], batches: Sequence[Tensor], size: Any, each: Each) -> Structure:
    """``fn`` of each row of ``batches``, stacked; None among its results stays. ``size`` is the number of
    rows, an int or an int32 scalar; ``each`` makes loops.
    """
    graph = get_default_graph()
    rows = [
        placeholder(t.dtype, None if (dims := t.spec.shape) is None else dims[1:], "row") for t in batches
    ]
    with _as_they_are(rows) as template:
        returned = fn(*rows)
        leaves = [None if leaf is None else convert_to_tensor(leaf) for leaf in flatten(returned)]
        values = {row: Value(batch, True) for row, batch in zip(rows, batches, strict=True)}
        batching = Batching(size, values, template(), each)
        results = iter(batching([graph.as_graph_element(leaf) for leaf in leaves if leaf is not None]))
        return pack_as(returned, [None if leaf is None else batching.whole(next(results)) for leaf in leaves])


@contextmanager
def _as_they_are(rows: Sequence[Tensor]) -> Iterator[Callable[[], set[Operation]]]:
    """Yield a function that returns the operations built since: the template. Operations that own functions
    are restored at the end.

    Such an operation computes tangents itself, with more inputs and outputs. If these depend on a row, it
    belongs to the template, so that a copy of it computes them.
    """
    graph, sources = get_default_graph(), {row.op for row in rows}
    operations = graph.get_operations()
    owners = [_Owner(op, op.node) for op in operations if op.op_def.effect is Effect.NESTED]

    def template() -> set[Operation]:
        made = {*graph.get_operations()[len(operations) :]}
        return made | {owner.op for owner in owners if owner.reads(made | sources)}

    try:
        yield template
    finally:
        made = template()
        for owner in owners:
            if owner.op in made:
                owner.op.retract(owner.node)


class _Owner(NamedTuple):
    """An operation that owns functions, as it was."""

    op: Operation
    node: Node

    def reads(self, made: Collection[Operation]) -> bool:
        return self.op.node is not self.node and any(t.op in made for t in self.op.inputs)


def loop(
    _: Sequence[Operation],
    fn: Callable[[list[Tensor]], list[Tensor]],
    batches: list[Tensor],
    kinds: list[DType],
) -> list[Tensor]:
    """Run operations without a rule in a loop."""
    return map_fn(fn, batches, dtype=kinds)


def _allowing(looped: dict[str, None]) -> Each:
    """`loop`, which notes the types of the operations."""

    def each(ops: Sequence[Operation], *rest: Any) -> list[Tensor]:
        looped.update(dict.fromkeys(_without_rule(ops)))
        return loop(ops, *rest)

    return each


def _refuse(ops: Sequence[Operation], *_: Any) -> list[Tensor]:
    names = ", ".join(dict.fromkeys(_without_rule(ops)))
    message = f"vectorized_map: expected operations that can be vectorized; got {names}. Use"
    message += " fallback_to_while_loop=True"
    raise InvalidArgumentError(message, op=ops[0].name, op_type=ops[0].type, source=user_line())


def _without_rule(ops: Sequence[Operation]) -> list[str]:
    """The types of those that made the loop necessary: one may have a rule that has no way for its inputs."""
    types = [op.type for op in ops]
    return [op.type for op in ops if op.inputs and not has_rule(op.op_def)] or types
