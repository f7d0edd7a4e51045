"""Resolution of session arguments to graph elements, with errors that name the argument."""

from __future__ import annotations

from typing import Any

from flowrt.errors import DTypeError, NotFoundError
from flowrt.graph.construction.graph import Graph
from flowrt.graph.op_def import nearest


def named_element(graph: Graph, item: Any, argument: str, allow_operation: bool = True) -> Any:
    """``item`` (a tensor, operation, variable or name) as the graph's Tensor or Operation.

    Raises as `Graph.as_graph_element`; for an unknown name or another type, the message begins with
    ``argument``.
    """
    try:
        return graph.as_graph_element(item, allow_operation=allow_operation)
    except NotFoundError:
        kind = "a tensor" if ":" in item or not allow_operation else "an operation"
        expected = f"{argument}: expected the name of {kind} of the graph; got {item!r}"
        hint = _hint(graph, item)
        raise NotFoundError(f"{expected}.{hint}" if hint else expected) from None
    except DTypeError as error:
        raise DTypeError(f"{argument}: {error.message}") from None


def _hint(graph: Graph, name: str) -> str:
    """The outputs of the operation that ``name`` begins with, or the operations of nearly that name."""
    op_name = name.rpartition(":")[0] or name
    op = graph.operations.get(op_name)
    return nearest(op_name, graph.operations) if op is None else nearest(name, [t.name for t in op.outputs])
