"""Shape inference: the output specs of a new operation, from the shape rule of its op.

A rule sees the inputs' dtypes and shapes, the attrs, and the input values that it requests. If it requests no
values, its result holds for every operation with the same inputs: a `Signature`, which the graph caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.node import TensorSpec
from flowrt.graph.op_def import OpDef, PartialValue, ShapeContext
from flowrt.graph.shapes import Shape
from flowrt.graph.source import Source


class Signature(NamedTuple):
    """Attrs and output specs shared by operations of one op with equal input specs and no explicit attrs."""

    attrs: Mapping[str, Any]
    outputs: tuple[TensorSpec, ...]


Signatures: TypeAlias = dict[tuple[Any, ...], Signature]
"""Signatures keyed by the op and its inputs' specs."""


@lru_cache(maxsize=1 << 16)
def one_output(dtype: DType, shape: Shape) -> tuple[TensorSpec]:
    """The output specs of an operation with a single output.

    Equal specs are one object: the garbage collector walks over all objects that an operation is made of, and
    before these were shared it took half of the time in which a graph of 100,000 operations is built.
    """
    return (TensorSpec(dtype, shape),)


def describe_data(op: OpDef, attrs: Mapping[str, Any], inputs: Sequence[TensorSpec]) -> str:
    """Dtypes and shapes of the data inputs. Host inputs (an axis, a shape) are left out unless there are no
    others: scripts rarely pass them as tensors, and the rule's message shows their values.
    """
    arguments = [a for a in op.inputs for _ in range(a.length(attrs))]
    data = [str(s) for a, s in zip(arguments, inputs, strict=True) if not a.on_host]
    return ", ".join(data or map(str, inputs))


def infer_outputs(
    op: OpDef,
    name: str,
    attrs: Mapping[str, Any],
    inputs: Sequence[TensorSpec],
    dtypes: Sequence[DType],
    value: Callable[[int], PartialValue],
    source: Source | None,
) -> tuple[TensorSpec, ...]:
    """The output specs of the operation ``name``, created at ``source``. ``dtypes`` are those of the outputs;
    ``value(i)`` returns the statically known value of input i.

    Raises what the shape rule raises, with the operation and the inputs in the message.
    """
    context = ShapeContext(op, attrs, [s[1] for s in inputs], [s[0] for s in inputs], value)
    try:
        shapes = op.shape(context)
    except InvalidArgumentError as error:
        if error.op is not None:
            raise
        message = f"{error.message}; inputs are ({describe_data(op, attrs, inputs)})"
        where = None if source is None else str(source)
        raise type(error)(message, op=name, op_type=op.name, source=where) from None
    except (TypeError, ValueError, IndexError) as error:  # a host input of a rank the rule did not expect
        described = ", ".join(context.describe(inputs))
        message = f"expected inputs of other shapes or values; got ({described})"
        where = None if source is None else str(source)
        raise InvalidArgumentError(message, op=name, op_type=op.name, source=where) from error
    if len(dtypes) == 1:
        return one_output(dtypes[0], shapes[0])
    return tuple([TensorSpec(d, s) for d, s in zip(dtypes, shapes, strict=True)])
