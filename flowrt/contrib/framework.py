"""``flowrt.contrib.framework``: default arguments for layers by `arg_scope`, and other names of things."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowrt import nest
from flowrt.contrib.assignments import (
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    assign_from_values,
    assign_from_values_fn,
    filter_variables,
    get_unique_variable,
)
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import get_default_graph
from flowrt.tf1.missing_names import missing_from
from flowrt.train.checkpoints.checkpoint_state import list_variables, load_checkpoint, load_variable
from flowrt.train.checkpoints.warm_start import init_from_checkpoint
from flowrt.train.optimizers.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
)
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable import GraphKeys, Variable
from flowrt.variables.variable import trainable_variables as get_trainable_variables

__all__ = [
    "add_arg_scope", "add_model_variable", "arg_scope", "assert_global_step", "create_global_step",
    "get_global_step",
    "get_local_variables", "get_model_variables", "get_or_create_global_step", "get_trainable_variables",
    "get_variable", "get_variables", "get_variables_to_restore", "has_arg_scope", "init_from_checkpoint",
    "list_variables", "load_checkpoint", "load_variable", "model_variable", "nest",
    "assign_from_checkpoint", "assign_from_checkpoint_fn", "assign_from_values", "assign_from_values_fn",
    "filter_variables", "get_unique_variable",
]  # fmt: skip

Defaults = dict[Any, dict[str, Any]]


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[Defaults] = [{}]


_scopes = _Scopes()


def add_arg_scope(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: the function takes its defaults from the open `arg_scope`."""

    @functools.wraps(func)
    def with_defaults(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **{**_scopes.stack[-1].get(with_defaults, {}), **kwargs})

    with_defaults._takes_defaults = True  # type: ignore[attr-defined]
    return with_defaults


def has_arg_scope(func: Any) -> bool:
    return hasattr(func, "_takes_defaults")


@contextmanager
def arg_scope(list_ops_or_scope: Sequence[Any] | Defaults, **kwargs: Any) -> Iterator[Defaults]:
    """Set ``kwargs`` as defaults of the given functions in this block, in addition to the enclosing scopes'.

    ``with arg_scope(scope):`` reopens the scope of an earlier ``with arg_scope(...) as scope``. Raises
    `InvalidArgumentError` for a function not decorated with `add_arg_scope`.
    """
    if isinstance(list_ops_or_scope, dict):
        if kwargs:
            raise InvalidArgumentError(
                "arg_scope: expected no further arguments with an existing scope; got some"
            )
        scope = list_ops_or_scope
    else:
        scope = {func: dict(found) for func, found in _scopes.stack[-1].items()}
        for func in list_ops_or_scope:
            if not has_arg_scope(func):
                raise InvalidArgumentError(
                    f"arg_scope: expected functions decorated with add_arg_scope; got {func!r}"
                )
            scope[func] = {**scope.get(func, {}), **kwargs}
    _scopes.stack.append(scope)
    try:
        yield scope
    finally:
        _scopes.stack.pop()


# --- variables


def model_variable(name: str, *args: Any, **kwargs: Any) -> Variable:
    """`get_variable` in the collection MODEL_VARIABLES too."""
    keys = [*(kwargs.get("collections") or [GraphKeys.GLOBAL_VARIABLES]), GraphKeys.MODEL_VARIABLES]
    return get_variable(name, *args, **{**kwargs, "collections": keys})


def get_variables(
    scope: Any = None, suffix: str | None = None, collection: str = GraphKeys.GLOBAL_VARIABLES
) -> list[Variable]:
    """The variables of a collection with names that begin with ``scope`` and end with ``suffix``."""
    found = get_default_graph().get_collection(collection, getattr(scope, "name", scope))
    return [v for v in found if suffix is None or v.op.name.endswith(suffix)]


def add_model_variable(var: Variable) -> None:
    """Add ``var`` to the collection of the model's variables, unless it is there."""
    graph = get_default_graph()
    if not any(each is var for each in graph.get_collection(GraphKeys.MODEL_VARIABLES)):
        graph.add_to_collection(GraphKeys.MODEL_VARIABLES, var)


def get_model_variables(scope: Any = None, suffix: str | None = None) -> list[Variable]:
    return get_variables(scope, suffix, GraphKeys.MODEL_VARIABLES)


def get_local_variables(scope: Any = None, suffix: str | None = None) -> list[Variable]:
    return get_variables(scope, suffix, GraphKeys.LOCAL_VARIABLES)


def get_variables_to_restore(include: Any = None, exclude: Any = None) -> list[Variable]:
    """The variables under the scopes ``include`` (all if None) without those under the scopes ``exclude``."""
    found = [v for scope in include or [None] for v in get_variables(scope)]
    left_out = {id(v) for scope in exclude or [] for v in get_variables(scope)}
    return [v for v in found if id(v) not in left_out]


__getattr__ = missing_from("contrib.framework")
