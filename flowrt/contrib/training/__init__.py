"""``flowrt.contrib.training``: losses that train, evaluations, hyperparameters, and how variables are spread
over parameter servers.

train_ops               a loss that trains when it is computed
checkpoint_evaluation   metrics of a checkpoint, or of each new one
hparams                 `HParams`
"""

from typing import Any

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
)
from flowrt.tf1.missing_names import missing_from
from flowrt.train.checkpoints.new_checkpoints import checkpoints_iterator, wait_for_new_checkpoint
from flowrt.train.sessions.device_setter import GreedyLoadBalancingStrategy, byte_size_load_fn
from flowrt.train.sessions.monitored_session import MonitoredTrainingSession

__all__ = [
    "GreedyLoadBalancingStrategy", "HParams", "StopAfterNEvalsHook", "SummaryAtEndHook",
    "add_gradients_summaries", "byte_size_load_fn", "checkpoints_iterator", "clip_gradient_norms",
    "clip_gradient_norms_fn", "create_train_op", "evaluate_once", "evaluate_repeatedly", "multiply_gradients",
    "train", "wait_for_new_checkpoint",
]  # fmt: skip


def train(
    train_op: Any,
    logdir: Any,
    master: str = "",
    is_chief: bool = True,
    scaffold: Any = None,
    hooks: Any = None,
    chief_only_hooks: Any = None,
    save_checkpoint_secs: float | None = 600,
    save_summaries_steps: int | None = 100,
    config: Any = None,
    max_wait_secs: float = 7200,
) -> Any:
    """Run ``train_op``, of `create_train_op`, until a hook stops it; returns its last value. The other
    arguments are those of `MonitoredTrainingSession`. Raises `InvalidArgumentError` for a ``logdir`` of None
    with checkpoints or summaries, as that does.
    """
    loss = None
    with MonitoredTrainingSession(
        master, is_chief, logdir, scaffold, hooks, chief_only_hooks, save_checkpoint_secs,
        save_summaries_steps, config=config, max_wait_secs=max_wait_secs,
    ) as session:  # fmt: skip
        while not session.should_stop():
            loss = session.run(train_op)
    return loss


__getattr__ = missing_from("contrib.training")
