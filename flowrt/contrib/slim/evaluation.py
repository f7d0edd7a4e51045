"""``contrib.slim.evaluation``: metrics of checkpoints, with summaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.contrib.training import checkpoint_evaluation, checkpoints_iterator, wait_for_new_checkpoint
from flowrt.contrib.training.checkpoint_evaluation import StopAfterNEvalsHook, SummaryAtEndHook
from flowrt.summary import merge_all
from flowrt.tf1.missing_names import missing_from
from flowrt.tf1.training.supervisor import USE_DEFAULT
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.checkpoints.scaffold import Scaffold

__all__ = ["checkpoints_iterator", "evaluate_once", "evaluation_loop", "wait_for_new_checkpoint"]


def evaluate_once(
    master: str,
    checkpoint_path: Any,
    logdir: Any,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: Any = None,
    eval_op: Any = None,
    eval_op_feed_dict: Any = None,
    final_op: Any = None,
    final_op_feed_dict: Any = None,
    summary_op: Any = USE_DEFAULT,
    summary_op_feed_dict: Any = None,
    variables_to_restore: Any = None,
    session_config: Any = None,
    hooks: Sequence[Any] | None = None,
) -> Any:
    """Restore a checkpoint, run ``eval_op`` ``num_evals`` times and return the value of ``final_op``;
    ``summary_op``, by default all summaries, is written to ``logdir``.
    """
    return checkpoint_evaluation.evaluate_once(
        checkpoint_path, master,
        _scaffold(initial_op, initial_op_feed_dict, None, variables_to_restore),
        eval_op, eval_op_feed_dict, final_op, final_op_feed_dict,
        _hooks(num_evals, logdir, summary_op, summary_op_feed_dict, hooks), session_config,
    )  # fmt: skip


def evaluation_loop(
    master: str,
    checkpoint_dir: Any,
    logdir: Any,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: Any = None,
    init_fn: Callable[..., Any] | None = None,
    eval_op: Any = None,
    eval_op_feed_dict: Any = None,
    final_op: Any = None,
    final_op_feed_dict: Any = None,
    summary_op: Any = USE_DEFAULT,
    summary_op_feed_dict: Any = None,
    variables_to_restore: Any = None,
    eval_interval_secs: float = 60,
    max_number_of_evaluations: int | None = None,
    session_config: Any = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    hooks: Sequence[Any] | None = None,
) -> Any:
    """`evaluate_once` for each new checkpoint of a directory; see `contrib.training.evaluate_repeatedly`."""
    return checkpoint_evaluation.evaluate_repeatedly(
        checkpoint_dir, master,
        _scaffold(initial_op, initial_op_feed_dict, init_fn, variables_to_restore),
        eval_op, eval_op_feed_dict, final_op, final_op_feed_dict, eval_interval_secs,
        _hooks(num_evals, logdir, summary_op, summary_op_feed_dict, hooks), session_config,
        max_number_of_evaluations, timeout, timeout_fn,
    )  # fmt: skip


def _scaffold(init_op: Any, fed: Any, init_fn: Any, variables: Any) -> Scaffold:
    saver = None if variables is None else Saver(variables)
    return Scaffold(init_op=init_op, init_feed_dict=fed, init_fn=init_fn, saver=saver)


def _hooks(number: int, logdir: Any, summary_op: Any, fed: Any, others: Sequence[Any] | None) -> list[Any]:
    summary = merge_all() if summary_op is USE_DEFAULT else summary_op
    written = [] if summary is None else [SummaryAtEndHook(logdir, summary_op=summary, feed_dict=fed)]
    return [StopAfterNEvalsHook(number), *written, *(others or ())]


__getattr__ = missing_from("contrib.slim.evaluation")
