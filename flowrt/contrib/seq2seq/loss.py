"""The loss of a sequence model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.array.statistics import count_nonzero
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.division import div_no_nan
from flowrt.graph.ops.nn.losses import sparse_softmax_cross_entropy_with_logits
from flowrt.graph.source import misuse

__all__ = ["sequence_loss"]


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    sum_over_timesteps: bool = False,
    sum_over_batch: bool = False,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """The weighted cross entropy of ``logits [batch, time, classes]`` and ``targets [batch, time]``.

    Along an averaged axis the sum is divided by the sum of ``weights [batch, time]``; along a summed axis, by
    the number of nonzero weights. An axis with neither is kept. ``softmax_loss_function`` takes ``labels``
    and ``logits``, both flat. Raises `InvalidArgumentError` for other ranks, and for an axis that is both
    averaged and summed.
    """
    with get_default_graph().name_scope(name or "sequence_loss"):
        logits, targets, weights = map(convert_to_tensor, (logits, targets, weights))
        _check_ranks(logits=(logits, 3), targets=(targets, 2), weights=(weights, 2))
        for axis, both in (
            ("timesteps", average_across_timesteps and sum_over_timesteps),
            ("batch", average_across_batch and sum_over_batch),
        ):
            if both:
                raise misuse(f"sequence_loss: expected {axis} averaged or summed; got both")
        sizes: Any = shape(logits)
        function = softmax_loss_function or sparse_softmax_cross_entropy_with_logits
        flat = function(labels=reshape(targets, [-1]), logits=reshape(logits, [-1, sizes[2]]))
        losses = reshape(flat * reshape(weights, [-1]), sizes[:2])
        averaged = [i for i, on in enumerate((average_across_batch, average_across_timesteps)) if on]
        summed = [i for i, on in enumerate((sum_over_batch, sum_over_timesteps)) if on]
        if len(averaged) == 2 or (averaged and len(summed) < 2):
            axes = averaged if len(averaged) == 2 else averaged[:1]
            return div_no_nan(reduce_sum(losses, axes), reduce_sum(weights, axes))
        if summed:
            axes = summed if len(summed) == 2 else summed[:1]
            return div_no_nan(reduce_sum(losses, axes), cast(count_nonzero(weights, axes), losses.dtype))
        return losses


def _check_ranks(**expected: tuple[Tensor, int]) -> None:
    for name, (tensor, rank) in expected.items():
        if tensor.shape.rank not in (None, rank):
            raise misuse(f"sequence_loss: expected {name} of rank {rank}; got {tensor.shape}")
