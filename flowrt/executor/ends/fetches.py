"""Parsing of fetches: nested structures of tensors, operations, variables and names."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.executor.ends.graph_elements import named_element
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.op_def import Effect
from flowrt.graph.source import user_line


class Fetches(NamedTuple):
    """The tensors of a fetch structure as they occur, its operations, and the way back to the structure."""

    tensors: tuple[Tensor, ...]
    targets: tuple[Operation, ...]
    rebuild: Callable[[list[Any]], Any]


def parse_fetches(graph: Graph, fetches: Any) -> Fetches:
    """``fetches`` resolved against ``graph``. Raises `DTypeError` for an element that cannot be fetched, with
    its position, `NotFoundError` for an unknown name, and `InvalidArgumentError` for resources and elements
    of other graphs.
    """
    tensors: list[Tensor] = []
    targets: dict[Operation, None] = {}

    def parse(item: Any, path: str) -> Callable[[list[Any]], Any]:
        if isinstance(item, (Tensor, Operation, str)) or hasattr(item, "_as_graph_element"):
            element = named_element(graph, item, path)
            if isinstance(element, Operation):
                targets[element] = None
                return lambda values: None
            if element.dtype is dtypes.resource:
                element = _read_of(graph, element)
            is_new = element.op.op_def.effect is Effect.WRITE  # each run makes it: then it is the caller's
            if element.dtype in (dtypes.resource, dtypes.variant) and not is_new:
                message = f"{path}: a {element.dtype.name} cannot be fetched"
                raise element.op.error(InvalidArgumentError, message)
            position = len(tensors)  # one for each occurrence: no two results share memory
            tensors.append(element)
            return lambda values: values[position]
        value_of = getattr(item, "fetched_as", None)  # an element of several tensors
        if value_of is not None:
            names = [name for name in value_of._fields if getattr(item, name) is not None]
            parts = [parse(getattr(item, name), path) for name in names]
            return lambda values: value_of(*[part(values) for part in parts])
        if isinstance(item, Mapping):
            rebuilds = {k: parse(v, f"{path}[{k!r}]") for k, v in item.items()}
            kind: Any = type(item)
            if isinstance(item, defaultdict):
                kind = functools.partial(kind, item.default_factory)
            return lambda values: kind((k, r(values)) for k, r in rebuilds.items())
        if isinstance(item, (list, tuple)):
            several = [parse(v, f"{path}[{i}]") for i, v in enumerate(item)]
            kind = type(item)
            if hasattr(item, "_fields"):
                return lambda values: kind(*[r(values) for r in several])
            return lambda values: kind([r(values) for r in several])
        raise DTypeError(
            f"{path}: expected a Tensor, Operation, variable, name or a structure of them; got {item!r}"
            f"{getattr(item, 'fetch_hint', '')}",
            source=user_line(),
        )

    rebuild = parse(fetches, "fetches")
    if type(fetches) is list and all(type(f) is Tensor for f in fetches):
        rebuild = list
    return Fetches(tuple(tensors), tuple(targets), rebuild)


def _read_of(graph: Graph, handle: Tensor) -> Tensor:
    """The value of a variable's ``handle``, for fetches of variables by name; other tensors unchanged."""
    read = graph.operations.get(f"{handle.op.name}/Read/ReadVariableOp")
    return handle if read is None else read.outputs[0]


_ELEMENTS = frozenset({Tensor, Operation, str})
"""Types that represent themselves, the most common ones, which are tested first."""


def structure_key(fetches: Any) -> Any:
    """A hashable key of a fetch structure: equal for equal structures of the same elements."""
    kind = type(fetches)
    if kind in _ELEMENTS:
        return fetches
    if kind is list or kind is tuple:
        return (kind, *map(structure_key, fetches))
    if kind is dict or isinstance(fetches, Mapping):
        return (kind, *[(k, structure_key(v)) for k, v in fetches.items()])
    if isinstance(fetches, (list, tuple)):  # a namedtuple
        return (kind, *map(structure_key, fetches))
    return fetches
