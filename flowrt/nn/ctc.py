"""Sequences of labels from logits over time, without their times: the loss, and decoders.

``inputs`` are logits, [time, batch, classes], the last class the blank unless ``blank_index`` says otherwise;
``sequence_length`` is [batch]. Dense labels are [batch, labels] with the length of each row.
"""

from __future__ import annotations

import math
from typing import Any

from flowrt.dtypes import DType, bool_, int32, int64
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.gather_scatter import gather, scatter_nd
from flowrt.graph.ops.array.ranges import range as range_
from flowrt.graph.ops.array.ranges import sequence_mask
from flowrt.graph.ops.array.reductions import reduce_max, reduce_min, reduce_sum
from flowrt.graph.ops.array.scans import cumsum
from flowrt.graph.ops.array.selection import boolean_mask
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape, transpose
from flowrt.graph.ops.base.sparse_tensor import SparseTensor, SparseTensorValue
from flowrt.graph.ops.elementwise.comparison import (
    equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    not_equal,
    where,
    where_v2,
)
from flowrt.graph.ops.nn.ctc import ctc_beam_search_decoder_op, ctc_greedy_decoder_op, ctc_loss_op
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike

__all__ = [
    "collapse_repeated", "ctc_beam_search_decoder", "ctc_beam_search_decoder_v2", "ctc_greedy_decoder",
    "ctc_loss", "ctc_loss_v2", "ctc_unique_labels",
]  # fmt: skip


def ctc_loss(
    labels: SparseTensor | SparseTensorValue,
    inputs: NumericLike | None = None,
    sequence_length: NumericLike | None = None,
    preprocess_collapse_repeated: bool = False,
    ctc_merge_repeated: bool = True,
    ignore_longer_outputs_than_inputs: bool = False,
    time_major: bool = True,
    logits: NumericLike | None = None,
) -> Tensor:
    """Minus the logarithm of the probability that ``inputs`` give ``labels``, [batch].

    ``labels`` is a `SparseTensor` of int32, [batch, labels]. ``time_major=False`` takes inputs [batch, time,
    classes]; ``logits`` is another name of ``inputs``. ``preprocess_collapse_repeated`` merges repetitions in
    the labels first; without ``ctc_merge_repeated`` a path's repetitions are labels of their own.

    Raises `InvalidArgumentError` at run time for labels that do not fit into a sequence's length, unless
    ``ignore_longer_outputs_than_inputs`` makes their loss and gradient 0. There is no second derivative.

    Example:
        >>> labels = tf.SparseTensor([[0, 0]], [1], [1, 1])
        >>> tf.nn.ctc_loss(labels, tf.zeros([2, 1, 3]), [2]).eval()  # 3 of 9 paths
        array([1.0986123], dtype=float32)
    """
    if not isinstance(labels, (SparseTensor, SparseTensorValue)):
        raise misuse(f"ctc_loss: expected labels as a SparseTensor; got {labels!r}", DTypeError)
    sparse = SparseTensor.from_value(labels)
    given = convert_to_tensor(inputs if logits is None else logits)
    loss, _ = ctc_loss_op(
        given if time_major else transpose(given, [1, 0, 2]),
        sparse.indices,
        cast(sparse.values, int32),
        _lengths(sequence_length),
        preprocess_collapse_repeated=preprocess_collapse_repeated,
        ctc_merge_repeated=ctc_merge_repeated,
        ignore_longer_outputs_than_inputs=ignore_longer_outputs_than_inputs,
    )
    return loss


