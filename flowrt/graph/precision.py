"""`Precision`: the dtypes in which a script's products are computed, summed over devices, and kept.

A variable with a precision has it as two attributes, text, which survive GraphDef, the text form and the
wire. The third dtype is its own.

    _compute   the dtype of the products of what depends on it
    _reduce    the dtype in which their results are summed over devices

`flowrt.graph.passes.precision` rewrites the steps that use such variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, final

import ml_dtypes

from flowrt.dtypes import DType, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.graph.node import Node
from flowrt.graph.source import user_line

COMPUTE, REDUCE = "_compute", "_reduce"

SUMS_FIRST = "_sums_first"
"""Attr of a Cast to a wider dtype: a sum over devices is made before it. Otherwise it is made behind it."""


@final
@dataclass(frozen=True)
class Precision:
    """The dtypes of mixed precision: products are computed in ``compute``, sums over devices are made in
    ``reduce``, and variables, optimizers and all that needs range are in ``keep``, the dtype of the script.

    Each is a dtype or its name, and the next one holds all values of the one before.

    >>> Precision("bfloat16")
    Precision(compute=flowrt.bfloat16, reduce=flowrt.float32, keep=flowrt.float32)

    Raises `DTypeError` for an unknown dtype and for one that is not floating, `InvalidArgumentError` for a
    ``compute`` or ``reduce`` that is wider than the next one.
    """

    compute: DType
    reduce: DType
    keep: DType

    def __init__(self, compute: Any = "bfloat16", reduce: Any = "float32", keep: Any = "float32") -> None:
        for field, value in zip(fields(self), (compute, reduce, keep), strict=True):
            object.__setattr__(self, field.name, _floating(field.name, value))
        for narrow, wide in (("compute", "reduce"), ("reduce", "keep")):
            one, other = getattr(self, narrow), getattr(self, wide)
            if not _holds(other, one):
                raise InvalidArgumentError(
                    f"Precision: expected a dtype for {narrow} of which {wide} holds all values; got "
                    f"{narrow}={one.name!r} and {wide}={other.name!r}",
                    source=user_line(),
                )

    def attributes(self, dtype: DType) -> dict[str, str]:
        """The attributes of a variable of ``dtype``: none unless it is kept in ``keep``, and computed in
        another dtype.
        """
        if dtype is not self.keep or self.compute is self.keep:
            return {}
        return {COMPUTE: self.compute.name, REDUCE: self.reduce.name}

    def __str__(self) -> str:
        return f"{self.compute.name} (sums {self.reduce.name}, kept {self.keep.name})"


def _floating(name: str, value: Any) -> DType:
    try:
        dtype = as_dtype(value)
    except DTypeError as error:
        raise DTypeError(f"Precision: {name}: {error.message}", source=user_line()) from None
    if not dtype.is_floating:
        raise DTypeError(
            f"Precision: {name}: expected a floating dtype; got {dtype.name!r}", source=user_line()
        )
    return dtype


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of ``narrow`` is one of ``wide``."""
    one, other = ml_dtypes.finfo(wide.np), ml_dtypes.finfo(narrow.np)  # type: ignore[no-untyped-call]
    return bool(one.nmant >= other.nmant and one.maxexp >= other.maxexp and one.minexp <= other.minexp)


def with_precision(attrs: Mapping[str, Any], old: Precision | None, new: Precision | None) -> dict[str, Any]:
    """The attributes of a variable with ``attrs`` when the precision of its graph changes from ``old`` to
    ``new``: a variable with another one, such as that of a strategy, keeps it.
    """
    own = {key: value for key, value in attrs.items() if key not in (COMPUTE, REDUCE)}
    before, after = ({} if p is None else p.attributes(attrs["dtype"]) for p in (old, new))
    return {**own, **after} if {**own, **before} == attrs else dict(attrs)


def precision_of(attrs: Mapping[str, Any]) -> Precision | None:
    """The precision of a variable with ``attrs``; None if it has none."""
    if COMPUTE not in attrs:
        return None
    return Precision(attrs[COMPUTE], attrs[REDUCE], attrs["dtype"])


def precision_in(nodes: Iterable[Node]) -> Precision | None:
    """The precision of the variables among ``nodes``; None if none of them has one.

    Raises `UnimplementedError` if they have several.
    """
    found: dict[Precision, Node] = {}
    for node in nodes:
        if COMPUTE in node.attrs:
            precision = precision_of(node.attrs)
            assert precision is not None
            found.setdefault(precision, node)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise UnimplementedError(
            f"a step needs variables of one precision; got {one} of {first.name!r} and {other} of "
            f"{second.name!r}",
            source=None if second.source is None else str(second.source),
        )
    return next(iter(found), None)
