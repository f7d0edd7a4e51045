"""Ops that only nodes being imported have, each with a function of tensors in its place.

A rule of `flowrt.tf1.graph_import.op_adapters` writes nodes before anything is known of their tensors. Here
shapes are known, and values of constants: the function is called when the node is added to the graph. Its
gradient is that of the operations that it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from flowrt import dtypes
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import OpDef, by_argument, parse_attrs, parse_signature
from flowrt.graph.ops.base.identities import static_value
from flowrt.graph.ops.text.python_calls import no_op

Function: TypeAlias = Callable[..., Any]
_F = TypeVar("_F", bound=Function)

COMPOSED: dict[str, OpDef] = {}
"""The ops by name."""

_FUNCTIONS: dict[OpDef, Function] = {}


def composed(name: str, signature: str, attrs: str = "") -> Callable[[_F], _F]:
    """A decorator: the function takes the inputs of the op ``name`` (those of a list as one list) and its
    attributes by their names, and returns the outputs, flat: one tensor, or several.
    """

    def define(function: _F) -> _F:
        COMPOSED[name] = op = imported_op(name, signature, attrs)
        _FUNCTIONS[op] = function
        return function

    return define


def imported_op(name: str, signature: str, attrs: str = "") -> OpDef:
    """The definition of an op that only nodes being imported have; it is not registered."""
    any_types = dict.fromkeys(("T", "dtype", "elem_type"), dtypes.ANY)
    inputs, outputs, types = parse_signature(signature, any_types)
    used = {argument.type_attr for argument in (*inputs, *outputs)}
    return replace(
        no_op, name=name, inputs=inputs, outputs=outputs, attrs=parse_attrs(attrs), doc="TensorFlow's.",
        types={variable: allowed for variable, allowed in types.items() if variable in used},
    )  # fmt: skip


def outputs_of(op: OpDef, inputs: Sequence[Tensor], attrs: Mapping[str, Any]) -> list[Tensor] | None:
    """The outputs of a composed op, added to the default graph; None for another op."""
    function = _FUNCTIONS.get(op)
    if function is None:
        return None
    grouped = by_argument(op.inputs, inputs, attrs)
    given = [tensors if argument.is_list else tensors[0] for argument, tensors in grouped]
    made = function(*given, **{key: attrs[key] for key in op.attrs})
    return [made] if isinstance(made, Tensor) else list(made)


def known(tensor: Tensor, what: str) -> Any:
    """The value of a constant. Raises `UnimplementedError` for another tensor."""
    value = static_value(tensor)
    if value is None or (isinstance(value, tuple) and None in value):
        raise UnimplementedError(f"expected {what} to be a constant; got {tensor!r}")
    return value
