"""Layers of several inputs, and a function for each."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from flowrt.dtypes import bool_
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.reductions import reduce_all
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims
from flowrt.graph.ops.elementwise import arithmetic
from flowrt.graph.ops.elementwise.comparison import logical_and
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.nn.moments import l2_normalize
from flowrt.graph.source import misuse
from flowrt.keras.engine.layer import Layer
from flowrt.keras.layers.products import batch_dot

__all__ = [
    "Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum", "Multiply", "Subtract", "add", "average",
    "concatenate", "dot", "maximum", "minimum", "multiply", "subtract",
]  # fmt: skip


class _Merge(Layer):
    """Combines inputs element by element; those of lower rank get dimensions of 1 behind the batch's."""

    supports_masking = True

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(inputs, (list, tuple)) or len(inputs) < 2:
            raise misuse(f"layer {self.name!r}: expected a list of at least 2 tensors; got {inputs!r}")
        return self.merge(_of_one_rank(list(inputs)))

    def merge(self, inputs: Sequence[Any]) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """True where all inputs with a mask have it."""
        found = [each for each in mask or () if each is not None]
        return functools.reduce(logical_and, found) if found else None


def _of_one_rank(inputs: list[Any]) -> list[Any]:
    ranks = [x.shape.ndims for x in inputs]
    if None in ranks:
        return inputs
    for i, x in enumerate(inputs):
        for _ in range(max(ranks) - ranks[i]):
            x = expand_dims(x, 1)
        inputs[i] = x
    return inputs


class Add(_Merge):
    def merge(self, inputs: Sequence[Any]) -> Tensor:
        return functools.reduce(arithmetic.add, inputs)


class Subtract(_Merge):
    """The first input minus the second."""

    def merge(self, inputs: Sequence[Any]) -> Tensor:
        if len(inputs) != 2:
            raise misuse(f"layer {self.name!r}: expected 2 inputs; got {len(inputs)}")
        return arithmetic.subtract(*inputs)


class Multiply(_Merge):
    def merge(self, inputs: Sequence[Any]) -> Tensor:
        return functools.reduce(arithmetic.multiply, inputs)


class Average(_Merge):
    def merge(self, inputs: Sequence[Any]) -> Tensor:
        return realdiv(functools.reduce(arithmetic.add, inputs), len(inputs))


class Maximum(_Merge):
    def merge(self, inputs: Sequence[Any]) -> Tensor:
        return functools.reduce(arithmetic.maximum, inputs)


class Minimum(_Merge):
    def merge(self, inputs: Sequence[Any]) -> Tensor:
        return functools.reduce(arithmetic.minimum, inputs)


class Concatenate(_Merge):
    """The inputs one after the other along ``axis``."""

    def __init__(self, axis: int = -1, **options: Any) -> None:
        super().__init__(**options)
        self.axis = axis

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(inputs, (list, tuple)):
            raise misuse(f"layer {self.name!r}: expected a list of tensors; got {inputs!r}")
        return concat(list(inputs), self.axis)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The masks one after the other; those of inputs without one are true."""
        if mask is None or all(each is None for each in mask):
            return None
        parts = []
        for x, each in zip(inputs, mask, strict=True):
            if each is None:
                parts.append(cast(ones_like(x), bool_))
            else:
                parts.append(
                    expand_dims(each, -1) if (each.shape.ndims or 0) < (x.shape.ndims or 0) else each
                )
        return reduce_all(concat(parts, self.axis), -1)


class Dot(_Merge):
    """Products of samples along ``axes``, of their unit vectors with ``normalize``."""

    def __init__(self, axes: Any, normalize: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.axes, self.normalize = axes, normalize

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 2:
            raise misuse(f"layer {self.name!r}: expected a list of 2 tensors; got {inputs!r}")
        ranks = [x.shape.ndims or 0 for x in inputs]
        axes = [self.axes] * 2 if isinstance(self.axes, int) else list(self.axes)
        axes = [axis % rank for axis, rank in zip(axes, ranks, strict=True)]
        if self.normalize:
            inputs = [l2_normalize(x, axis) for x, axis in zip(inputs, axes, strict=True)]
        return batch_dot(inputs[0], inputs[1], axes)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return None


def add(inputs: Any, **options: Any) -> Tensor:
    return Add(**options)(inputs)


def subtract(inputs: Any, **options: Any) -> Tensor:
    return Subtract(**options)(inputs)


def multiply(inputs: Any, **options: Any) -> Tensor:
    return Multiply(**options)(inputs)


def average(inputs: Any, **options: Any) -> Tensor:
    return Average(**options)(inputs)


def maximum(inputs: Any, **options: Any) -> Tensor:
    return Maximum(**options)(inputs)


def minimum(inputs: Any, **options: Any) -> Tensor:
    return Minimum(**options)(inputs)


def concatenate(inputs: Any, axis: int = -1, **options: Any) -> Tensor:
    return Concatenate(axis, **options)(inputs)


def dot(inputs: Any, axes: Any, normalize: bool = False, **options: Any) -> Tensor:
    return Dot(axes, normalize, **options)(inputs)
