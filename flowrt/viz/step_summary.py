"""Sums over a step by name scope: parameters, floating-point operations, bytes of results.

    scope   operations  parameters             state    FLOP   results
    (all)          124      62,250  243 KiB  486 KiB   359 M  7.74 MiB
    conv1            5         320  1.25 KiB  2.5 KiB  2.62 M   1.5 MiB

The operations are those that run, after the optimisation of the step. Products and convolutions count two
floating-point operations for each pair of factors; operations that only move elements, none; others, also
updates by optimizers, one for each number in the largest tensor that they read or compute. A loop's body and
both branches of a ``cond`` count once: how often they run is known only at run time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.errors import InvalidArgumentError
from flowrt.executor.analysis.cost import node_cost
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.graph import Graph
from flowrt.graph.node import Node, Subgraph, TensorSpec, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.shapes import as_shape, num_elements
from flowrt.profiler.text_table import aligned, size_text
from flowrt.variables.variable import GraphKeys
from flowrt.viz.compile_request import CompileRequest
from flowrt.viz.sources import source_of

ALL = "(all)"
"""The name of the row of everything."""


class ScopeSummary(NamedTuple):
    """Sums over the operations in ``scope`` and below: the number of operations that run, the elements and
    bytes of trained variables, the bytes of others (an optimizer's slots), floating-point operations, and the
    bytes of results of known shape. Where nothing is known of training, all variables are parameters.
    """

    scope: str
    operations: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    state_bytes: int = 0
    flops: float = 0.0
    result_bytes: int = 0

    def plus(self, other: ScopeSummary) -> ScopeSummary:
        """The sums of both, under this one's name."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in self._fields[1:]}
        return self._replace(**sums)


def step_summary(
    what: BaseSession | Graph | CompileRequest | str | os.PathLike[str],
    fetches: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
    depth: int = 1,
) -> list[ScopeSummary]:
    """The rows of a step of ``what`` (see `flowrt.viz.sources.source_of`): everything, then scopes of up to
    ``depth`` parts, each before those in it. An operation of which a scope has the name, such as ``Mean``, is
    in it. Nothing runs. Raises as `flowrt.viz.export`.
    """
    (step,) = source_of(what, fetches, feed_dict).parts("placed").values()
    if type(depth) is not int or depth < 1:
        raise InvalidArgumentError(f"depth: expected an integer >= 1; got {depth!r}")
    rows = {ALL: ScopeSummary(ALL)}
    trained = _trained(what)
    scopes = {parent for node in step for parent in _parents(node.name)}
    for node in step:
        own = _of_node(step, node, trained)
        scope = node.name if node.name in scopes else node.name.rpartition("/")[0]
        parts = scope.split("/")[:depth] if scope else []
        for name in (ALL, *["/".join(parts[: i + 1]) for i in range(len(parts))]):
            rows[name] = rows.get(name, ScopeSummary(name)).plus(own)
    return [rows.pop(ALL), *[rows[name] for name in _in_order(rows)]]


def summary_table(rows: Sequence[ScopeSummary]) -> str:
    """The rows as a table; a scope stands below the one around it."""
    head = ("scope", "operations", "parameters", "", "state", "FLOP", "results")
    cells = [
        (
            "  " * row.scope.count("/") + row.scope.rpartition("/")[2],
            f"{row.operations:,}",
            f"{row.parameters:,}" if row.parameters else "",
            size_text(row.parameter_bytes) if row.parameters else "",
            size_text(row.state_bytes) if row.state_bytes else "",
            _count_text(row.flops),
            size_text(row.result_bytes),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    right = [[row[0], *map(str.rjust, row[1:], widths[1:])] for row in (head, *cells)]
    return "\n".join(aligned(right))


def _parents(name: str) -> Iterator[str]:
    """The scopes around ``name``: of ``a/b/c``, ``a/b`` and ``a``."""
    while name := name.rpartition("/")[0]:
        yield name


def _trained(what: object) -> frozenset[str]:
    """The names of the trained variables' handles; none if ``what`` does not tell."""
    graph = what if isinstance(what, Graph) else getattr(what, "graph", None)
    collected = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES) if isinstance(graph, Graph) else ()
    return frozenset(variable.op.name for variable in collected)


def _of_node(step: Subgraph, node: Node, trained: frozenset[str]) -> ScopeSummary:
    """The node's own, and that of the functions that it owns."""
    if node.op.effect is Effect.HANDLE and "shape" in node.attrs:
        spec = TensorSpec(node.attrs["dtype"], as_shape(node.attrs["shape"]))
        if trained and node.name not in trained:
            return ScopeSummary("", state_bytes=_nbytes(spec))
        return ScopeSummary("", parameters=num_elements(spec.shape) or 0, parameter_bytes=_nbytes(spec))
    results = sum(map(_nbytes, node.outputs))
    own = ScopeSummary("", operations=1, flops=_flops(step, node), result_bytes=results)
    for function in owned_subgraphs(node.attrs):
        for each in function:
            own = own.plus(_of_node(function, each, trained))
    return own


def _flops(step: Subgraph, node: Node) -> float:
    """The floating-point operations, as the module counts them; unknown dimensions are zero."""
    op = node.op
    if op.cost is not None:
        return node_cost(step, node)
    is_update = op.effect is Effect.WRITE and any(argument.name == "grad" for argument in op.inputs)
    if not (is_update or op.effect is Effect.PURE) or op.alias or op.narrows or not node.inputs:
        return 0.0
    numbers = [spec for spec in (*map(step.spec, node.inputs), *node.outputs) if spec.dtype.is_floating]
    return float(max([num_elements(spec.shape) or 0 for spec in numbers], default=0))


def _nbytes(spec: TensorSpec) -> int:
    return (num_elements(spec.shape) or 0) * spec.dtype.np.itemsize


def _in_order(names: Mapping[str, object]) -> Iterator[str]:
    """The names in the order of first appearance, each followed by those in it."""
    order = {name: i for i, name in enumerate(names)}

    def key(name: str) -> list[int]:
        parts = name.split("/")
        return [order["/".join(parts[: i + 1])] for i in range(len(parts))]

    return iter(sorted(names, key=key))


def _count_text(count: float) -> str:
    """``13.2 M``: three digits."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 999.5:
            return f"{count:.3g} {unit}".rstrip()
        count /= 1000
    return f"{count:.3g} P"
