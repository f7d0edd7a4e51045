"""`make_template`: a function that makes its variables at its first call and shares them at later ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.source import misuse
from flowrt.variables.variable import GraphKeys, Variable
from flowrt.variables.variable_scope import VariableScope, unique_scope_name, unscoped, variable_scope


class Template:
    """See `make_template`."""

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        create_scope_now: bool,
        unique_name: str | None,
        custom_getter: Any,
    ) -> None:
        if not name:
            raise misuse(f"make_template: expected a name; got {name!r}")
        self.name, self.func = name, func
        self._unique_name, self._custom_getter = unique_name, custom_getter
        self._scope: VariableScope | None = None
        self._called = False
        if create_scope_now:
            with unscoped(unique_name or unique_scope_name(name), custom_getter) as scope:
                self._scope = scope

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, sharing its variables. Raises its errors; then the next call is the first."""
        if self._scope is not None:
            with variable_scope(self._scope, reuse=True if self._called else None):
                return self._call(args, kwargs)
        with variable_scope(self._unique_name, self.name, custom_getter=self._custom_getter) as scope:
            result = self._call(args, kwargs)
        self._scope = scope
        return result

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trainable = get_default_graph().get_collection_ref(GraphKeys.TRAINABLE_VARIABLES)
        before = len(trainable)
        result = self.func(*args, **kwargs)
        if self._called and len(trainable) > before:
            names = ", ".join(v.name for v in trainable[before:])
            raise misuse(
                f"template {self.name!r}: expected no new variables after the first call; got {names}. "
                "Make them with get_variable"
            )
        self._called = True
        return result

    @property
    def variable_scope(self) -> VariableScope | None:
        """The scope of its variables, or None before the first call."""
        return self._scope

    var_scope = variable_scope

    @property
    def variable_scope_name(self) -> str | None:
        return None if self._scope is None else self._scope.name

    @property
    def global_variables(self) -> list[Variable]:
        return [] if self._scope is None else self._scope.global_variables()

    @property
    def local_variables(self) -> list[Variable]:
        return [] if self._scope is None else self._scope.local_variables()

    @property
    def variables(self) -> list[Variable]:
        return self.global_variables + self.local_variables

    @property
    def trainable_variables(self) -> list[Variable]:
        return [] if self._scope is None else self._scope.trainable_variables()


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Any = None,
    **kwargs: Any,
) -> Template:
    """``func_`` with ``kwargs`` bound; its `get_variable` calls create variables in the first call and share
    them later.

    The variables' scope is ``unique_name_``, or ``name_`` made unique at the first call (or immediately with
    ``create_scope_now_``). A later call that would create a variable raises `InvalidArgumentError`.
    """
    function = partial(func_, **kwargs) if kwargs else func_
    return Template(name_, function, create_scope_now_, unique_name_, custom_getter_)
