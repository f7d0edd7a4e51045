"""Losses of one replica, scaled so that the replicas' sum is the loss of the whole batch."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.variables.distribution_context import distribution_context


def compute_average_loss(
    per_example_loss: NumericLike, sample_weight: Any = None, global_batch_size: Any = None
) -> Tensor:
    """The sum of ``per_example_loss`` ``[batch, ...]``, weighted by ``sample_weight``, divided by the global
    batch size: by default this replica's batch times the number of replicas, so possibly uneven batches need
    ``global_batch_size``. Raises `InvalidArgumentError` for scalar losses.
    """
    losses: Any = convert_to_tensor(per_example_loss)
    if losses.shape.ndims == 0:
        raise misuse("compute_average_loss: expected one loss per example; got a scalar")
    if sample_weight is not None:
        losses = multiply(losses, cast(convert_to_tensor(sample_weight), losses.dtype))
    size: Any = shape(losses)[0] * _replicas() if global_batch_size is None else global_batch_size
    return realdiv(reduce_sum(losses), cast(size, losses.dtype))


def scale_regularization_loss(regularization_loss: Any) -> Tensor:
    """The sum of ``regularization_loss``, divided by the number of replicas, because each replica adds it.

    Not for the collection REGULARIZATION_LOSSES, which belongs to the first replica alone.
    """
    total: Any = reduce_sum(convert_to_tensor(regularization_loss))
    return realdiv(total, cast(_replicas(), total.dtype))


def _replicas() -> int:
    context = distribution_context()
    return 1 if context is None else int(context.strategy.num_replicas_in_sync)
