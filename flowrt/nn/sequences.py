"""Sequences of different lengths in one batch, and the initial state of a recurrent network.

After a sequence's end the outputs are zeros and the state is unchanged, so the final state is that after each
sequence's own last step. Steps past the end of the longest sequence do not run.
"""

from __future__ import annotations

from typing import Any

from flowrt import dtypes
from flowrt.base.structure import same_structure
from flowrt.dtypes import DType, as_dtype
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.comparison import where
from flowrt.graph.source import misuse
from flowrt.nest import flatten, map_structure
from flowrt.nn.rnn_cell.base import Structure


def lengths_of(where: str, lengths: Any, batch_size: Any) -> Tensor | None:
    """Lengths as an int32 vector with one entry per row of the batch."""
    if lengths is None:
        return None
    vector = cast(lengths, dtypes.int32)
    known = batch_size if isinstance(batch_size, int) else None
    if not vector.shape.is_compatible_with([known]):
        raise misuse(
            f"{where}: expected sequence_length to be a vector, one length per row of {known or 'the batch'};"
            f" got shape {vector.shape}"
        )
    return vector


def first_state(where: str, cell: Any, given: Structure, batch_size: Any, dtype: Any) -> Structure:
    if given is not None:
        return map_structure(convert_to_tensor, given)
    if dtype is None:
        raise misuse(f"{where}: expected an initial_state or a dtype; got neither")
    return cell.zero_state(batch_size, as_dtype(dtype))


def output_dtype(dtype: Any, state: Structure) -> DType:
    """The outputs' dtype: the one given, or the state's."""
    return as_dtype(flatten(state)[0].dtype if dtype is None else dtype)


def check_structure(what: str, expected: Structure, got: Structure) -> None:
    if not same_structure(expected, got):
        raise misuse(f"recurrent network: expected {what}, {expected!r:.80}; got {got!r:.80}")


def keep_finished(finished: Tensor, before: Structure, after: Structure) -> Structure:
    """``before`` in the rows that are finished, else ``after``; scalars and TensorArrays have no rows."""

    def chosen(old: Any, new: Any) -> Any:
        if not isinstance(old, Tensor) or old.shape.ndims == 0:
            return new
        return where(finished, old, new)

    return map_structure(chosen, before, after)
