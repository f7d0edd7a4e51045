"""`variable_scope`: a prefix of variables' names, and defaults for the `get_variable` calls in it.

Rules of this file:
  1. Inner scopes inherit what they do not set. ``reuse`` is never undone: inside a reusing scope everything
     reuses.
  2. Entering a variable scope also opens a new name scope of that name for operations:
     variables stay "scope/w", operations of the second entry are "scope_1/...".
  3. A graph has one `VariableStore`; the open scope, and the counts that make default names unique, belong to
     (thread, graph).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from flowrt.dtypes import DTypeLike, as_dtype, float32
from flowrt.errors import DTypeError
from flowrt.graph.construction.graph import Graph, Tensor, get_default_graph
from flowrt.graph.source import misuse
from flowrt.variables.variable import GraphKeys, Variable

__all__ = [
    "AUTO_REUSE", "get_variable_scope", "no_regularizer", "variable_op_scope", "variable_scope",
    "VariableScope",
]  # fmt: skip


class _Reuse(Enum):
    """Share a variable if it exists, make it if it does not."""

    AUTO_REUSE = "auto"


AUTO_REUSE = _Reuse.AUTO_REUSE


class VariableScope:
    """A prefix of variables' names, and the defaults of the `get_variable` calls in it. See `variable_scope`.

    ``original_name_scope`` is the name scope (with a trailing ``/``) that was opened with it first.
    """

    def __init__(
        self,
        reuse: Any,
        name: str = "",
        initializer: Any = None,
        regularizer: Any = None,
        caching_device: Any = None,
        partitioner: Any = None,
        custom_getter: Any = None,
        name_scope: str = "",
        dtype: DTypeLike = float32,
        use_resource: bool | None = None,
        constraint: Any = None,
    ) -> None:
        self.name, self.reuse, self.original_name_scope = name, reuse, name_scope
        self.initializer, self.regularizer, self.constraint = initializer, regularizer, constraint
        self.caching_device, self.partitioner, self.custom_getter = caching_device, partitioner, custom_getter
        self.dtype, self.use_resource = as_dtype(dtype), use_resource

    def reuse_variables(self) -> None:
        """Make the scope share only existing variables from here on."""
        self.reuse = True

    def set_initializer(self, initializer: Any) -> None:
        self.initializer = initializer

    def set_dtype(self, dtype: DTypeLike) -> None:
        self.dtype = as_dtype(dtype)

    def set_use_resource(self, use_resource: bool) -> None:
        self.use_resource = use_resource

    def set_regularizer(self, regularizer: Any) -> None:
        self.regularizer = regularizer

    def set_caching_device(self, caching_device: Any) -> None:
        self.caching_device = caching_device

    def set_partitioner(self, partitioner: Any) -> None:
        self.partitioner = partitioner

    def set_custom_getter(self, custom_getter: Any) -> None:
        self.custom_getter = custom_getter

    def get_collection(self, name: Any) -> list[Any]:
        """The items of the collection with names that begin with the scope's."""
        return get_default_graph().get_collection(name, f"{self.name}/" if self.name else None)

    def trainable_variables(self) -> list[Variable]:
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)

    def global_variables(self) -> list[Variable]:
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def local_variables(self) -> list[Variable]:
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def derive(self, name: str, name_scope: str, **changes: Any) -> VariableScope:
        """A copy under another name, with the changes that are not None."""
        fields = {
            key: value for key, value in vars(self).items() if key not in ("name", "original_name_scope")
        }
        getter = changes.pop("custom_getter", None)
        fields.update({key: value for key, value in changes.items() if value is not None})
        if getter is not None:
            fields["custom_getter"] = nested_getter(getter, self.custom_getter)
        return VariableScope(name=name, name_scope=name_scope, **fields)

    def __repr__(self) -> str:
        return f"<flowrt.VariableScope {self.name!r} reuse={self.reuse}>"


