"""Distances of sequences in edits: of words that were recognized, for instance, from those that were said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.sparse_tensor import SparseTensor, SparseTensorValue
from flowrt.graph.shapes import Shape
from flowrt.graph.source import misuse

__all__ = ["edit_distance"]


def _distance(hypothesis: Any, truth: Any) -> int:
    """The fewest deletions, insertions and substitutions that make ``truth`` of ``hypothesis``.

    V. Levenshtein (1966); a row of R. Wagner and M. Fischer's table (1974) at a time.
    """
    steps = np.arange(len(truth) + 1)
    row = steps
    for each in hypothesis:
        below = row + 1
        below[1:] = np.minimum(below[1:], row[:-1] + (truth != each))
        row = np.minimum.accumulate(below - steps) + steps  # insertions, any number in a row
    return int(row[-1])


def _sequences(indices: Any, values: Any) -> dict[tuple[int, ...], Any]:
    """The elements of each sequence by its place: the last dimension's index orders them."""
    found: dict[tuple[int, ...], list[Any]] = {}
    for place, value in zip(indices[:, :-1].tolist(), values, strict=True):
        found.setdefault(tuple(place), []).append(value)
    return {place: np.array(each, values.dtype) for place, each in found.items()}


def _edit_distance(
    xp: Any, hypothesis_indices: Any, hypothesis_values: Any, hypothesis_shape: Any, truth_indices: Any,
    truth_values: Any, truth_shape: Any, normalize: bool, out: Any = None,
) -> Any:  # fmt: skip
    given = [
        np.asarray(x if xp is np or x.dtype == object else xp.asnumpy(x))
        for x in (
            hypothesis_indices, hypothesis_values, hypothesis_shape, truth_indices, truth_values, truth_shape,
        )
    ]  # fmt: skip
    if len(given[2]) != len(given[5]) or len(given[2]) < 1:
        ranks = f"{len(given[2])} and {len(given[5])}"
        raise InvalidArgumentError(f"expected a hypothesis and a truth of one rank; got {ranks}")
    said, meant = _sequences(given[0], given[1]), _sequences(given[3], given[4])
    found = np.zeros(np.maximum(given[2], given[5])[:-1], np.float32)
    for place in said.keys() | meant.keys():
        hypothesis, truth = (each.get(place, given[4][:0]) for each in (said, meant))
        edits = _distance(hypothesis, truth)
        with np.errstate(divide="ignore"):
            found[place] = edits / np.float32(len(truth)) if normalize else edits
    return delivered(xp, xp.asarray(found), np.float32, out)


def _shape(s: ShapeContext) -> Sequence[Shape]:
    first, second = s.value(2), s.value(5)
    if first is not None and second is not None and None not in (*first, *second):
        return [tuple(max(pair) for pair in zip(first[:-1], second[:-1], strict=True))]
    known = s.shapes[2] or s.shapes[5]
    return [None if not known or known[0] is None else (None,) * (known[0] - 1)]


_PLACES = np.array([[0, 0], [0, 1], [2, 0]])

edit_distance_op: OpDef[Tensor] = define_op(
    "EditDistance",
    "hypothesis_indices: int64, hypothesis_values: T in STORED | string, hypothesis_shape: int64, "
    "truth_indices: int64, truth_values: T, truth_shape: int64 -> output: float32",
    attrs="normalize: bool = True",
    shape=_shape,
    kernel=_edit_distance,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [
        sample(
            _PLACES, np.array([1, 2, 3]), np.array([3, 2]), _PLACES[1:], np.array([2, 4]), np.array([3, 2]),
            normalize=normalize,
        )
        for normalize in (False, True)
    ],
    doc="The edits that make the truth of each hypothesis.",
)  # fmt: skip


def edit_distance(
    hypothesis: SparseTensor | SparseTensorValue,
    truth: SparseTensor | SparseTensorValue,
    normalize: bool = True,
    name: str = "edit_distance",
) -> Tensor:
    """The fewest deletions, insertions and substitutions that make ``truth`` of ``hypothesis``, for the
    sequences along the last dimension of two sparse tensors: float32, [...].

    ``normalize`` divides by the length of the truth; that is infinite where the truth is empty. Raises
    `DTypeError` for dense tensors, `InvalidArgumentError` at run time for different ranks.

    Example:
        >>> said = tf.SparseTensor([[0, 0], [0, 1]], [1, 2], [1, 2])
        >>> meant = tf.SparseTensor([[0, 0], [0, 1]], [2, 3], [1, 2])
        >>> tf.edit_distance(said, meant, normalize=False).eval()
        array([2.], dtype=float32)
    """
    for what, given in (("hypothesis", hypothesis), ("truth", truth)):
        if not isinstance(given, (SparseTensor, SparseTensorValue)):
            raise misuse(f"edit_distance: expected {what} as a SparseTensor; got {given!r:.100}", DTypeError)
    first, second = SparseTensor.from_value(hypothesis), SparseTensor.from_value(truth)
    return edit_distance_op(
        first.indices, first.values, first.dense_shape, second.indices, second.values, second.dense_shape,
        normalize=normalize, name=name,
    )  # fmt: skip
