"""``flowrt.contrib.tpu``: infeed and outfeed, on any device; what programs for TPUs do without them."""

from typing import Any

from flowrt.estimator.tpu import InputPipelineConfig, RunConfig, TPUConfig, TPUEstimator, TPUEstimatorSpec
from flowrt.graph.ops.state.infeed import (
    infeed_dequeue,
    infeed_dequeue_tuple,
    infeed_enqueue,
    infeed_enqueue_tuple,
    outfeed_dequeue,
    outfeed_dequeue_tuple,
    outfeed_enqueue,
    outfeed_enqueue_tuple,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "CrossShardOptimizer", "InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator",
    "TPUEstimatorSpec", "cross_replica_sum", "infeed_dequeue", "infeed_dequeue_tuple", "infeed_enqueue",
    "infeed_enqueue_tuple", "outfeed_dequeue", "outfeed_dequeue_tuple", "outfeed_enqueue",
    "outfeed_enqueue_tuple",
]  # fmt: skip


def CrossShardOptimizer(
    opt: Any,
    reduction: str = "weighted_mean",
    name: str = "CrossShardOptimizer",
    group_assignment: Any = None,
) -> Any:
    """``opt`` itself: the gradients of one shard are those of all."""
    return opt


def cross_replica_sum(x: Any, group_assignment: Any = None, name: str | None = None) -> Any:
    """``x`` itself, the sum over one replica."""
    return x


__getattr__ = missing_from("contrib.tpu")
