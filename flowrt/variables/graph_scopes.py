"""Scopes and collections of the default graph, as free functions under TensorFlow's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.source import misuse
from flowrt.graph.typing import TensorLike

__all__ = [
    "add_to_collection", "add_to_collections", "colocate_with", "container", "control_dependencies", "device",
    "get_collection", "get_collection_ref", "is_tensor", "name_scope", "op_scope",
]  # fmt: skip


class name_scope:
    """``with name_scope("layer") as scope:`` prefixes the names of new operations with a fresh ``layer/``.

    Args:
        name: The scope's name, made unique; None for ``default_name``.
        default_name: The name where ``name`` is None.
        values: Accepted for compatibility.

    Example:
        >>> with tf.name_scope('block'):
        ...     y = tf.constant(1.0, name='y')
        >>> y.name
        'block/y:0'
    """

    def __init__(self, name: str | None, default_name: str | None = None, values: Any = None) -> None:
        if name is None and values is not None and default_name is None:
            raise misuse("name_scope: expected a name or a default_name; got neither")
        self.name = default_name if name is None else name
        self._scope: AbstractContextManager[str] = get_default_graph().name_scope(self.name)

    def __enter__(self) -> str:
        return self._scope.__enter__()

    def __exit__(self, *ending: Any) -> None:
        self._scope.__exit__(*ending)


def op_scope(values: Any, name: str | None, default_name: str | None = None) -> name_scope:
    """`name_scope` with its arguments in an older order."""
    return name_scope(name, default_name, values)


def device(device_name_or_function: str | Callable[[Operation], Any] | None) -> AbstractContextManager[None]:
    """Place new operations: a (partial) device name is merged with the outer ones field by field; the inner
    scope wins.

    Args:
        device_name_or_function: A name, such as "/cpu:1" or "/job:worker/task:0"; a function of an operation
            that returns one; or None, which clears the outer scopes.

    Returns:
        A context manager.

    Raises:
        InvalidArgumentError: The name does not parse.

    Example:
        >>> with tf.device('/cpu:0'):
        ...     x = tf.constant(1.0)
        >>> x.device
        '/device:CPU:0'
    """
    return get_default_graph().device(device_name_or_function)


def control_dependencies(control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
    """Make new operations wait for others.

    Args:
        control_inputs: Operations, tensors and variables; None clears the outer scopes.

    Returns:
        A context manager.

    Example:
        >>> v = tf.Variable(1.0)
        >>> with tf.control_dependencies([v.assign(2.0)]):
        ...     after = tf.constant('done')
        >>> session.run(v.initializer)
        >>> session.run(after), session.run(v)
        (b'done', np.float32(2.0))
    """
    return get_default_graph().control_dependencies(control_inputs)


def colocate_with(op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
    """See `Graph.colocate_with`."""
    return get_default_graph().colocate_with(op, ignore_existing)


def container(container_name: str) -> AbstractContextManager[None]:
    """See `Graph.container`. `Session.reset` empties containers of a cluster; a session without a target owns
    all its variables.
    """
    return get_default_graph().container(container_name)


def add_to_collection(name: Any, value: Any) -> None:
    """Add a value to a collection of the default graph.

    Args:
        name: The collection's name: see `GraphKeys`.
        value: Any object.

    Example:
        >>> tf.add_to_collection('losses', tf.constant(1.0, name='penalty'))
        >>> [loss.op.name for loss in tf.get_collection('losses')]
        ['penalty']
    """
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: Any, value: Any) -> None:
    get_default_graph().add_to_collections(names, value)


def get_collection(key: Any, scope: str | None = None) -> list[Any]:
    """The members of a collection of the default graph.

    Args:
        key: The collection's name: see `GraphKeys`.
        scope: A regular expression: only members with names that begin with it.

    Returns:
        A new list.

    Example:
        >>> tf.add_to_collection('inputs', tf.zeros([2], name='x'))
        >>> [t.name for t in tf.get_collection('inputs')]
        ['x:0']
    """
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: Any) -> list[Any]:
    return get_default_graph().get_collection_ref(key)


def is_tensor(x: TensorLike) -> bool:
    """Whether ``x`` is a symbolic tensor or converts to one (a variable, sparse slices)."""
    return isinstance(x, Tensor) or hasattr(x, "__flowrt_tensor__")
