"""``flowrt.contrib.training``: training by losses, evaluations, and how variables are spread over servers.

train_ops                losses that train when they are computed, and a loop
checkpoint_evaluation    metrics of checkpoints
hparams                  `HParams`
"""

from flowrt.contrib.training.checkpoint_evaluation import (
    StopAfterNEvalsHook,
    SummaryAtEndHook,
    evaluate_once,
    evaluate_repeatedly,
)
from flowrt.contrib.training.hparams import HParams
from flowrt.contrib.training.train_ops import (
    add_gradients_summaries,
    clip_gradient_norms,
    clip_gradient_norms_fn,
    create_train_op,
    multiply_gradients,
    train,
)
from flowrt.tf1.missing_names import missing_from
from flowrt.train.checkpoints.new_checkpoints import checkpoints_iterator, wait_for_new_checkpoint
from flowrt.train.sessions.device_setter import GreedyLoadBalancingStrategy, byte_size_load_fn

__all__ = [
    "GreedyLoadBalancingStrategy", "HParams", "StopAfterNEvalsHook", "SummaryAtEndHook",
    "add_gradients_summaries", "byte_size_load_fn", "checkpoints_iterator", "clip_gradient_norms",
    "clip_gradient_norms_fn", "create_train_op", "evaluate_once", "evaluate_repeatedly", "multiply_gradients",
    "train", "wait_for_new_checkpoint",
]  # fmt: skip


__getattr__ = missing_from("contrib.training")
