"""``contrib.layers.optimize_loss``: a training step from a loss, with noise, clipping and summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowrt.dtypes import float32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import less, where
from flowrt.graph.ops.elementwise.math import exp, log, sqrt, square
from flowrt.graph.ops.nn.norms import clip_by_global_norm, global_norm
from flowrt.graph.ops.random.random_ops import truncated_normal
from flowrt.graph.ops.text import summaries as summary
from flowrt.graph.ops.text.assertions import assert_scalar
from flowrt.graph.typing import NumericLike
from flowrt.initializers import Constant, Zeros
from flowrt.train.optimizers import standard_optimizers
from flowrt.train.optimizers.global_step import assert_global_step, get_global_step
from flowrt.train.optimizers.moving_averages import assign_moving_average
from flowrt.train.optimizers.optimizer import Optimizer
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable import GraphKeys, Variable, trainable_variables
from flowrt.variables.variable_scope import variable_scope

OPTIMIZER_CLS_NAMES: dict[str, Callable[..., Optimizer]] = {
    "Adagrad": standard_optimizers.AdagradOptimizer,
    "Adam": standard_optimizers.AdamOptimizer,
    "Ftrl": standard_optimizers.FtrlOptimizer,
    "Momentum": lambda learning_rate: standard_optimizers.MomentumOptimizer(learning_rate, momentum=0.9),
    "RMSProp": standard_optimizers.RMSPropOptimizer,
    "SGD": standard_optimizers.GradientDescentOptimizer,
}
OPTIMIZER_SUMMARIES = ["learning_rate", "loss", "gradients", "gradient_norm", "global_gradient_norm"]
_USUAL = ("loss", "learning_rate", "global_gradient_norm")

Pairs = list[tuple[Any, Variable]]


def optimize_loss(
    loss: Any,
    global_step: Variable | None,
    learning_rate: NumericLike,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    clip_gradients: Any = None,
    learning_rate_decay_fn: Callable[..., Any] | None = None,
    update_ops: Any = None,
    variables: Sequence[Variable] | None = None,
    name: str | None = None,
    summaries: Sequence[str] | None = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Any:
    """A training step as a tensor, as in ``session.run(optimize_loss(loss, None, 0.1, "SGD"))``.

    Args:
        loss: A scalar.
        global_step: The variable that counts steps; None for the graph's own, if it has one.
        learning_rate: The size of a step.
        optimizer: A name of `OPTIMIZER_CLS_NAMES`, a class or a function of the learning rate, or an
            optimizer.
        gradient_noise_scale: The scale of noise that is added to gradients.
        gradient_multipliers: Factors of gradients, by variable or its name.
        clip_gradients: The largest global norm, or a function of the (gradient, variable) pairs, such as the
            result of `adaptive_clipping_fn`.
        learning_rate_decay_fn: A function of learning rate and global step, which returns the rate.
        update_ops: Operations that run before the loss; by default those of the collection UPDATE_OPS.
        variables: The variables to train; by default all that are trainable.
        summaries: Names of the summaries to make.
        increment_global_step: Whether the step is counted.

    Returns:
        The loss: evaluating it performs a training step.

    Raises:
        InvalidArgumentError: An argument is of another kind.

    Example:
        >>> v = tf.get_variable('v', initializer=1.0)
        >>> step = tf.train.get_or_create_global_step()
        >>> train = tf.contrib.layers.optimize_loss(v ** 2, step, learning_rate=0.1, optimizer='SGD')
        >>> session.run(tf.global_variables_initializer())
        >>> session.run(train), v.eval(), step.eval()
        (np.float32(1.0), np.float32(0.8), np.int64(1))
    """
    loss = convert_to_tensor(loss)
    assert_scalar(loss)
    if global_step is None:
        global_step = get_global_step()
    else:
        assert_global_step(global_step)
    shown = _USUAL if summaries is None else summaries
    for each in shown:
        if each not in OPTIMIZER_SUMMARIES:
            _refuse(f"summaries among {', '.join(OPTIMIZER_SUMMARIES)}", each)
    with variable_scope(name, "OptimizeLoss", [loss, global_step]):
        updates = (
            get_default_graph().get_collection(GraphKeys.UPDATE_OPS) if update_ops is None else update_ops
        )
        loss = _after(list(updates), loss)
        rate = _rate(learning_rate, learning_rate_decay_fn, global_step, "learning_rate" in shown)
        chosen = _optimizer(optimizer, rate)
        pairs = chosen.compute_gradients(
            loss,
            trainable_variables() if variables is None else variables,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )
        if gradient_noise_scale is not None:
            pairs = [(_noisy(g, gradient_noise_scale), v) for g, v in pairs]
        if gradient_multipliers is not None:
            pairs = _multiplied(pairs, gradient_multipliers)
        norms_shown = not {"global_gradient_norm", "gradient_norm"}.isdisjoint(shown)
        if norms_shown:
            summary.scalar("global_norm/gradient_norm", global_norm([g for g, _ in pairs]))
        pairs = _clipped(pairs, clip_gradients)
        if "loss" in shown:
            summary.scalar("loss", loss)
        _summarize(pairs, shown)
        if clip_gradients is not None and norms_shown:
            summary.scalar("global_norm/clipped_gradient_norm", global_norm([g for g, _ in pairs]))
        step = chosen.apply_gradients(pairs, global_step if increment_global_step else None, name="train")
        return _after([step], loss)


def _refuse(expected: str, got: Any) -> None:
    raise InvalidArgumentError(f"optimize_loss: expected {expected}; got {got!r}")


def _after(operations: Sequence[Any], tensor: Any) -> Any:
    if not operations:
        return tensor
    with get_default_graph().control_dependencies(operations):
        return identity(tensor)


def _rate(given: Any, decay_fn: Any, global_step: Any, shown: bool) -> Any:
    rate = given
    if isinstance(given, float):
        if given < 0.0:
            _refuse("a learning_rate that is not negative", given)
        rate = get_variable("learning_rate", [], trainable=False, initializer=Constant(given))
    elif given is not None and not (isinstance(given, (Tensor, Variable)) and given.shape.rank == 0):
        _refuse("a learning_rate that is a float or a scalar tensor", given)
    if given is not None and decay_fn is not None:
        if global_step is None:
            _refuse("a global_step for learning_rate_decay_fn", None)
        rate = decay_fn(rate, global_step)
        if shown:
            summary.scalar("learning_rate", rate)
    return rate


def _optimizer(given: Any, rate: Any) -> Optimizer:
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, str):
        if given not in OPTIMIZER_CLS_NAMES:
            _refuse(f"an optimizer among {', '.join(OPTIMIZER_CLS_NAMES)}", given)
        given = OPTIMIZER_CLS_NAMES[given]
        if rate is None:
            _refuse("a learning_rate for an optimizer by name", None)
    if not callable(given):
        _refuse("an optimizer, its name, class or a function", given)
    made: Any = given() if rate is None else given(rate)
    if not isinstance(made, Optimizer):
        _refuse("a function that returns an Optimizer", made)
    return made


def _times(grad: Any, factor: Any) -> Any:
    if grad is None:
        return None
    if isinstance(grad, IndexedSlices):
        return IndexedSlices(grad.values * factor, grad.indices, grad.dense_shape)
    return grad * factor


def _noisy(grad: Any, scale: float) -> Any:
    if grad is None:
        return None
    dense: Any = convert_to_tensor(grad)
    return dense + truncated_normal(shape(dense), dtype=dense.dtype) * scale


def _multiplied(pairs: Pairs, multipliers: Mapping[Any, Any]) -> Pairs:
    if not multipliers:
        _refuse("gradient_multipliers that are not empty", multipliers)
    factors = [multipliers.get(v, multipliers.get(v.name)) for _, v in pairs]
    for factor, (grad, variable) in zip(factors, pairs, strict=True):
        if factor is not None and grad is None:
            _refuse(f"a gradient to multiply for {variable.name!r}", None)
    return [
        (g if f is None else _times(g, cast(f, v.dtype)), v) for f, (g, v) in zip(factors, pairs, strict=True)
    ]


def _clipped(pairs: Pairs, clip: Any) -> Pairs:
    if clip is None:
        return pairs
    if callable(clip):
        return list(clip(pairs))
    if not isinstance(clip, float):
        _refuse("clip_gradients that are a float or a function", clip)
    clipped, _ = clip_by_global_norm([g for g, _ in pairs], clip)
    return [(g, v) for g, (_, v) in zip(clipped, pairs, strict=True)]


def _summarize(pairs: Pairs, shown: Sequence[str]) -> None:
    for grad, variable in pairs:
        if grad is None:
            continue
        values, tag = (
            grad.values if isinstance(grad, IndexedSlices) else grad,
            variable.name.replace(":", "_"),
        )
        if "gradients" in shown:
            summary.histogram(f"gradients/{tag}", values)
        if "gradient_norm" in shown:
            summary.scalar(f"gradient_norm/{tag}", global_norm([values]))


def adaptive_clipping_fn(
    std_factor: float = 2.0,
    decay: NumericLike = 0.95,
    static_max_norm: float | None = None,
    global_step: Any = None,
    report_summary: bool = False,
    epsilon: float = 1e-8,
    name: str | None = None,
) -> Callable[[Pairs], Pairs]:
    """A function for ``clip_gradients``: gradients with a norm more than ``std_factor`` deviations (of its
    logarithm, in moving averages) above the mean are scaled down to the mean.
    """

    def clip(pairs: Pairs) -> Pairs:
        norm: Any = global_norm([g for g, _ in pairs])
        largest, log_mean = _adaptive_max_norm(norm, std_factor, decay, global_step, epsilon, name)
        if report_summary:
            summary.scalar("global_norm/adaptive_max_gradient_norm", largest)
        factor: Any = where(less(norm, largest), ones_like(norm), exp(log_mean) / norm)
        if static_max_norm is not None:
            factor = minimum(static_max_norm / norm, factor)
        return [(_times(g, factor), v) for g, v in pairs]

    return clip


def _adaptive_max_norm(
    norm: Any, std_factor: float, decay: Any, global_step: Any, epsilon: float, name: str | None
) -> tuple[Any, Any]:
    """The largest norm that is not clipped, and the mean of the logarithms of norms."""
    with variable_scope(name, "AdaptiveMaxNorm", [norm]):
        if global_step is not None:  # the averages adapt faster in the beginning
            n: Any = cast(global_step, float32)
            decay = minimum(decay, n / (n + 1.0))

        def average(of: str, value: Any) -> Any:
            kept = get_variable(of, value.shape, value.dtype, Zeros(), trainable=False)
            return assign_moving_average(kept, value, decay, zero_debias=False)

        log_norm = log(norm + epsilon)
        mean, sq_mean = average("mean", log_norm), average("sq_mean", square(log_norm))
        deviation: Any = sqrt(maximum(epsilon, sq_mean - square(mean)))
        return exp(mean + std_factor * deviation), mean
