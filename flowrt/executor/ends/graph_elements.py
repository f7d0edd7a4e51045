"""Resolution of session arguments to graph elements, with errors that name the argument."""

from __future__ import annotations

from typing import Any

from flowrt.errors import DTypeError, NotFoundError, UnknownElementError, nearest
from flowrt.graph.construction.graph import Graph
from flowrt.graph.source import user_line


def named_element(graph: Graph, item: Any, argument: str, allow_operation: bool = True) -> Any:
    """``item`` (a tensor, operation, variable or name) as the graph's Tensor or Operation.

    Raises as `Graph.as_graph_element`; for an unknown name an `UnknownElementError`, for another type a
    `DTypeError`, in messages that begin with ``argument``.
    """
    try:
        return graph.as_graph_element(item, allow_operation=allow_operation)
    except NotFoundError:
        is_tensor = ":" in item or not allow_operation
        kind = "a tensor" if is_tensor else "an operation"
        expected = f"{argument}: expected the name of {kind} of the graph; got {item!r}"
        hint = _hint(graph, item, is_tensor)
        raise UnknownElementError(f"{expected}.{hint}" if hint else expected, source=user_line()) from None
    except DTypeError as error:
        raise DTypeError(f"{argument}: {error.message}", source=user_line()) from None


def _hint(graph: Graph, name: str, is_tensor: bool) -> str:
    """Tensors with names similar to ``name``, first of the operation that it begins with, or operations."""
    op_name, _, index = name.rpartition(":") if ":" in name else (name, "", "0")
    op = graph.operations.get(op_name)
    if op is None and not is_tensor:
        return nearest(name, graph.operations)
    producers = graph.get_operations() if op is None else [op]
    return nearest(f"{op_name}:{index}", (t.name for producer in producers for t in producer.outputs))
