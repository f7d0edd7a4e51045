"""Sequences of labels from logits over time, without their times: the loss, and decoders.

``inputs`` are logits, [time, batch, classes], the last class the blank; ``sequence_length`` is [batch].
"""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import DType, int32
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import transpose
from flowrt.graph.ops.base.sparse_tensor import SparseTensor, SparseTensorValue
from flowrt.graph.ops.nn.ctc import ctc_beam_search_decoder_op, ctc_greedy_decoder_op, ctc_loss_op
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike

__all__ = ["ctc_beam_search_decoder", "ctc_greedy_decoder", "ctc_loss"]


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


def _lengths(sequence_length: Any) -> Tensor:
    given = convert_to_tensor(sequence_length, None if _is_tensor(sequence_length) else int32)
    return cast(given, int32)


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "dtype", None), DType)
