"""Sizes as numbers where they are known, else as scalar tensors: results then have known shapes."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import int32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.ranges import static_array
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike


def last_sizes(x: Tensor, rank: int) -> list[Any]:
    """The sizes of the last ``rank`` dimensions. Raises `InvalidArgumentError` if there are fewer."""
    known = x.shape.as_list()
    if len(known) < rank:
        raise misuse(f"expected {rank} dimensions at least; got shape {x.shape}", InvalidArgumentError)
    found = shape(x)
    return [found[i] if known[i] is None else known[i] for i in (-3, -2, -1)[-rank:]]


def as_size(value: NumericLike) -> Any:
    """A scalar."""
    given = convert_to_tensor(value, int32)
    known = static_array(given)
    return given if known is None else int(known)


def at_least_zero(size: Any) -> Any:
    return max(size, 0) if isinstance(size, int) else maximum(size, 0)
