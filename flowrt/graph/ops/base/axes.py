"""Sharding rules of ops with dimensions that follow from ranks, attrs and host inputs.

A rule is text, see `flowrt.graph.layouts.sharding_rule`. These functions write those in which some dimensions
must be whole (the concatenated, the reversed, the padded ones) and all others pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from flowrt.graph.op_def import AxesRule, ShapeContext


def factors(rank: int, whole: Collection[int] = (), name: str = "w") -> str:
    """A factor per dimension, ``d0 d1 w2!``: those in ``whole`` cannot be cut and are called ``name``."""
    return " ".join(f"{name}{i}!" if i in whole else f"d{i}" for i in range(rank))


def input_rank(s: ShapeContext, i: int = 0) -> int | None:
    """The rank of input ``i``, None if it is unknown."""
    shape = s.shapes[i]
    return None if shape is None else len(shape)


def whole_along(axes_of: Callable[[ShapeContext], Any]) -> AxesRule:
    """The rule of an op from one tensor to another of the same rank, where the dimensions that ``axes_of``
    returns (a number or several, negative ones from the end) are whole; None if it returns None.
    """

    def rule(s: ShapeContext) -> str | None:
        device = next(i for i, argument in enumerate(s.op.inputs) if not argument.on_host)
        rank, axes = input_rank(s, device), axes_of(s)
        if rank is None or axes is None:
            return None
        whole = {axis % rank for axis in ((axes,) if isinstance(axes, int) else axes)} if rank else set()
        return f"{factors(rank, whole)} -> {factors(rank, whole, 'r')}"

    return rule


def whole_reduced(s: ShapeContext) -> str | None:
    """The rule of a reduction of input 0 along the axes in host input 1, which must be whole."""
    rank, axes = input_rank(s), s.value(1)
    if rank is None or axes is None:
        return None
    gone = {axis % rank for axis in ((axes,) if isinstance(axes, int) else axes)}
    kept = [f"r{i}" if i in gone else f"d{i}" for i in range(rank) if i not in gone or s.attrs["keep_dims"]]
    return f"{factors(rank, gone)} -> {' '.join(kept)}"


def nonzero(pairs: Any) -> list[int] | None:
    """The positions of the pairs other than (0, 0); None if they are unknown."""
    return None if pairs is None else [i for i, pair in enumerate(pairs) if pair != (0, 0)]


def images(layout: str, channels: str = "c", spatial: str = "h", rank: int = 4) -> str:
    """The dimensions of a batch of images in data format ``layout``; those of space are whole."""
    space = " ".join(f"{spatial}{i}!" for i in range(rank - 2))
    return f"n {space} {channels}" if layout.endswith("C") else f"n {channels} {space}"
