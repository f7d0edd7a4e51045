"""The signature and the doc of an op as `inspect.signature` and `help` show them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from flowrt.dtypes import string
from flowrt.graph.tf1_signatures import optional, required

if TYPE_CHECKING:
    from flowrt.graph.op_def import Argument, Attr, OpDef

_ATTR_TYPES = {
    "string": "str",
    "type": "DTypeLike",
    "shape": "ShapeLike",
    "tensor": "TensorLike",
    "func": "Any",
}
"""Python's type of an attribute by its kind; bool, int and float are their own."""


def _input_type(op: OpDef, argument: Argument) -> str:
    allowed = op.types.get(argument.type_attr or "", {argument.dtype})
    item = "TensorLike" if string in allowed or argument.is_type_list else "NumericLike"
    if argument.is_list:
        return f"Sequence[{item}]"
    return "ShapeTensorLike" if argument.on_host and item == "NumericLike" else item


def _attr_type(attr: Attr) -> str:
    item = attr.kind.removeprefix("list(").removesuffix(")")
    item = _ATTR_TYPES.get(item, item)
    found = item if item == attr.kind or "list" not in attr.kind else f"Sequence[{item}]"
    return found if attr.default is not None or item in ("Any", "ShapeLike") else f"{found} | None"


def _result_type(op: OpDef) -> str:
    if len(op.outputs) == 1 and not op.outputs[0].is_list:
        return "Tensor"
    return "list[Tensor]" if op.outputs else "Operation"


class CallSignature:
    """The parameters of an op's call: its inputs, its attrs and ``name``, by position or keyword.

    The annotations are names of `flowrt.graph.typing` and `flowrt.dtypes`.
    """

    def __get__(self, op: OpDef | None, owner: type[OpDef]) -> inspect.Signature | None:
        if op is None:
            return None
        parameters = [required(a.name, _input_type(op, a)) for a in op.inputs]
        for key in op.positional_attrs():
            attr = op.attrs[key]
            parameters.append(required(key, _attr_type(attr)).replace(default=attr.default))
        parameters.append(optional("name", annotation="str | None"))
        return inspect.Signature(
            parameters, return_annotation=_result_type(op), __validate_parameters__=False
        )


class CallDoc:
    """The signature and the doc of an op; the class has a doc of its own."""

    def __init__(self, of_class: str) -> None:
        self.of_class = of_class

    def __get__(self, op: OpDef | None, owner: type[OpDef]) -> str:
        if op is None:
            return self.of_class
        return f"{op.name}{inspect.signature(op)}\n\n{inspect.cleandoc(op.doc)}"
