"""Slots: variables that an optimizer keeps for each variable that it trains, such as its momentum."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from flowrt.dtypes import as_dtype
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.layouts.attributes import MEMORY, STATES, attributes_of_slot
from flowrt.graph.layouts.memory_places import next_number, numbered, place_of
from flowrt.graph.ops.base.filling import zeros, zeros_like
from flowrt.variables.variable import Variable
from flowrt.variables.variable_scope import get_variable_scope

__all__ = ["create_slot", "create_zeros_slot"]


OPTIMIZER_VARIABLES = ("optimizers", "variables")
"""The collection of slots, and of the other variables of optimizers."""


def create_slot(
    primary: Variable, val: Callable[[], Any] | Any, name: str, colocate_with_primary: bool = True
) -> Variable:
    """A slot of ``primary`` with the initial value ``val``, named ``primary/name`` in the variable scope."""
    graph = primary.graph
    full_name = "/".join(filter(None, (get_variable_scope().name, primary.op.name, name)))
    is_static = primary.shape.is_fully_defined()
    with contextlib.ExitStack() as scopes:
        if colocate_with_primary:
            scopes.enter_context(graph.colocate_with(primary.op, ignore_existing=True))
        scopes.enter_context(graph.name_scope(None))
        slot = Variable(val, trainable=False, name=full_name, validate_shape=is_static)
    graph.add_to_collection(OPTIMIZER_VARIABLES, slot)
    if is_static and slot.shape.as_list() == primary.shape.as_list():
        attrs = attributes_of_slot(slot.op.node.attrs, primary.op.node.attrs)
        slot.op.mutate(attrs={**attrs, **_place_of_next(primary)})
    return slot


def _place_of_next(primary: Variable) -> dict[str, str]:
    """The attribute that gives a new slot its place with others, if there are any. The slot after it has the
    same place in the next memory.
    """
    node = primary.op.node
    place = place_of(node.attrs, STATES)
    if place is None:
        return {}
    after = numbered(place, next_number(node) + 1)
    primary.op.mutate(attrs={**node.attrs, STATES: str(after)})
    return {MEMORY: str(place)}


def create_zeros_slot(
    primary: Variable, name: str, dtype: Any = None, colocate_with_primary: bool = True
) -> Variable:
    """A slot of ``primary`` that begins as zeros of its shape."""
    return create_slot(primary, lambda: zeros_of(primary, dtype), name, colocate_with_primary)


def zeros_of(variable: Variable, dtype: Any = None) -> Tensor:
    """Zeros of the shape of ``variable``, which may be known only when its initializer runs."""
    wanted = variable.dtype if dtype is None else as_dtype(dtype)
    if variable.shape.is_fully_defined():
        return zeros(variable.shape, wanted)
    return zeros_like(variable.initialized_value(), wanted)
