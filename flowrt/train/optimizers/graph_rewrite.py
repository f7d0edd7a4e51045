"""Mixed precision for a script that is one call away from it, under TensorFlow's names."""

from __future__ import annotations

from typing import Any

from flowrt.errors import FailedPreconditionError
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.precision import Precision
from flowrt.graph.source import misuse
from flowrt.train.optimizers.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer
from flowrt.train.optimizers.optimizer import Optimizer

__all__ = ["disable_mixed_precision_graph_rewrite", "enable_mixed_precision_graph_rewrite"]


def enable_mixed_precision_graph_rewrite(
    opt: Optimizer, loss_scale: Any = "dynamic"
) -> MixedPrecisionLossScaleOptimizer:
    """Compute the products of the default graph's variables, present and future, in float16, and return
    ``opt`` with a scaled loss. Variables, losses and what needs range stay float32.

    >>> with tf.Graph().as_default():
    ...     x, w = tf.placeholder(tf.float32, [None, 3]), tf.get_variable("w", [3, 1])
    ...     opt = tf.train.AdamOptimizer(0.01)
    ...     opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)
    ...     train = opt.minimize(tf.reduce_mean(tf.square(tf.matmul(x, w))))

    For bfloat16, which needs no scale, set `Graph.precision` instead. Raises as
    `MixedPrecisionLossScaleOptimizer`, and `FailedPreconditionError` if the graph has another precision.
    """
    scaled = MixedPrecisionLossScaleOptimizer(opt, loss_scale)
    graph, half = get_default_graph(), Precision("float16")
    if graph.precision not in (None, half):
        raise misuse(
            f"enable_mixed_precision_graph_rewrite: expected a graph without a precision; got one of "
            f"{graph.precision}",
            FailedPreconditionError,
        )
    graph.precision = half
    return scaled


def disable_mixed_precision_graph_rewrite() -> None:
    """Compute the products of the default graph's variables in their own dtype again."""
    get_default_graph().precision = None
