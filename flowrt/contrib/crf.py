"""``flowrt.contrib.crf``: linear-chain conditional random fields over tags.

Lafferty et al., "Conditional random fields" (2001). A sequence of tags has the score of each tag at its step,
``inputs [batch, steps, tags]``, plus ``transition_params [tags, tags]`` from each tag to the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.dtypes import int32
from flowrt.functions.functional_ops import scan
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.gather_scatter import gather, gather_nd
from flowrt.graph.ops.array.ranges import range, sequence_mask
from flowrt.graph.ops.array.reductions import reduce_max, reduce_sum
from flowrt.graph.ops.array.statistics import argmax, reduce_logsumexp
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape, transpose
from flowrt.graph.ops.base.shape_manipulation import squeeze as without
from flowrt.graph.ops.elementwise.comparison import less, where
from flowrt.graph.source import misuse
from flowrt.tf1.missing_names import missing_from
from flowrt.variables.get_variable import get_variable

__all__ = [
    "crf_binary_score", "crf_decode", "crf_log_likelihood", "crf_log_norm", "crf_multitag_sequence_score",
    "crf_sequence_score", "crf_unary_score", "viterbi_decode",
]  # fmt: skip


def crf_unary_score(tag_indices: Any, sequence_lengths: Any, inputs: Any) -> Tensor:
    """The sum of the scores of the tags ``[batch, steps]``, ``[batch]``."""
    scores = gather(inputs, cast(tag_indices, int32), batch_dims=2)
    return reduce_sum(scores * _mask(sequence_lengths, shape(scores)[1], scores.dtype), 1)


def crf_binary_score(tag_indices: Any, sequence_lengths: Any, transition_params: Any) -> Tensor:
    """The sum of the scores of the transitions between the tags ``[batch, steps]``, ``[batch]``."""
    tags = cast(tag_indices, int32)
    pairs = stack([tags[:, :-1], tags[:, 1:]], -1)
    scores = gather_nd(transition_params, pairs)
    lengths = convert_to_tensor(sequence_lengths)
    return reduce_sum(scores * _mask(lengths - 1, shape(scores)[1], scores.dtype), 1)


def _mask(lengths: Any, steps: Any, dtype: Any) -> Tensor:
    return sequence_mask(lengths, steps, dtype)


def crf_sequence_score(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any
) -> Tensor:
    """The score of the sequence of tags ``[batch, steps]``, ``[batch]``; 0 of an empty one."""
    return crf_unary_score(tag_indices, sequence_lengths, inputs) + crf_binary_score(
        tag_indices, sequence_lengths, transition_params
    )


def crf_multitag_sequence_score(
    inputs: Any, tag_bitmap: Any, sequence_lengths: Any, transition_params: Any
) -> Tensor:
    """The logarithm of the sum over all sequences of the tags that ``tag_bitmap [batch, steps, tags]``
    allows, ``[batch]``.
    """
    scores = convert_to_tensor(inputs)
    allowed = where(cast(tag_bitmap, bool), scores, zeros_like(scores) - float("inf"))
    return crf_log_norm(allowed, sequence_lengths, transition_params)


def crf_log_norm(inputs: Any, sequence_lengths: Any, transition_params: Any) -> Tensor:
    """The logarithm of the sum over all sequences of tags, ``[batch]``; 0 for an empty sequence."""
    scores, lengths = convert_to_tensor(inputs), cast(sequence_lengths, int32)
    final = _alphas(scores, lengths, convert_to_tensor(transition_params))
    total = reduce_logsumexp(final, 1)
    return where(less(lengths, 1), zeros_like(total), total)


def _alphas(scores: Tensor, lengths: Tensor, transitions: Tensor) -> Tensor:
    """The logarithms of the sums over all sequences that end with each tag, ``[batch, tags]``."""

    def step(before: Tensor, at: Any) -> Tensor:
        time, score = at
        after = reduce_logsumexp(expand_dims(before, 2) + transitions, 1) + score
        return where(less(time, lengths), after, before)

    return _over_steps(step, scores)


def _over_steps(step: Any, scores: Tensor) -> Tensor:
    """The last value of ``step``, from the scores of the first step over those of all later ones."""
    by_time = transpose(scores, [1, 0, 2])
    rest = by_time[1:]
    found: Tensor = scan(step, (range(1, shape(scores)[1]), rest), by_time[0])
    return concat([by_time[:1], found], 0)[-1]  # there may be one step only


def crf_log_likelihood(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any = None
) -> tuple[Tensor, Any]:
    """``(log_likelihood [batch], transition_params)`` of the tags ``[batch, steps]`` among all sequences of
    tags. The transitions are the variable "transitions" if none are given.
    """
    scores = convert_to_tensor(inputs)
    tags = scores.shape.as_list()[-1]
    if transition_params is None:
        if tags is None:
            raise misuse(f"crf_log_likelihood: expected inputs with a known number of tags; got {scores!r}")
        transition_params = get_variable("transitions", [tags, tags], scores.dtype)
    score = crf_sequence_score(scores, tag_indices, sequence_lengths, transition_params)
    return score - crf_log_norm(scores, sequence_lengths, transition_params), transition_params


def crf_decode(potentials: Any, transition_params: Any, sequence_length: Any) -> tuple[Tensor, Tensor]:
    """``(tags [batch, steps] int32, score [batch])`` of the best sequence of tags, by Viterbi's algorithm;
    tags past the end are 0.
    """
    scores, transitions = convert_to_tensor(potentials), convert_to_tensor(transition_params)
    lengths = cast(sequence_length, int32)
    steps = shape(scores)[1]
    by_time = transpose(scores, [1, 0, 2])
    own = zeros_like(by_time[0], int32) + range(shape(scores)[2])

    def forward(carried: Any, at: Any) -> tuple[Tensor, Tensor]:
        best, _ = carried
        time, score = at
        paths = expand_dims(best, 2) + transitions
        is_in = less(time, lengths)
        after = where(is_in, reduce_max(paths, 1) + score, best)
        return after, where(is_in, cast(argmax(paths, 1), int32), own)

    bests, origins = scan(forward, (range(1, steps), by_time[1:]), (by_time[0], own))
    final = concat([by_time[:1], bests], 0)[-1]
    last = cast(argmax(final, 1), int32)

    def backward(tag: Tensor, origin: Tensor) -> Tensor:
        return without(gather(origin, expand_dims(tag, 1), batch_dims=1), [1])

    earlier = scan(backward, origins, last, reverse=True)
    tags = transpose(concat([earlier, expand_dims(last, 0)], 0))
    inside = cast(_mask(lengths, steps, int32), int32)
    return tags * inside, reduce_max(final, 1)


def viterbi_decode(score: Any, transition_params: Any) -> tuple[list[int], float]:
    """The best sequence of tags of the array ``score [steps, tags]``, and its score. Not in the graph."""
    scores, transitions = np.asarray(score), np.asarray(transition_params)
    best, origins = scores[0], []
    for row in scores[1:]:
        paths = best[:, None] + transitions
        origins.append(paths.argmax(0))
        best = paths.max(0) + row
    tags = [int(best.argmax())]
    for origin in reversed(origins):
        tags.append(int(origin[tags[-1]]))
    return tags[::-1], float(best.max())


__getattr__ = missing_from("contrib.crf")
