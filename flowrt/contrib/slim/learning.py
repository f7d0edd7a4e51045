"""``contrib.slim.learning``: training under a supervisor, a step of which is a loss that trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowrt.contrib.training import train_ops
from flowrt.contrib.training.train_ops import (
    USE_GLOBAL_STEP,
    add_gradients_summaries,
    clip_gradient_norms,
    multiply_gradients,
)
from flowrt.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Graph, Tensor, get_default_graph
from flowrt.graph.ops.elementwise.comparison import equal, greater_equal
from flowrt.graph.ops.elementwise.division import mod
from flowrt.graph.source import misuse
from flowrt.logging import info
from flowrt.tf1.missing_names import missing_from
from flowrt.tf1.training.supervisor import USE_DEFAULT, Supervisor
from flowrt.train.checkpoints.saver import Saver
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.train.optimizers.optimizer import Optimizer

__all__ = [
    "add_gradients_summaries", "clip_gradient_norms", "create_train_op", "multiply_gradients", "train",
    "train_step",
]  # fmt: skip


def create_train_op(
    total_loss: Tensor,
    optimizer: Optimizer,
    global_step: Any = USE_GLOBAL_STEP,
    update_ops: Sequence[Any] | None = None,
    variables_to_train: Sequence[Any] | None = None,
    clip_gradient_norm: float = 0,
    summarize_gradients: bool = False,
    gate_gradients: int = Optimizer.GATE_OP,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    check_numerics: bool = True,
) -> Tensor:
    """`contrib.training.create_train_op` with gradients multiplied by ``gradient_multipliers``, by variable
    or name, and each scaled down to the norm ``clip_gradient_norm`` (0: not).
    """

    def transform(pairs: list[Any]) -> list[Any]:
        if gradient_multipliers:
            pairs = multiply_gradients(pairs, gradient_multipliers)
        return clip_gradient_norms(pairs, clip_gradient_norm) if clip_gradient_norm > 0 else pairs

    return train_ops.create_train_op(
        total_loss, optimizer, global_step, update_ops, variables_to_train, transform, summarize_gradients,
        gate_gradients, aggregation_method, colocate_gradients_with_ops, check_numerics,
    )  # fmt: skip


def train_step(
    sess: Any, train_op: Any, global_step: Any, train_step_kwargs: Mapping[str, Any]
) -> tuple[Any, bool]:
    """Run ``train_op``; returns the loss, and whether ``train_step_kwargs["should_stop"]``, a tensor, is
    true afterwards. The step is logged if ``train_step_kwargs["should_log"]`` is.
    """
    start = time.monotonic()
    loss, step = sess.run([train_op, global_step])
    if "should_log" in train_step_kwargs and sess.run(train_step_kwargs["should_log"]):
        info("global step %d: loss = %.4f (%.3f sec/step)", step, loss, time.monotonic() - start)
    stops = "should_stop" in train_step_kwargs and bool(sess.run(train_step_kwargs["should_stop"]))
    return loss, stops


def train(
    train_op: Any,
    logdir: str | None,
    train_step_fn: Callable[..., Any] = train_step,
    train_step_kwargs: Any = USE_DEFAULT,
    log_every_n_steps: int = 1,
    graph: Graph | None = None,
    master: str = "",
    is_chief: bool = True,
    global_step: Any = None,
    number_of_steps: int | None = None,
    init_op: Any = USE_DEFAULT,
    init_feed_dict: Mapping[Any, Any] | None = None,
    local_init_op: Any = USE_DEFAULT,
    init_fn: Callable[[Any], Any] | None = None,
    ready_op: Any = USE_DEFAULT,
    summary_op: Any = USE_DEFAULT,
    save_summaries_secs: float = 600,
    summary_writer: Any = USE_DEFAULT,
    startup_delay_steps: int = 0,
    saver: Saver | None = None,
    save_interval_secs: float = 600,
    sync_optimizer: Any = None,
    session_config: Any = None,
    session_wrapper: Callable[[Any], Any] | None = None,
    trace_every_n_steps: int | None = None,
    ignore_live_threads: bool = False,
) -> Any:
    """Train until the global step is ``number_of_steps`` (None: without end) or the input ends; returns the
    last loss. ``train_op`` is that of `create_train_op`, ``train_step_fn(session, train_op, global_step,
    train_step_kwargs)`` a step: it returns the loss and whether to stop.

    A `Supervisor` restores the newest checkpoint of ``logdir``, or initializes and calls ``init_fn``, and
    saves there every ``save_interval_secs`` and at the end; the other arguments are its own. None for
    ``logdir`` writes nothing.

    Raises `InvalidArgumentError` without ``train_op``, for less than one step, and for summaries or a saver
    without ``logdir``; `UnimplementedError` for ``sync_optimizer`` and ``trace_every_n_steps``: use
    `MonitoredTrainingSession` and `ProfilerHook`.
    """
    if train_op is None or (number_of_steps is not None and number_of_steps <= 0):
        raise misuse(
            f"slim.learning.train: expected a train_op and steps; got {train_op}, {number_of_steps}",
            InvalidArgumentError,
        )
    if logdir is None and not (summary_op is USE_DEFAULT and saver is None):
        raise misuse("slim.learning.train: summaries and a saver need logdir", InvalidArgumentError)
    if sync_optimizer is not None or trace_every_n_steps is not None:
        raise misuse(
            "slim.learning.train: use MonitoredTrainingSession's hooks for sync_optimizer, ProfilerHook for "
            "traces", UnimplementedError,
        )  # fmt: skip
    with (graph or get_default_graph()).as_default() as whole:
        step = get_or_create_global_step() if global_step is None else global_step
        given = train_step_kwargs
        if train_step_kwargs is USE_DEFAULT:
            with whole.name_scope("train_step"):
                given = _facts(step, number_of_steps, log_every_n_steps)
        supervisor = Supervisor(
            whole, ready_op, is_chief=is_chief, init_op=init_op, init_feed_dict=init_feed_dict,
            local_init_op=local_init_op, logdir=logdir, summary_op=summary_op, saver=saver or Saver(),
            global_step=step, save_summaries_secs=save_summaries_secs, save_model_secs=save_interval_secs,
            summary_writer=summary_writer, init_fn=init_fn,
        )  # fmt: skip
    loss = None
    with supervisor.managed_session(master, session_config, start_standard_services=False) as session:
        session = session if session_wrapper is None else session_wrapper(session)
        if is_chief and logdir:
            supervisor.start_standard_services(session)
        first = min(startup_delay_steps, number_of_steps or startup_delay_steps)
        while not is_chief and session.run(step) < first:
            time.sleep(1)
        supervisor.start_queue_runners(session)
        stops = False
        try:
            while not (stops or supervisor.should_stop()):
                loss, stops = train_step_fn(session, train_op, step, given)
        except OutOfRangeError as error:
            info("The input has ended: %s", error)
        if logdir and is_chief:
            supervisor.saver.save(session, supervisor.save_path, supervisor.global_step)
        supervisor.request_stop()
    return loss


def _facts(step: Any, number_of_steps: int | None, log_every_n_steps: int) -> dict[str, Any]:
    """The tensors that `train_step` looks at."""
    stops = greater_equal(step, number_of_steps) if number_of_steps else constant(False)
    logs = {"should_log": equal(mod(step, log_every_n_steps), 0)} if log_every_n_steps > 0 else {}
    return {"should_stop": stops, **logs}


__getattr__ = missing_from("contrib.slim.learning")
