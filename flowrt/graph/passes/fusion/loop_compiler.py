"""The abilities of a device's compiler of loops, and of its library of convolutions, as the fusion passes
see them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from flowrt import dtypes
from flowrt.graph.node import Node, TensorSpec, owned_subgraphs
from flowrt.graph.passes.fusion.group import Group, Support
from flowrt.graph.shapes import is_static

MAX_SMALL = 1 << 15
"""Elements of a small tensor: to compute each takes some microseconds, which threads would not share."""


class LoopCompiler(NamedTuple):
    """The abilities of a device's compiler of loops.

    ``supports`` says what it can do with one operation, given as a group of its own. A product of small
    matrices is a compiled call up to ``max_product`` multiplications, with a transposed right factor up to
    ``max_transposed_product``. ``has_epilogues()``: whether the device's convolutions can be computed with
    what follows them, and its products with the sum that they are added to.
    """

    supports: Callable[[Group], Support]
    max_product: int
    max_transposed_product: int
    has_epilogues: Callable[[], bool]


def is_small(node: Node) -> bool:
    """Whether ``node``, a loop or a branch, computes only small tensors of static shapes. It may read large
    ones.
    """
    return all(
        all(map(_is_small, inner.outputs))
        for function in owned_subgraphs(node.attrs)
        for inner in function
        if inner.op.name not in ("_Feed", "Const")
    )


def _is_small(spec: TensorSpec) -> bool:
    if spec.dtype is dtypes.variant:
        return True
    return is_static(spec.shape) and math.prod(spec.shape) <= MAX_SMALL
