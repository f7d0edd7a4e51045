"""The tensors of a run that are looked at: all numbers that its fetches need."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flowrt.executor.ends.feeds import flat_feeds, resolve_feed
from flowrt.executor.ends.fetches import parse_fetches
from flowrt.graph.construction.graph import Graph, Operation, Tensor


class WatchOptions:
    """Regular expressions of the operations' names and types and the tensors' dtypes that are watched; None
    for all.
    """

    def __init__(
        self,
        debug_ops: Any = None,
        node_name_regex_whitelist: str | None = None,
        op_type_regex_whitelist: str | None = None,
        tensor_dtype_regex_whitelist: str | None = None,
        tolerate_debug_op_creation_failures: bool = False,
    ) -> None:
        self._name, self._type = node_name_regex_whitelist, op_type_regex_whitelist
        self._dtype = tensor_dtype_regex_whitelist

    def allows(self, tensor: Tensor) -> bool:
        given = {self._name: tensor.op.name, self._type: tensor.op.type, self._dtype: tensor.dtype.name}
        return all(pattern is None or re.match(pattern, text) for pattern, text in given.items())


def watched_tensors(
    graph: Graph, fetches: Any, feeds: Mapping[Any, Any] | None, options: WatchOptions
) -> list[Tensor]:
    """The numbers that are computed for ``fetches``, in the order of the graph, without what is fed."""
    parts = (part for item in (feeds or {}).items() for part, _ in flat_feeds(*item))
    fed = {resolve_feed(graph, part) for part in parts}
    wanted = parse_fetches(graph, [] if fetches is None else fetches)
    needed = set[Operation]()
    waiting = [*wanted.targets, *(tensor.op for tensor in wanted.tensors if tensor not in fed)]
    while waiting:
        operation = waiting.pop()
        if operation in needed:
            continue
        needed.add(operation)
        waiting += [tensor.op for tensor in operation.inputs if tensor not in fed]
        waiting += operation.control_inputs
    return [
        tensor
        for operation in graph.get_operations()
        if operation in needed
        for tensor in operation.outputs
        if tensor not in fed and _is_number(tensor) and options.allows(tensor)
    ]


def _is_number(tensor: Tensor) -> bool:
    dtype = tensor.dtype
    return bool(dtype.is_floating or dtype.is_complex or dtype.is_integer or dtype.is_bool)
