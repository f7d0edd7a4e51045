"""The reference interpreter: runs a node's kernel on NumPy arrays, one node at a time.

Constant folding uses it, and tests compare every other way of running a graph with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError, OpError, ResourceExhaustedError, UnknownError
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import BY_EXECUTOR, Effect, OpDef
from flowrt.graph.partial_value import as_host_value


def kernel_arguments(op: OpDef, values: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Kernel arguments, one per input of the signature: lists as tuples, host inputs as Python values."""
    arguments: list[Any] = []
    position = 0
    for argument in op.inputs:
        if not argument.is_list:
            value = values[position]
            arguments.append(as_host_value(np.asarray(value)) if argument.on_host else value)
            position += 1
            continue
        key = argument.number_attr or argument.type_attr or ""
        count = attrs[key] if argument.number_attr else len(attrs[key])
        items = tuple(values[position : position + count])
        arguments.append(tuple(as_host_value(np.asarray(v)) for v in items) if argument.on_host else items)
        position += count
    return tuple(arguments)


def evaluate_node(
    node: Node, values: Sequence[Any], state: Any = None, xp: Any = np, out: Any = None
) -> list[Any]:
    """The outputs of ``node`` for the given input values, as arrays of the declared dtypes; a single one in
    ``out``, if it is given and the kernel takes it.

    Raises what the kernel raises as a typed error that names the node; `InvalidArgumentError` if the
    operation needs a ``state`` and none is given.
    """
    op = node.op
    if op.name == "Const":
        return [node.attrs["value"]]
    attrs = {key: node.attrs[key] for key in op.kernel_attrs}
    if op.kernel is BY_EXECUTOR or (op.state is not None and state is None):
        raise InvalidArgumentError(
            "has no kernel or needs state: run it in a session", op=node.name, op_type=op.name
        )
    if op.state is not None:
        attrs["state"] = state
    if out is not None and op.takes_out and len(node.outputs) == 1:
        attrs["out"] = out
    try:
        with np.errstate(all="ignore"):
            result = op.kernel(xp, *kernel_arguments(op, values, node.attrs), **attrs)
    except OpError as error:
        raise located(node, error) from error.__cause__
    except Exception as error:
        raise located(node, error) from error
    if not op.outputs:
        return []
    return list(result) if len(node.outputs) != 1 or op.outputs[0].is_list else [result]


def located(node: Node, error: Exception, inputs: str = "") -> OpError:
    """``error`` as a typed error that names ``node``, its op type and the user's source line."""
    source = None if node.source is None else str(node.source)
    if isinstance(error, OpError):
        if error.op is not None:
            return error
        named = type(error)(error.message + inputs, op=node.name, op_type=node.op.name, source=source)
        named.origin = error.origin
        return named
    if isinstance(error, MemoryError):
        return ResourceExhaustedError(
            f"out of memory: {error}", op=node.name, op_type=node.op.name, source=source
        )
    if isinstance(error, (ValueError, IndexError, np.linalg.LinAlgError)):
        return InvalidArgumentError(f"{error}{inputs}", op=node.name, op_type=node.op.name, source=source)
    text = f"{type(error).__name__}: {error}{inputs}"
    return UnknownError(text, op=node.name, op_type=node.op.name, source=source)


def evaluate(
    subgraph: Subgraph, feeds: Mapping[str, Any], state: Callable[[Node], Any] | None = None
) -> list[Any]:
    """The fetched values of ``subgraph``. ``feeds`` maps source nodes to values by name; ``state`` returns a
    node's resource.
    """
    values: dict[Ref, Any] = {(name, 0): np.asarray(value) for name, value in feeds.items()}
    for node in subgraph:
        if node.name not in feeds:
            resource = state(node) if state is not None and node.op.state is not None else None
            for index, value in enumerate(evaluate_node(node, [values[r] for r in node.inputs], resource)):
                is_live = (
                    node.op.effect is Effect.READ
                )  # the resource's own memory, which a later node may change
                values[node.name, index] = np.array(value) if is_live else value
    return [values[ref] for ref in subgraph.fetches]
