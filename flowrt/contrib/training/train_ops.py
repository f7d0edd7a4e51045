"""A loss that trains when it is computed, and the loop that computes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.nn.norms import clip_by_norm, global_norm
from flowrt.graph.ops.text.assertions import check_numerics as check
from flowrt.graph.ops.text.python_calls import with_dependencies
from flowrt.graph.source import misuse
from flowrt.logging import info, warning
from flowrt.summary import histogram, scalar
from flowrt.train.optimizers.global_step import get_or_create_global_step
from flowrt.train.optimizers.optimizer import Optimizer
from flowrt.train.sessions.monitored_session import MonitoredTrainingSession
from flowrt.variables.variable import GraphKeys, Variable, trainable_variables

USE_GLOBAL_STEP = 0
"""The value of an argument for the graph's own global step."""

Pairs = Iterable[tuple[Any, Variable]]


def _changed(gradient: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``gradient`` with its values changed; the rows of slices stay what they are."""
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def multiply_gradients(grads_and_vars: Pairs, gradient_multipliers: Mapping[Any, Any]) -> list[Any]:
    """The pairs with the gradients of some variables, given as themselves or by name, multiplied.

    Raises `InvalidArgumentError` for an empty dict, and for variables without gradient.
    """
    if not gradient_multipliers:
        raise misuse(
            f"gradient_multipliers: expected a dict; got {gradient_multipliers!r}", InvalidArgumentError
        )
    found = []
    for gradient, variable in grads_and_vars:
        key = variable if variable in gradient_multipliers else variable.op.name
        if key in gradient_multipliers:
            if gradient is None:
                raise misuse(f"gradient_multipliers: {key} has no gradient", InvalidArgumentError)
            factor = gradient_multipliers[key]
            gradient = _changed(gradient, functools.partial(multiply, factor))
        found.append((gradient, variable))
    return found


def clip_gradient_norms(gradients_to_variables: Pairs, max_norm: Any) -> list[Any]:
    """The pairs with each gradient scaled down to the norm ``max_norm`` by itself."""
    return [
        (gradient if gradient is None else _changed(gradient, lambda g: clip_by_norm(g, max_norm)), variable)
        for gradient, variable in gradients_to_variables
    ]


def clip_gradient_norms_fn(max_norm: Any) -> Callable[[Pairs], list[Any]]:
    """`clip_gradient_norms` as a function of the pairs."""
    return lambda pairs: clip_gradient_norms(pairs, max_norm)


def add_gradients_summaries(grads_and_vars: Pairs) -> list[Any]:
    """A histogram and the norm of each gradient, as summaries."""
    made = []
    for gradient, variable in grads_and_vars:
        if gradient is None:
            info("Variable %s has no gradient", variable.op.name)
            continue
        values = gradient.values if isinstance(gradient, IndexedSlices) else gradient
        made.append(histogram(f"{variable.op.name}/gradient", values))
        made.append(scalar(f"{variable.op.name}/gradient_norm", global_norm([values])))
    return made


def create_train_op(
    total_loss: Tensor,
    optimizer: Optimizer,
    global_step: Any = USE_GLOBAL_STEP,
    update_ops: Sequence[Any] | None = None,
    variables_to_train: Sequence[Variable] | None = None,
    transform_grads_fn: Callable[[list[Any]], Any] | None = None,
    summarize_gradients: bool = False,
    gate_gradients: int = Optimizer.GATE_OP,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    check_numerics: bool = True,
) -> Tensor:
    """The loss, as a tensor that runs a step of ``optimizer`` when it is computed.

    ``update_ops``, by default those of the collection UPDATE_OPS, run before. ``variables_to_train`` are by
    default all, ``global_step`` the graph's, or None. ``transform_grads_fn`` changes the pairs of gradients
    and variables. With ``check_numerics`` a loss of NaN or infinity is an `InvalidArgumentError` of the step.

    Example:
        >>> w = tf.get_variable("w", initializer=1.0)
        >>> train_op = tf.contrib.training.create_train_op(w * w, tf.train.GradientDescentOptimizer(0.25))
        >>> with tf.Session() as session:
        ...     session.run(tf.global_variables_initializer())
        ...     print(session.run(train_op), session.run(w))
        1.0 0.5
    """
    step = get_or_create_global_step() if global_step is USE_GLOBAL_STEP else global_step
    collected = get_default_graph().get_collection(GraphKeys.UPDATE_OPS)
    if update_ops is None:
        update_ops = collected
    elif missing := [update for update in collected if update not in update_ops]:
        warning("create_train_op: update_ops lack %s of the collection UPDATE_OPS", missing)
    if update_ops:
        total_loss = with_dependencies(update_ops, total_loss)
    chosen = trainable_variables() if variables_to_train is None else variables_to_train
    pairs = optimizer.compute_gradients(
        total_loss, chosen, gate_gradients, aggregation_method, colocate_gradients_with_ops
    )
    if transform_grads_fn is not None:
        pairs = transform_grads_fn(pairs)
    if summarize_gradients:
        with get_default_graph().name_scope("summarize_grads"):
            add_gradients_summaries(pairs)
    trained = optimizer.apply_gradients(pairs, step)
    with get_default_graph().name_scope("train_op"):
        loss = check(total_loss, "LossTensor is inf or nan") if check_numerics else total_loss
        train_op: Tensor = with_dependencies([trained], loss)
    if train_op not in get_default_graph().get_collection(GraphKeys.TRAIN_OP):
        get_default_graph().add_to_collection(GraphKeys.TRAIN_OP, train_op)
    return train_op


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
