"""Ops of TensorFlow 1 on reference variables, which only nodes being imported have: see `v1_ops`.

Each update has the arguments of the op on handles that takes its place, with references in place of handles.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowrt import dtypes
from flowrt.graph.op_def import Argument, OpDef, op_def, parse_attrs, registered_ops
from flowrt.graph.ops.state.variable_ops import (
    assign_add_variable_op,
    assign_sub_variable_op,
    assign_variable_op,
    resource_count_up_to,
    var_is_initialized_op,
)
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.tf1.composed_ops.composition import imported_op

_LOCKING = "use_locking: bool = False"


def _made(
    name: str,
    inputs: tuple[Argument, ...],
    outputs: tuple[Argument, ...],
    types: Mapping[str, Any],
    attrs: str,
) -> OpDef:
    parsed = parse_attrs(attrs)
    doc = "TensorFlow 1's."
    return replace(no_op, name=name, inputs=inputs, outputs=outputs, types=types, attrs=parsed, doc=doc)


VARIABLE = imported_op(
    "Variable", "-> ref: dtype", "shape: shape, dtype: type, container: string = '', shared_name: string = ''"
)
ASSIGN = imported_op(
    "Assign", "ref: T, value: T -> output_ref: T", "validate_shape: bool = True, use_locking: bool = True"
)
ASSIGN_ADD = imported_op("AssignAdd", "ref: T, value: T -> output_ref: T", _LOCKING)
ASSIGN_SUB = imported_op("AssignSub", "ref: T, value: T -> output_ref: T", _LOCKING)
COUNT_UP_TO = imported_op("CountUpTo", "ref: T -> output: T", "limit: int")
IS_INITIALIZED = imported_op("IsVariableInitialized", "ref: dtype -> is_initialized: bool", "dtype: type")

REF_IDENTITY = imported_op("RefIdentity", "input: T -> output: T")
REF_SWITCH = imported_op("RefSwitch", "data: T, pred: bool -> output_false: T, output_true: T")
REF_MERGE = imported_op("RefMerge", "inputs: N * T -> output: T, value_index: int32")
REF_ENTER = imported_op(
    "RefEnter",
    "data: T -> output: T",
    "frame_name: string, is_constant: bool = False, parallel_iterations: int = 10",
)
REF_EXIT = imported_op("RefExit", "data: T -> output: T")
REF_NEXT_ITERATION = imported_op("RefNextIteration", "data: T -> output: T")

_DEFINED = {
    op.name: op
    for op in (
        VARIABLE, ASSIGN, ASSIGN_ADD, ASSIGN_SUB, COUNT_UP_TO, IS_INITIALIZED, REF_IDENTITY, REF_SWITCH,
        REF_MERGE, REF_ENTER, REF_EXIT, REF_NEXT_ITERATION,
    )
}  # fmt: skip
_ON_HANDLES: dict[OpDef, OpDef] = {
    ASSIGN: assign_variable_op,
    ASSIGN_ADD: assign_add_variable_op,
    ASSIGN_SUB: assign_sub_variable_op,
    COUNT_UP_TO: resource_count_up_to,
    IS_INITIALIZED: var_is_initialized_op,
}
_UPDATE = re.compile(r"(Sparse)?Apply\w+|Scatter(Update|Add|Sub|Mul|Div|Min|Max)|StridedSliceAssign")


def reference_op(name: str) -> OpDef | None:
    """The definition of the op ``name`` on references; None if it is none, or has no counterpart."""
    name = "Variable" if name == "VariableV2" else name
    return _DEFINED.get(name) or (_update(name) if _UPDATE.fullmatch(name) else None)


def on_handles(op: OpDef) -> OpDef:
    """The op on handles in place of ``op``, which is one on references."""
    return _ON_HANDLES.get(op) or op_def(f"Resource{op.name}")


def is_optimizers(op: OpDef) -> bool:
    """Whether an op on references is the update of an optimizer."""
    return re.match("(Sparse)?Apply", op.name) is not None


@functools.cache
def _update(name: str) -> OpDef | None:
    update = registered_ops().get(f"Resource{name}")
    if update is None:
        return None
    number = next(variable for variable in update.types if variable in ("T", "dtype"))
    types = {("T" if key == number else key): allowed for key, allowed in update.types.items()}
    inputs = tuple(
        a._replace(type_attr="T", dtype=None) if number == a.type_attr or a.dtype is dtypes.resource else a
        for a in update.inputs
    )
    outputs = (Argument("output_ref", "T", None, None, False, False, False),)
    made = _made(name, inputs, outputs, types, _LOCKING)
    return replace(made, attrs={**update.attrs, **made.attrs})