def nested_getter(inner: Any, outer: Any) -> Any:
    """``inner`` around ``outer``: the inner one's ``getter`` is the outer one around the true getter."""
    if outer is None:
        return inner

    def nested(getter: Any, *args: Any, **kwargs: Any) -> Any:
        return inner(partial(outer, getter), *args, **kwargs)

    return nested


class OpenScopes(NamedTuple):
    """The state of a thread's open scope, to be continued by another thread."""

    scope: VariableScope
    counts: dict[str, int]


class _Current(threading.local):
    """A thread's open scope on one graph, and how often each scope name was opened in its parent."""

    def __init__(self) -> None:
        self.scope = VariableScope(reuse=False)
        self.counts: dict[str, int] = {}

    def copy(self) -> OpenScopes:
        return OpenScopes(self.scope, dict(self.counts))

    def become(self, scopes: OpenScopes) -> None:
        self.scope, self.counts = scopes.scope, dict(scopes.counts)

    def unique(self, prefix: str) -> str:
        """``prefix``, or the first of ``prefix_1``, ... that no scope in the current one has."""
        outer = f"{self.scope.name}/" if self.scope.name else ""
        name, number = prefix, 0
        while self.counts.get(outer + name, 0):
            number += 1
            name = f"{prefix}_{number}"
        return name

    def open(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def close_inner(self, name: str) -> None:
        """Remove the counts of the scopes inside ``name``: on re-entry their default names restart."""
        for key in self.counts:
            if key.startswith(f"{name}/"):
                self.counts[key] = 0


class VariableStore:
    """A graph's variables by full name, and its threads' scopes."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.current = _Current()
        self.lock = threading.RLock()


_STORE = object()  # a collection name that scripts cannot use


def variable_store(graph: Graph | None = None) -> VariableStore:
    collection = (graph or get_default_graph()).get_collection_ref(_STORE)
    if not collection:
        collection.append(VariableStore())
    return collection[0]


def get_variable_scope() -> VariableScope:
    """The open variable scope; at the top the root scope, with an empty name.

    Returns:
        A `VariableScope`.

    Example:
        >>> with tf.variable_scope('layer'):
        ...     name = tf.get_variable_scope().name
        >>> name
        'layer'
    """
    return variable_store().current.scope


def no_regularizer(_: Any) -> None:
    """A regularizer that adds nothing: stops an outer scope's from being used."""


# --- scopes


@contextlib.contextmanager
def variable_scope(
    name_or_scope: Any,
    default_name: str | None = None,
    values: Sequence[Any] | None = None,
    initializer: Any = None,
    regularizer: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    reuse: Any = None,
    dtype: DTypeLike | None = None,
    use_resource: bool | None = None,
    constraint: Any = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Open a variable scope, in which `get_variable` finds variables by name.

    Args:
        name_or_scope: A name, which extends the open scope's; a `VariableScope` to re-enter; or None.
        default_name: A name, made unique, that is used where ``name_or_scope`` is None.
        values: Tensors, of which the graph is used.
        initializer: The initializer of variables that name none.
        regularizer: The regularizer of variables that name none.
        custom_getter: A function that is called instead of creating a variable, as for `get_variable`.
        reuse: True to share existing variables, `AUTO_REUSE` to create missing ones, None as the outer scope.
        dtype: The dtype of variables that name none.
        auxiliary_name_scope: Whether a name scope is opened too.

    Returns:
        A context manager, of which the value is the `VariableScope`.

    Raises:
        InvalidArgumentError: The arguments contradict each other, or the scope.
        DTypeError: An argument has the wrong type.

    Example:
        >>> with tf.variable_scope('outer'), tf.variable_scope('inner'):
        ...     v = tf.get_variable('v', [1])
        >>> v.name
        'outer/inner/v:0'
    """
    if name_or_scope is None and default_name is None:
        raise misuse("variable_scope: expected name_or_scope or default_name; got None for both")
    if reuse not in (None, False, True, AUTO_REUSE):
        raise misuse(f"variable_scope: expected reuse True, False, None or AUTO_REUSE; got {reuse!r}")
    if name_or_scope is None and reuse:
        raise misuse(
            "variable_scope: expected name_or_scope with reuse; got None: default names are new ones"
        )
    if name_or_scope is not None and not isinstance(name_or_scope, (str, VariableScope)):
        raise misuse(f"variable_scope: expected a name or a VariableScope; got {name_or_scope!r}", DTypeError)
    changes = {
        "initializer": initializer,
        "regularizer": regularizer,
        "caching_device": caching_device,
        "partitioner": partitioner,
        "custom_getter": custom_getter,
        "dtype": dtype,
        "use_resource": use_resource,
        "constraint": constraint,
        "reuse": reuse or None,
    }
    graph = _graph_of(values)
    with contextlib.nullcontext() if graph is get_default_graph() else graph:
        current = variable_store(graph).current
        if isinstance(name_or_scope, VariableScope):
            target = name_or_scope
            with _name_scope(graph, target.name.rpartition("/")[2], auxiliary_name_scope):
                with _jump(current, target, changes) as scope:
                    yield scope
            return
        asked = str(name_or_scope if name_or_scope is not None else default_name)
        with _name_scope(graph, asked, auxiliary_name_scope) as name_scope:
            name = asked if name_or_scope is not None else current.unique(asked)
            with _extend(current, name, name_scope, changes) as scope:
                yield scope


def _graph_of(values: Sequence[Any] | None) -> Graph:
    current = get_default_graph()
    for value in values or ():
        if isinstance(value, (Tensor, Variable)):
            return value.graph.building
    return current


@contextlib.contextmanager
def _name_scope(graph: Graph, name: str, wanted: bool) -> Iterator[str]:
    """A fresh name scope; the open one as it is when none is wanted or the name is empty."""
    if wanted and name:
        with graph.name_scope(name) as opened:
            yield opened
    else:
        open_scope = graph.get_name_scope()
        yield f"{open_scope}/" if open_scope else ""


@contextlib.contextmanager
def _extend(
    current: _Current, name: str, name_scope: str, changes: dict[str, Any]
) -> Iterator[VariableScope]:
    """Open ``name`` inside the open scope. Reusing outer scopes stay so."""
    outer = current.scope
    full = "/".join(filter(None, (outer.name, name)))
    scope = outer.derive(full, name_scope, **changes)
    current.open(full)
    current.scope = scope
    try:
        yield scope
    finally:
        current.close_inner(full)
        current.scope = outer


@contextlib.contextmanager
def _jump(current: _Current, target: VariableScope, changes: dict[str, Any]) -> Iterator[VariableScope]:
    """Re-enter ``target`` from any open scope; names opened meanwhile do not count afterwards."""
    outer, counts = current.scope, dict(current.counts)
    scope = target.derive(target.name, target.original_name_scope, **changes)
    current.open(target.name)
    current.scope = scope
    try:
        yield scope
    finally:
        current.counts = {**counts, target.name: counts.get(target.name, 0) + 1}
        current.scope = outer


@contextlib.contextmanager
def variable_op_scope(
    values: Sequence[Any], name_or_scope: Any, default_name: str | None = None, **options: Any
) -> Iterator[VariableScope]:
    """`variable_scope` with its oldest order of arguments."""
    with variable_scope(name_or_scope, default_name, values, **options) as scope:
        yield scope


@contextlib.contextmanager
def unscoped(name: str, custom_getter: Any = None) -> Iterator[VariableScope]:
    """A variable scope without a name scope: it prefixes names of variables, not of operations."""
    store = variable_store()
    graph = get_default_graph()
    with _extend(store.current, name, graph.get_name_scope(), {"custom_getter": custom_getter}) as scope:
        yield scope


def unique_scope_name(prefix: str) -> str:
    """``prefix`` as `variable_scope` would make it unique as a default name."""
    return variable_store().current.unique(prefix)