def ctc_loss_v2(
    labels: SparseTensor | SparseTensorValue | NumericLike,
    logits: NumericLike,
    label_length: NumericLike | None,
    logit_length: NumericLike,
    logits_time_major: bool = True,
    unique: tuple[Tensor, Tensor] | None = None,
    blank_index: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Minus the logarithm of the probability that ``logits`` give ``labels``, [batch].

    ``labels`` are [batch, labels] with the number of them in each row, ``label_length`` [batch]; the loss of
    labels that do not fit into a row's ``logit_length`` is infinite, its gradient 0. Or they are a
    `SparseTensor`, with ``label_length`` None; then such labels are an error, as in `ctc_loss`.
    ``blank_index`` is the class of the blank, 0 by default, counted from the end if negative; with sparse
    labels it must be given. ``unique`` is TensorFlow's, for a method that is quicker on a TPU.

    Raises `InvalidArgumentError` for sparse labels without a ``blank_index``, and at run time for a label
    behind a blank. There is no second derivative.

    Example:
        >>> tf.nn.ctc_loss_v2([[1]], tf.zeros([2, 1, 3]), [1], [2]).eval()  # 3 of 9 paths
        array([1.0986123], dtype=float32)
    """
    is_sparse = isinstance(labels, (SparseTensor, SparseTensorValue))
    if is_sparse and blank_index is None:
        raise misuse("ctc_loss_v2: expected blank_index, which sparse labels need; got None")
    with get_default_graph().name_scope(name or "ctc_loss_dense"):
        given = convert_to_tensor(logits)
        given = given if logits_time_major else transpose(given, [1, 0, 2])
        lengths = _lengths(logit_length)
        sparse = SparseTensor.from_value(labels) if is_sparse else _sparse(labels, label_length)
        moved, values = _with_the_blank_last(given, cast(sparse.values, int32), blank_index or 0)
        loss, _ = ctc_loss_op(
            moved, sparse.indices, values, lengths, ignore_longer_outputs_than_inputs=not is_sparse
        )
        if is_sparse:
            return loss
        fits = less_equal(_needed_times(convert_to_tensor(labels), _lengths(label_length)), lengths)
        return where_v2(fits, loss, math.inf)


def _sparse(labels: Any, label_length: Any) -> SparseTensor:
    """Dense labels as sparse ones."""
    dense = convert_to_tensor(labels)
    is_there = sequence_mask(_lengths(label_length), shape(dense)[1])
    return SparseTensor(where(is_there), boolean_mask(dense, is_there), shape(dense, out_type=int64))


def _with_the_blank_last(logits: Tensor, labels: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """The logits with the class ``blank`` behind all others, and the labels by their new numbers."""
    last = shape(logits)[2] - 1
    if blank == -1:
        return logits, labels
    start = convert_to_tensor(blank) if blank >= 0 else last + 1 + blank
    moved = concat([logits[:, :, :start], logits[:, :, start + 1 :], logits[:, :, start : start + 1]], 2)
    behind = where_v2(equal(labels, start), last, labels - 1)
    return moved, where_v2(less(labels, start), labels, behind)


def _is_new(labels: Tensor) -> Tensor:
    """True where a label is another one than that before it."""
    return concat([ones_like(labels[:, :1], bool_), not_equal(labels[:, 1:], labels[:, :-1])], 1)


def _needed_times(labels: Tensor, lengths: Tensor) -> Tensor:
    """The fewest times of a path of dense labels: one for each, and a blank between equal neighbours."""
    repeats = logical_and(logical_not(_is_new(labels)), sequence_mask(lengths, shape(labels)[1]))
    return lengths + reduce_sum(cast(repeats, int32), 1)


def ctc_unique_labels(labels: NumericLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """The different labels of each row in the order in which they occur, padded with 0, and the place of each
    label among them; both are [batch, labels], the first int64, the second int32.

    Example:
        >>> [x.eval().tolist() for x in tf.nn.ctc_unique_labels([[3, 4, 4, 3]])]
        [[[3, 4, 0, 0]], [[0, 1, 1, 0]]]
    """
    with get_default_graph().name_scope(name or "ctc_unique_labels"):
        given = convert_to_tensor(labels)
        count = shape(given)[1]
        at = range_(count)
        is_same = equal(expand_dims(given, 2), expand_dims(given, 1))
        first = reduce_min(where_v2(is_same, at, count), 2)
        is_first = equal(first, at)
        places = gather(cumsum(cast(is_first, int32), 1) - 1, first, batch_dims=1)
        kept = boolean_mask(cast(given, int64), is_first)
        return _rows(kept, reduce_sum(cast(is_first, int32), 1), count), places


def collapse_repeated(
    labels: NumericLike, seq_length: NumericLike, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """The labels of each row without repetitions, padded with 0 to the longest row, and their numbers.

    ``seq_length`` are the numbers of labels before, [batch].

    Example:
        >>> [x.eval().tolist() for x in tf.nn.collapse_repeated([[1, 1, 2, 2, 1]], [5])]
        [[[1, 2, 1]], [3]]
    """
    with get_default_graph().name_scope(name or "collapse_repeated_labels"):
        given, lengths = convert_to_tensor(labels), convert_to_tensor(seq_length)
        is_kept = logical_and(_is_new(given), sequence_mask(lengths, shape(given)[1]))
        counts = reduce_sum(cast(is_kept, int32), 1)
        return _rows(boolean_mask(given, is_kept), counts, reduce_max(counts)), cast(counts, lengths.dtype)


def _rows(values: Tensor, counts: Tensor, width: Tensor) -> Tensor:
    """``values``, ``counts`` of them in each row, padded with 0 to ``width``."""
    places = where(sequence_mask(counts, width))
    return scatter_nd(places, values, cast(stack([shape(counts)[0], width]), int64))


def ctc_greedy_decoder(
    inputs: NumericLike, sequence_length: NumericLike, merge_repeated: bool = True
) -> tuple[list[SparseTensor], Tensor]:
    """The labels of the class with the largest logit at each time, without blanks: a list of one
    `SparseTensor` of int64, [batch, labels], and minus the sum of these logits, [batch, 1].

    ``merge_repeated`` merges repetitions without a blank between them.
    """
    *parts, score = ctc_greedy_decoder_op(inputs, _lengths(sequence_length), merge_repeated=merge_repeated)
    return [SparseTensor(*parts)], score


def ctc_beam_search_decoder(
    inputs: NumericLike,
    sequence_length: NumericLike,
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
) -> tuple[list[SparseTensor], Tensor]:
    """The ``top_paths`` most probable sequences of labels, as `SparseTensor` of int64, [batch, labels], and
    their log probabilities, [batch, top_paths].

    ``beam_width`` sequences are followed at each time. ``merge_repeated``, as in TensorFlow, merges equal
    neighbours among the labels found, also those that had a blank between them: most programs want False.

    Raises `InvalidArgumentError` at run time if there are fewer sequences than ``top_paths``.
    """
    parts = ctc_beam_search_decoder_op(
        inputs,
        _lengths(sequence_length),
        beam_width=beam_width,
        top_paths=top_paths,
        merge_repeated=merge_repeated,
    )
    starts = (0, top_paths, 2 * top_paths)
    return [SparseTensor(*(parts[at + path] for at in starts)) for path in range(top_paths)], parts[-1]


def ctc_beam_search_decoder_v2(
    inputs: NumericLike, sequence_length: NumericLike, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Tensor]:
    """`ctc_beam_search_decoder` with ``merge_repeated=False``."""
    return ctc_beam_search_decoder(inputs, sequence_length, beam_width, top_paths, merge_repeated=False)


def _lengths(sequence_length: Any) -> Tensor:
    given = convert_to_tensor(sequence_length, None if _is_tensor(sequence_length) else int32)
    return cast(given, int32)


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "dtype", None), DType)
