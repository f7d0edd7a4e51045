"""The signature and the doc of an op as `inspect.signature` and `help` show them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowrt.graph.op_def import OpDef


class CallSignature:
    """The parameters of an op's call: its inputs, its attrs and ``name``, by position or keyword."""

    def __get__(self, op: OpDef | None, owner: type[OpDef]) -> inspect.Signature | None:
        if op is None:
            return None
        defaults = {argument.name: inspect.Parameter.empty for argument in op.inputs}
        defaults |= {key: op.attrs[key].default for key in op.positional_attrs()} | {"name": None}
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(key, kind, default=default) for key, default in defaults.items()]
        return inspect.Signature(parameters, __validate_parameters__=False)


class CallDoc:
    """The signature and the doc of an op; the class has a doc of its own."""

    def __init__(self, of_class: str) -> None:
        self.of_class = of_class

    def __get__(self, op: OpDef | None, owner: type[OpDef]) -> str:
        if op is None:
            return self.of_class
        return f"{op.name}{inspect.signature(op)}\n\n{inspect.cleandoc(op.doc)}"
