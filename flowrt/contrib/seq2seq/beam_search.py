"""`BeamSearchDecoder`: the ``beam_width`` most probable sequences of a decoder, found step by step.

A state of the search has ``[batch, beam, ...]`` tensors; the cell is called with ``[batch * beam, ...]``.
Scalars, such as the number of the step, and TensorArrays belong to all beams alike.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from flowrt.contrib.seq2seq.attention_wrapper import AttentionWrapperState
from flowrt.contrib.seq2seq.decoder_inputs import embedding_function
from flowrt.contrib.seq2seq.decoding import Decoder, shape_of_size
from flowrt.contrib.seq2seq.gather_tree import gather_tree
from flowrt.dtypes import float32, int32, int64
from flowrt.functions.tensor_array import TensorArray
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.ranges import one_hot, range, sequence_mask
from flowrt.graph.ops.array.reductions import reduce_max, reduce_sum
from flowrt.graph.ops.array.sorting import top_k
from flowrt.graph.ops.array.tile_and_reverse import tile
from flowrt.graph.ops.base.filling import fill, ones_like, zeros, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, size, transpose
from flowrt.graph.ops.elementwise.arithmetic import minimum, power
from flowrt.graph.ops.elementwise.comparison import equal, logical_not, logical_or, where
from flowrt.graph.ops.elementwise.division import floor_div, floormod
from flowrt.graph.ops.elementwise.math import log
from flowrt.graph.ops.nn.softmax import log_softmax
from flowrt.graph.source import misuse
from flowrt.nest import flatten, map_structure
from flowrt.nn.rnn_cell.base import check_cell


class BeamSearchDecoderState(NamedTuple):
    """State of the search: the cell's ``[batch, beam, ...]``, and of each beam its log probability, whether
    it is finished, its length, and the attention that it has paid so far to each step of the memory.
    """

    cell_state: Any
    log_probs: Any
    finished: Any
    lengths: Any
    accumulated_attention_probs: Any


class BeamSearchDecoderOutput(NamedTuple):
    """A step of the search ``[batch, beam]``: scores, the tokens added, and the beams they were added to."""

    scores: Any
    predicted_ids: Any
    parent_ids: Any


class FinalBeamSearchDecoderOutput(NamedTuple):
    """The sequences found, the best first, ``[batch, time, beam]``; and the steps of the search."""

    predicted_ids: Any
    beam_search_decoder_output: Any


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Each row of the tensors in ``t`` ``multiplier`` times in a row: a batch for as many beams."""

    def tiled(tensor: Any) -> Tensor:
        rows = convert_to_tensor(tensor)
        if rows.shape.ndims is None or rows.shape.ndims < 1:
            raise misuse(f"tile_batch: expected tensors of known rank with rows; got {rows!r}")
        sizes: Any = shape(rows)
        repeated = tile(expand_dims(rows, 1), [1, multiplier] + [1] * (rows.shape.ndims - 1))
        result = reshape(repeated, concat([sizes[:1] * multiplier, sizes[1:]], 0))
        count = rows.shape.as_list()[0]
        result.set_shape([None if count is None else count * multiplier, *rows.shape.as_list()[1:]])
        return result

    with get_default_graph().name_scope(name or "tile_batch"):
        return map_structure(tiled, t)


