"""Connectionist temporal classification: the loss of labels without times, and the labels of logits.

A path has a class, or the blank, at each time; the labels of a path are what is left when repetitions are
merged and blanks are dropped. A. Graves et al., Connectionist Temporal Classification, ICML (2006): the loss
sums over all paths by the forward-backward algorithm of its section 4.1, on the labels with a blank around
each. The blank is the last class, as in TensorFlow.

Kernels compute on the host; the loss for the whole batch at once, in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.base.identities import prevent_gradient
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.nn.ctc_beam import beam_search
from flowrt.graph.shapes import Shape, format_shape


def _on_host(xp: Any, arrays: Iterable[Any]) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(a if xp is np else xp.asnumpy(a)) for a in arrays]


def _all_delivered(xp: Any, results: Sequence[Any], out: Any) -> list[Any]:
    places = [None] * len(results) if out is None else out
    return [delivered(xp, xp.asarray(r), r.dtype, place) for r, place in zip(results, places, strict=True)]


def _check_logits(s: ShapeContext, lengths: int) -> tuple[int | None, int | None]:
    """The batch and the number of classes."""
    logits, counts = s.shapes[0], s.shapes[lengths]
    if logits is not None and len(logits) != 3:
        raise InvalidArgumentError(f"inputs: expected [time, batch, classes]; got {format_shape(logits)}")
    if counts is not None and len(counts) != 1:
        raise InvalidArgumentError(f"sequence_length: expected rank 1; got {format_shape(counts)}")
    batch, classes = (None, None) if logits is None else logits[1:]
    if batch is not None and counts is not None and counts[0] not in (batch, None):
        raise InvalidArgumentError(f"sequence_length: expected {batch} numbers, the batch; got {counts[0]}")
    return batch, classes


def _check_lengths(lengths: np.ndarray[Any, Any], times: int) -> None:
    wrong = np.flatnonzero((lengths < 0) | (lengths > times))
    if wrong.size:
        raise InvalidArgumentError(
            f"sequence_length: expected 0 to {times}, the times of the inputs; got {lengths[wrong[0]]} in "
            f"batch {wrong[0]}"
        )


def _log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    above = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    found: np.ndarray[Any, Any] = above - np.log(np.exp(above).sum(-1, keepdims=True))
    return found


# --- the loss


def _label_rows(indices: Any, values: Any, batch: int, blank: int, collapses: bool) -> list[list[int]]:
    """The labels of each sequence; the first blank ends them."""
    rows: list[list[int]] = [[] for _ in range(batch)]
    for row, label in zip(indices[:, 0].tolist(), values.tolist(), strict=True):
        if not 0 <= row < batch:
            raise InvalidArgumentError(f"labels: expected sequences in [0, {batch}); got {row}")
        if label < 0:
            raise InvalidArgumentError(f"labels: expected numbers from 0 on; got {label} in batch {row}")
        rows[row].append(label)
    return [_checked_row(labels, row, blank, collapses) for row, labels in enumerate(rows)]


def _checked_row(labels: list[int], row: int, blank: int, collapses: bool) -> list[int]:
    count = next((i for i, label in enumerate(labels) if label >= blank), len(labels))
    if any(label < blank for label in labels[count:]):
        raise InvalidArgumentError(
            f"labels: expected classes below the blank, {blank}, up to the end; got {labels} in batch {row}"
        )
    kept = labels[:count]
    return [x for i, x in enumerate(kept) if not (collapses and i and x == kept[i - 1])]


class _Lattice:
    """The states of paths, [batch, 2 labels + 1]: the labels with a blank around each, and moves between
    these. Beyond a sequence's own states there are more, from which no move leads back.
    """

    def __init__(self, rows: Sequence[Sequence[int]], blank: int, merges: bool) -> None:
        self.counts = np.array([len(row) for row in rows])
        self.states = np.full((len(rows), 2 * max(self.counts, default=0) + 1), blank)
        for states, row in zip(self.states, rows, strict=True):
            states[1 : 2 * len(row) : 2] = row
        is_blank = self.states == blank
        self.stays = is_blank | merges
        is_same = self.states[:, 2:] == self.states[:, :-2]
        self.skips = ~is_blank[:, 2:] & ~(is_same & merges)
        """Whether a path may go to a state, from the third on, without the blank before it."""

    def needed(self, row: int) -> int:
        """The fewest times of a path of the labels ``row``."""
        own = self.states[row, 1 : 2 * self.counts[row] : 2]
        is_same = own[1:] == own[:-1]
        return len(own) + int((is_same & ~self.skips[row, 1 : 2 * len(own) - 2 : 2]).sum()) if len(own) else 0

    def last(self) -> np.ndarray[Any, Any]:
        """The states in which a path may end."""
        at = np.arange(self.states.shape[1])
        ends: np.ndarray[Any, Any] = abs(2 * self.counts[:, None] - 0.5 - at) < 1
        return ends

    def forward(self, emitted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The logarithms of the probabilities to be in each state at each time, with what was emitted."""
        reached = np.full_like(emitted, -np.inf)
        reached[0, :, :2] = emitted[0, :, :2]
        for t in range(1, len(emitted)):
            before, now = reached[t - 1], np.where(self.stays, reached[t - 1], -np.inf)
            now[:, 1:] = np.logaddexp(now[:, 1:], before[:, :-1])
            now[:, 2:] = np.where(self.skips, np.logaddexp(now[:, 2:], before[:, :-2]), now[:, 2:])
            reached[t] = now + emitted[t]
        return reached

    def backward(self, emitted: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The logarithms of the probabilities to emit the rest and end, from each state at each time."""
        rest = np.full_like(emitted, -np.inf)
        ends = np.where(self.last(), 0.0, -np.inf)
        for t in range(len(emitted) - 1, -1, -1):
            if t + 1 < len(emitted):
                after = rest[t + 1] + emitted[t + 1]
                now = np.where(self.stays, after, -np.inf)
                now[:, :-1] = np.logaddexp(now[:, :-1], after[:, 1:])
                now[:, :-2] = np.where(self.skips, np.logaddexp(now[:, :-2], after[:, 2:]), now[:, :-2])
                rest[t] = now
            rest[t] = np.where((lengths == t + 1)[:, None], ends, rest[t])
        return rest


def _ctc_loss(
    xp: Any, inputs: Any, labels_indices: Any, labels_values: Any, sequence_length: Any,
    preprocess_collapse_repeated: bool, ctc_merge_repeated: bool,
    ignore_longer_outputs_than_inputs: bool, out: Any = None,
) -> list[Any]:  # fmt: skip
    logits, indices, values, lengths = _on_host(xp, (inputs, labels_indices, labels_values, sequence_length))
    times, batch, classes = logits.shape
    _check_lengths(lengths, times)
    rows = _label_rows(indices, values, batch, classes - 1, preprocess_collapse_repeated)
    lattice = _Lattice(rows, classes - 1, ctc_merge_repeated)
    is_used = lengths > 0
    for row, length in enumerate(lengths):
        if lattice.needed(row) > length:
            if not ignore_longer_outputs_than_inputs:
                raise InvalidArgumentError(
                    f"labels: expected at most {length} times, the sequence's; got labels that need "
                    f"{lattice.needed(row)} in batch {row}. ignore_longer_outputs_than_inputs=True leaves "
                    "such sequences out"
                )
            is_used[row] = False
    logs = _log_softmax(logits)
    loss, slope = np.zeros(batch), np.exp(logs)
    if times:
        emitted = np.take_along_axis(logs, np.broadcast_to(lattice.states, (times, *lattice.states.shape)), 2)
        reached, rest = lattice.forward(emitted), lattice.backward(emitted, lengths)
        at_end = reached[lengths - 1, np.arange(batch)]
        total = np.logaddexp.reduce(np.where(lattice.last(), at_end, -np.inf), axis=1)
        loss = np.where(is_used, -total, 0.0)
        with np.errstate(invalid="ignore"):  # -inf + inf, where no path is possible
            shares = np.nan_to_num(np.exp(reached + rest - total[:, None]))
        for state in range(shares.shape[2]):
            slope[:, np.arange(batch), lattice.states[:, state]] -= shares[:, :, state]
        is_there = is_used & np.isfinite(total) & (np.arange(times)[:, None] < lengths)
        slope = np.where(is_there[:, :, None], slope, 0.0)
    return _all_delivered(xp, [loss.astype(logits.dtype), slope.astype(logits.dtype)], out)


def _ctc_loss_shape(s: ShapeContext) -> Sequence[Shape]:
    batch, _ = _check_logits(s, 3)
    return [(batch,), s.shapes[0]]


def _ctc_loss_vjp(op: Operation, loss: Tensor | None, gradient: Tensor | None) -> list[Tensor | None]:
    if loss is None:
        return [None] * 4
    slope = prevent_gradient(op.outputs[1], message="ctc_loss has no second derivative")
    return [multiply(expand_dims(loss, -1), slope), None, None, None]


def _labelled(rng: np.random.Generator) -> Iterable[Sample]:
    logits = rng.standard_normal((6, 3, 4))
    indices = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]])
    labels, lengths = np.array([0, 0, 2, 1, 2], np.int32), np.array([6, 5, 0], np.int32)
    yield sample(logits, indices, labels, lengths, differentiable=False)  # the second output is a derivative
    yield sample(logits.astype(np.float32), indices, labels, lengths, ctc_merge_repeated=False)


ctc_loss_op: OpDef[list[Tensor]] = define_op(
    "CTCLoss",
    "inputs: T in float32 | float64, labels_indices: int64, labels_values: int32, sequence_length: int32 "
    "-> loss: T, gradient: T",
    attrs="preprocess_collapse_repeated: bool = False, ctc_merge_repeated: bool = True, "
    "ignore_longer_outputs_than_inputs: bool = False",
    shape=_ctc_loss_shape,
    kernel=_ctc_loss,
    vjp=_ctc_loss_vjp,
    samples=_labelled,
    doc="Minus the logarithm of the probability of each sequence's labels, and its gradient.",
)


# --- decoders


def _as_sparse(rows: Sequence[Sequence[int]]) -> list[np.ndarray[Any, Any]]:
    """The indices, values and shape of a sparse tensor of the labels of each sequence."""
    indices = [(row, i) for row, labels in enumerate(rows) for i in range(len(labels))]
    return [
        np.array(indices, np.int64).reshape(-1, 2),
        np.array([label for labels in rows for label in labels], np.int64),
        np.array([len(rows), max(map(len, rows), default=0)], np.int64),
    ]


def _without_repetitions(labels: Iterable[int]) -> Iterator[int]:
    previous = None
    for label in labels:
        if label != previous:
            yield label
        previous = label


def _greedy(xp: Any, inputs: Any, sequence_length: Any, merge_repeated: bool, out: Any = None) -> list[Any]:
    logits, lengths = _on_host(xp, (inputs, sequence_length))
    times, _, classes = logits.shape
    _check_lengths(lengths, times)
    is_there = np.arange(times)[:, None] < lengths
    total = -np.where(is_there, logits.max(-1), 0).sum(0, dtype=logits.dtype)
    rows = []
    for path, length in zip(logits.argmax(-1).T.tolist(), lengths, strict=True):
        taken = path[:length]
        merged = _without_repetitions(taken) if merge_repeated else taken
        rows.append([label for label in merged if label != classes - 1])
    return _all_delivered(xp, [*_as_sparse(rows), total[:, None]], out)


ctc_greedy_decoder_op: OpDef[list[Tensor]] = define_op(
    "CTCGreedyDecoder",
    "inputs: T in float32 | float64, sequence_length: int32 "
    "-> decoded_indices: int64, decoded_values: int64, decoded_shape: int64, log_probability: T",
    attrs="merge_repeated: bool = False",
    shape=lambda s: [(None, 2), (None,), (2,), (_check_logits(s, 1)[0], 1)],
    kernel=_greedy,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [
        sample(rng.standard_normal((5, 2, 3)), np.array([5, 3], np.int32), merge_repeated=True),
        sample(rng.standard_normal((5, 2, 3)).astype(np.float32), np.array([0, 5], np.int32)),
    ],
    doc="The labels of the most probable path, and minus the sum of its logits.",
)


def _beam_search(
    xp: Any, inputs: Any, sequence_length: Any, beam_width: int, top_paths: int, merge_repeated: bool,
    out: Any = None,
) -> list[Any]:  # fmt: skip
    logits, lengths = _on_host(xp, (inputs, sequence_length))
    _check_lengths(lengths, len(logits))
    if not 0 < top_paths <= beam_width:
        raise InvalidArgumentError(
            f"expected top_paths between 1 and beam_width; got {top_paths} and {beam_width}"
        )
    rows: list[list[list[int]]] = [[] for _ in range(top_paths)]
    scores = np.empty((logits.shape[1], top_paths), logits.dtype)
    for row, length in enumerate(lengths):
        found = beam_search(logits[:length, row], beam_width, top_paths)
        if len(found) < top_paths:
            raise InvalidArgumentError(
                f"top_paths: expected at most {len(found)}, as many as there are in batch {row}; got "
                f"{top_paths}"
            )
        for path, (labels, score) in enumerate(found):
            rows[path].append([*(_without_repetitions(labels) if merge_repeated else labels)])
            scores[row, path] = score
    parts = list(zip(*map(_as_sparse, rows), strict=True))
    return _all_delivered(xp, [*(each for part in parts for each in part), scores], out)


def _paths_shape(s: ShapeContext) -> Sequence[Shape]:
    count = s.attrs["top_paths"]
    batch, _ = _check_logits(s, 1)
    return [*[(None, 2)] * count, *[(None,)] * count, *[(2,)] * count, (batch, count)]


ctc_beam_search_decoder_op: OpDef[list[Tensor]] = define_op(
    "CTCBeamSearchDecoder",
    "inputs: T in float32 | float64, sequence_length: int32 -> decoded_indices: top_paths * int64, "
    "decoded_values: top_paths * int64, decoded_shape: top_paths * int64, log_probability: T",
    attrs="beam_width: int, top_paths: int, merge_repeated: bool = True",
    shape=_paths_shape,
    kernel=_beam_search,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [
        sample(rng.standard_normal((5, 2, 3)), np.array([5, 3], np.int32), beam_width=4, top_paths=2)
    ],
    doc="The most probable labels, by a beam search over prefixes, and their log probabilities.",
)
