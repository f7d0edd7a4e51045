"""`gather_tree`: the sequences that the beams of a search ended with, from its steps."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import int32
from flowrt.functions.functional_ops import scan
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.ranges import range
from flowrt.graph.ops.array.scans import cumsum
from flowrt.graph.ops.base.filling import fill, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.comparison import equal, greater, less, where


def gather_tree(
    step_ids: Any, parent_ids: Any, max_sequence_lengths: Any, end_token: Any, name: str | None = None
) -> Tensor:
    """The tokens of each beam, ``[time, batch, beam]``, from the last step back along its parents.

    ``step_ids`` and ``parent_ids`` are ``[time, batch, beam]`` int32: the token that a step added, and the
    beam that it was added to. Tokens past ``max_sequence_lengths`` [batch], and behind the first
    ``end_token`` of a sequence, are ``end_token``.
    """
    with get_default_graph().name_scope(name or "GatherTree"):
        tokens, parents, lengths, end = (
            cast(given, int32) for given in (step_ids, parent_ids, max_sequence_lengths, end_token)
        )
        steps = shape(tokens)[0]
        own = zeros_like(tokens[0]) + range(shape(tokens)[2])

        def back(carried: Any, step: Any) -> tuple[Tensor, Tensor]:
            """The beams that the sequences were in before ``step``, and their tokens of it."""
            _, beams = carried
            time, ids, before = step
            is_in = fill(shape(beams), True) & reshape(less(time, lengths), [-1, 1])
            token = where(is_in, gather(ids, beams, batch_dims=1), fill(shape(beams), end))
            return token, where(is_in, gather(before, beams, batch_dims=1), beams)

        found, _ = scan(back, (range(steps), tokens, parents), (zeros_like(tokens[0]), own), reverse=True)
        ended = cumsum(cast(equal(found, end), tokens.dtype), axis=0, exclusive=True)
        return where(greater(ended, 0), fill(shape(found), end), found)
