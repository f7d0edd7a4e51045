"""The global step: the one variable of a graph that counts training steps, in the collection GLOBAL_STEP."""

from __future__ import annotations

from typing import Any

from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.initializers import Zeros
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable import GraphKeys, Variable, VariableAggregation

__all__ = ["assert_global_step", "create_global_step", "get_global_step", "get_or_create_global_step"]


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """The graph's global step, or None.

    It is the one of the collection GLOBAL_STEP, else the global variable called "global_step". Raises
    `InvalidArgumentError` when there are several, and as `assert_global_step`.

    Example:
        >>> step = tf.train.create_global_step()
        >>> tf.train.get_global_step() is step
        True
    """
    graph = graph or get_default_graph()
    found = graph.get_collection(GraphKeys.GLOBAL_STEP)
    if len(found) > 1:
        names = ", ".join(v.name for v in found)
        raise InvalidArgumentError(
            f"collection {GraphKeys.GLOBAL_STEP!r}: expected one variable; got {names}"
        )
    if not found:
        found = [v for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES) if v.op.name == "global_step"]
    if not found:
        return None
    assert_global_step(found[0])
    return found[0]


def create_global_step(graph: Graph | None = None) -> Variable:
    """Make the graph's global step: "global_step", an int64 that begins at 0.

    Raises `InvalidArgumentError` when there is one already.
    """
    graph = graph or get_default_graph()
    existing = get_global_step(graph)
    if existing is not None:
        raise InvalidArgumentError(
            f"create_global_step: expected none yet; got {existing.name!r}, {existing.op.source}"
        )
    with graph.as_default(), graph.name_scope(None):
        return get_variable(
            "global_step",
            [],
            dtypes.int64,
            initializer=Zeros(),
            trainable=False,
            collections=[GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP],
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        )


def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """Return the graph's global step, creating it on first use.

    Args:
        graph: The graph; None for the default graph.

    Returns:
        An int64 variable, which optimizers count up.

    Example:
        >>> step = tf.train.get_or_create_global_step()
        >>> step.name, step is tf.train.get_or_create_global_step()
        ('global_step:0', True)
    """
    graph = graph or get_default_graph()
    existing = get_global_step(graph)
    return create_global_step(graph) if existing is None else existing


def assert_global_step(global_step_tensor: Any) -> None:
    """Raise `DTypeError` unless it is an integer variable or tensor, `InvalidArgumentError` unless scalar."""
    if not hasattr(global_step_tensor, "dtype") or not global_step_tensor.dtype.is_integer:
        raise DTypeError(f"global step: expected an integer variable; got {global_step_tensor!r}")
    shape = global_step_tensor.shape
    if shape.ndims not in (None, 0):
        raise InvalidArgumentError(
            f"global step: expected a scalar; got shape {shape} of {global_step_tensor.name!r}"
        )


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """The global step's value in ``sess``."""
    return int(sess.run(global_step_tensor))
