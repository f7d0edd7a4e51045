"""``flowrt.train.experimental``: mixed precision, and the scales of losses that it needs."""

from flowrt.tf1.missing_names import missing_from
from flowrt.train.optimizers.graph_rewrite import (
    disable_mixed_precision_graph_rewrite,
    enable_mixed_precision_graph_rewrite,
)
from flowrt.train.optimizers.loss_scale import DynamicLossScale, FixedLossScale, LossScale
from flowrt.train.optimizers.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer

__all__ = [
    "DynamicLossScale", "FixedLossScale", "LossScale", "MixedPrecisionLossScaleOptimizer",
    "disable_mixed_precision_graph_rewrite", "enable_mixed_precision_graph_rewrite",
]  # fmt: skip

__getattr__ = missing_from("train.experimental")