class BeamSearchDecoder(Decoder):
    """A decoder of the ``beam_width`` best sequences. ``initial_state``, and the memory of an attention, are
    those of `tile_batch` (t, beam_width). ``start_tokens`` is ``[batch]``.

    Sequences are ranked by log probability over ``((5 + length) / 6) ** length_penalty_weight``, plus
    ``coverage_penalty_weight`` times the logarithms of the attention paid to each step of the memory, at most
    1: Wu et al., "Google's neural machine translation system" (2016). With ``reorder_tensor_arrays`` a
    history of alignments is returned stacked, each beam with its own past.

    Raises `DTypeError` for something that is no cell, `InvalidArgumentError` for tokens of other ranks.
    """

    def __init__(
        self,
        cell: Any,
        embedding: Any,
        start_tokens: Any,
        end_token: Any,
        initial_state: Any,
        beam_width: int,
        output_layer: Any = None,
        length_penalty_weight: float = 0.0,
        coverage_penalty_weight: float = 0.0,
        reorder_tensor_arrays: bool = True,
    ) -> None:
        check_cell("BeamSearchDecoder", cell)
        self._cell, self._layer, self._width = cell, output_layer, beam_width
        self._embed = embedding_function(embedding)
        self._start = convert_to_tensor(start_tokens, int32)
        self._end = convert_to_tensor(end_token, int32)
        if self._start.shape.ndims != 1 or self._end.shape.ndims != 0:
            raise misuse(
                "BeamSearchDecoder: expected a vector of start_tokens and a scalar end_token; got "
                f"{self._start!r} and {self._end!r}"
            )
        self._length_weight, self._coverage_weight = length_penalty_weight, coverage_penalty_weight
        self._reorders = reorder_tensor_arrays
        self._check_rows(initial_state)
        self._initial_state = map_structure(self._split, initial_state)

    def _check_rows(self, state: Any) -> None:
        batch = self._start.shape.as_list()[0]
        for each in flatten(state):
            rows = each.shape.as_list()[0] if isinstance(each, Tensor) and each.shape.ndims else None
            if batch is not None and rows not in (None, batch * self._width):
                raise misuse(
                    "BeamSearchDecoder: initial_state: expected batch * beam_width rows, "
                    f"{batch * self._width}; got {each!r}. Make it of tile_batch(..., beam_width)"
                )

    @property
    def batch_size(self) -> Any:
        known = self._start.shape.as_list()[0]
        return size(self._start) if known is None else known

    @property
    def tracks_own_finished(self) -> bool:
        """True: a beam that was finished may be replaced by one that is not."""
        return True

    @property
    def output_size(self) -> BeamSearchDecoderOutput:
        return BeamSearchDecoderOutput(*[shape_of_size(self._width)] * 3)

    @property
    def output_dtype(self) -> BeamSearchDecoderOutput:
        dtype = flatten(self._initial_state)[0].dtype
        return BeamSearchDecoderOutput(dtype, int32, int32)

    # --- beams as rows

    def _split(self, rows: Any) -> Any:
        """``[batch * beam, ...]`` as ``[batch, beam, ...]``."""
        if isinstance(rows, TensorArray) or rows.shape.ndims == 0:
            return rows
        sizes: Any = shape(rows)
        result = reshape(rows, concat([[self.batch_size, self._width], sizes[1:]], 0))
        result.set_shape([self._known_batch, self._width, *rows.shape.as_list()[1:]])
        return result

    def _merge(self, beams: Any) -> Any:
        """``[batch, beam, ...]`` as ``[batch * beam, ...]``."""
        if isinstance(beams, TensorArray) or beams.shape.ndims == 0:
            return beams
        sizes: Any = shape(beams)
        result = reshape(beams, concat([sizes[:1] * sizes[1:2], sizes[2:]], 0))
        known = self._known_batch
        result.set_shape([None if known is None else known * self._width, *beams.shape.as_list()[2:]])
        return result

    @property
    def _known_batch(self) -> int | None:
        return self._start.shape.as_list()[0]

    # --- the search

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        first = zeros([self.batch_size], int32)
        dtype = flatten(self._initial_state)[0].dtype
        only_first = {"depth": self._width, "dtype": dtype}
        state = BeamSearchDecoderState(
            cell_state=self._initial_state,
            log_probs=one_hot(first, on_value=0.0, off_value=-math.inf, **only_first),
            finished=one_hot(first, self._width, on_value=False, off_value=True, dtype=bool),
            lengths=zeros([self.batch_size, self._width], int64),
            accumulated_attention_probs=self._no_attention(),
        )
        inputs = self._embed(tile(expand_dims(self._start, 1), [1, self._width]))
        return state.finished, inputs, state

    def _no_attention(self) -> Any:
        if not self._coverage_weight:
            return ()
        return zeros_like(_alignments_of(self._initial_state))

    def step(self, time: Any, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, ...]:
        with get_default_graph().name_scope(name or "BeamSearchDecoderStep"):
            merged = map_structure(self._merge, state.cell_state)
            outputs, cell_state = self._cell(map_structure(self._merge, inputs), merged)
            logits = self._split(outputs if self._layer is None else self._layer(outputs))
            found, following = self._ranked(logits, map_structure(self._split, cell_state), state)
            return found, following, self._embed(found.predicted_ids), following.finished

    def _ranked(
        self, logits: Tensor, cell_state: Any, state: BeamSearchDecoderState
    ) -> tuple[BeamSearchDecoderOutput, BeamSearchDecoderState]:
        """The best continuations of the beams by ``logits`` [batch, beam, tokens]."""
        tokens: Any = logits.shape.as_list()[-1] or shape(logits)[-1]
        totals = expand_dims(state.log_probs, 2) + self._step_log_probs(logits, state.finished, tokens)
        added = one_hot(self._end, tokens, on_value=0, off_value=1, dtype=int64)  # the end has no length
        lengths = expand_dims(state.lengths, 2) + added * expand_dims(
            cast(logical_not(state.finished), int64), 2
        )
        attention = state.accumulated_attention_probs
        if self._coverage_weight:
            attention = attention + _masked(state.finished, _alignments_of(cell_state))
        scores = self._scores(totals, lengths, attention)
        best, places = top_k(reshape(scores, [self.batch_size, -1]), self._width)
        best.set_shape([self._known_batch, self._width])
        places.set_shape([self._known_batch, self._width])
        words, parents = floormod(places, tokens), floor_div(places, tokens)

        def of_parents(beams: Any) -> Any:
            if isinstance(beams, TensorArray) or beams.shape.ndims == 0:
                return beams
            chosen = gather(beams, parents, batch_dims=1)
            chosen.set_shape(beams.shape)
            return chosen

        was_finished = of_parents(state.finished)
        log_probs = gather(reshape(totals, [self.batch_size, -1]), places, batch_dims=1)
        log_probs.set_shape(best.shape)
        following = BeamSearchDecoderState(
            cell_state=map_structure(of_parents, cell_state),
            log_probs=log_probs,
            finished=logical_or(was_finished, equal(words, self._end)),
            lengths=of_parents(state.lengths) + cast(logical_not(was_finished), int64),
            accumulated_attention_probs=map_structure(of_parents, attention),
        )
        return BeamSearchDecoderOutput(best, words, parents), following

    def _step_log_probs(self, logits: Tensor, finished: Tensor, tokens: Any) -> Tensor:
        """Log probabilities of the next token; a finished beam continues with the end token only."""
        probs = log_softmax(logits)
        lowest = float(logits.dtype.min)
        end = one_hot(self._end, tokens, on_value=0.0, off_value=lowest, dtype=logits.dtype)
        is_ended = fill(shape(probs), True) & expand_dims(finished, 2)
        return where(is_ended, ones_like(probs) * end, probs)

    def _scores(self, totals: Tensor, lengths: Tensor, attention: Any) -> Tensor:
        scores = totals
        if self._length_weight:
            penalty = power((5.0 + cast(lengths, float32)) / 6.0, self._length_weight)
            scores = scores / cast(penalty, totals.dtype)
        if self._coverage_weight:
            covered = reduce_sum(log(minimum(attention, 1.0)), 2)
            scores = scores + self._coverage_weight * expand_dims(covered, 2)
        return scores

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """`FinalBeamSearchDecoderOutput` of the steps, and the last state."""
        longest = cast(reduce_max(final_state.lengths, axis=1), int32)
        found = gather_tree(outputs.predicted_ids, outputs.parent_ids, longest, self._end)
        if self._reorders:
            histories = map_structure(
                lambda part: self._reordered(part, outputs.parent_ids, final_state.lengths),
                final_state.cell_state,
            )
            final_state = final_state._replace(cell_state=histories)
        return FinalBeamSearchDecoderOutput(found, outputs), final_state

    def _reordered(self, part: Any, parents: Tensor, lengths: Tensor) -> Any:
        """A TensorArray of ``[batch * beam, ...]`` steps, stacked; each beam has those of its sequence."""
        if not isinstance(part, TensorArray):
            return part
        stacked = part.stack()
        sizes: Any = shape(stacked)
        own = zeros_like(parents) + range(self._width)
        longest = cast(reduce_max(lengths, axis=1), int32)
        beams = gather_tree(own, parents, longest, self._width + 1)
        is_in = transpose(sequence_mask(lengths, shape(parents)[0]), [2, 0, 1])
        beams = where(is_in, beams, own)
        steps = reshape(stacked, concat([sizes[:1], [self.batch_size, self._width], sizes[2:]], 0))
        return reshape(gather(steps, beams, batch_dims=2), sizes)


def _masked(finished: Tensor, alignments: Tensor) -> Tensor:
    """``alignments`` [batch, beam, steps], zero where a beam is finished."""
    return alignments * expand_dims(cast(logical_not(finished), alignments.dtype), 2)


def _alignments_of(cell_state: Any) -> Any:
    """The alignments in the state of an `AttentionWrapper`; raises `InvalidArgumentError` for others."""
    if not isinstance(cell_state, AttentionWrapperState) or isinstance(cell_state.alignments, tuple):
        raise misuse(
            "BeamSearchDecoder: expected the state of an AttentionWrapper with one mechanism, for "
            f"coverage_penalty_weight; got {cell_state!r:.80}"
        )
    return cell_state.alignments
