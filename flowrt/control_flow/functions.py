"""Checks of the Python functions passed to branches and loops, and of their captures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import Subgraph
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.source import misuse

# --- Python functions


def check_callable(what: str, name: str, function: Any) -> None:
    if not callable(function):
        raise misuse(f"{what}: expected {name} to be callable; got {function!r}", DTypeError)


def check_returned(what: str, function: Callable[..., Any], returned: Any) -> None:
    """Raise `DTypeError` if ``function``, an argument of ``what``, returned None."""
    if returned is None:
        message = f"{what}: expected a result of {described(function)}; got None. Missing return?"
        raise misuse(message, DTypeError)


def described(function: Callable[..., Any]) -> str:
    """A function's name and line, for errors: ``body() (train.py:12)``."""
    function = inspect.unwrap(function)
    name, code = getattr(function, "__name__", type(function).__name__), getattr(function, "__code__", None)
    return f"{name}()" if code is None else f"{name}() ({code.co_filename}:{code.co_firstlineno})"


# --- values that decide


def as_predicate(tensor: Tensor, what: str = "pred") -> Tensor:
    """``tensor`` as the bool scalar that decides. Raises `DTypeError` and `InvalidArgumentError`."""
    if tensor.dtype is not dtypes.bool_:
        raise misuse(f"{what}: expected a bool tensor; got {tensor!r}", DTypeError)
    return as_scalar(tensor, what)


def as_scalar(tensor: Tensor, what: str) -> Tensor:
    """``tensor``, of one element, as a scalar. Raises `InvalidArgumentError`."""
    shape = tensor.spec.shape
    if shape is not None and any(d not in (1, None) for d in shape):
        raise misuse(f"{what}: expected a scalar; got {tensor!r}")
    return tensor if shape == () else reshape(tensor, [])


# --- functions of the graph


def share_captures(graphs: Sequence[FuncGraph]) -> list[Tensor]:
    """Give all functions the same parameters, in the same order: the union of their captures."""
    captured = list(dict.fromkeys(tensor for graph in graphs for tensor in graph.captured()))
    for graph in graphs:
        own = graph.parameters[: len(graph.parameters) - len(graph.captured())]
        graph.parameters = own + [graph.capture(tensor) for tensor in captured]
    return captured


def control_captures(graphs: Sequence[FuncGraph]) -> list[Operation]:
    return list(dict.fromkeys(op for graph in graphs for op in graph.control_captures))


def without_placeholders(graph: FuncGraph, function: Subgraph) -> Subgraph:
    """``function`` of ``graph``. Raises `InvalidArgumentError` if it needs a placeholder, which no step could
    feed.
    """
    for node in function:
        if node.op.name == "Placeholder":
            raise graph.operations[node.name].error(
                InvalidArgumentError,
                f"expected a placeholder that a step can feed; got one created inside {graph.what}. Create"
                " it outside: the function captures it",
            )
    return function
