"""The classes of operations under mixed precision, from the facts of their ops.

    product   linear in each of two inputs, which it contracts: MatMul, Conv2D and their gradients
    follow    elementwise operations and views, of which the precision of the result is that of the inputs;
              and those that say so by the trait ``narrows``, since they only move elements
    keep      all others: they need range (their trait ``narrows`` is False), add up many elements, or have
              an effect

TensorFlow's auto_mixed_precision has lists of names for this: allow is product, infer and clear are follow,
deny is keep.
"""

from __future__ import annotations

import functools
from enum import Enum

from flowrt.dtypes import FLOATING
from flowrt.graph.op_def import Effect, OpDef


class PrecisionClass(Enum):
    """The part of an operation in mixed precision: it ..."""

    PRODUCT = "is computed in the narrow dtype"
    FOLLOW = "is computed in the narrow dtype between products"
    KEEP = "keeps the dtype of the script"


@functools.cache
def precision_class(op: OpDef) -> PrecisionClass:
    """The class of the operations of ``op``.

    >>> from flowrt.graph.op_def import op_def
    >>> [precision_class(op_def(name)).name for name in ("MatMul", "Relu", "Transpose", "Exp", "Sum")]
    ['PRODUCT', 'FOLLOW', 'FOLLOW', 'KEEP', 'KEEP']
    """
    if op.effect is not Effect.PURE or type_of_elements(op) is None or op.narrows is False:
        return PrecisionClass.KEEP
    if len(op.linear_in) > 1 and not op.elementwise:
        return PrecisionClass.PRODUCT
    return PrecisionClass.FOLLOW if op.elementwise or op.alias or op.narrows else PrecisionClass.KEEP


@functools.cache
def type_of_elements(op: OpDef) -> str | None:
    """The type variable that floating inputs and all floating outputs share; None if there is none."""
    read = {argument.type_attr for argument in op.inputs if not argument.is_type_list}
    made = {a.type_attr for a in op.outputs if not FLOATING.isdisjoint(op.types.get(a.type_attr or "", ()))}
    return next(iter(made)) if len(made) == 1 and made <= read and None not in made else None
