"""Learning rates as functions of the step: each returns a scalar tensor of the dtype of ``learning_rate``.

``global_step`` is a number, tensor or variable; pass the result to an optimizer, which reads it at every
step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.arithmetic import minimum
from flowrt.graph.ops.elementwise.comparison import equal, greater, where
from flowrt.graph.ops.elementwise.math import ceil, cos, exp, floor, log, sqrt
from flowrt.graph.ops.random.random_ops import random_normal
from flowrt.graph.source import user_line
from flowrt.graph.tf1_signatures import parameters_of, with_parameters
from flowrt.graph.typing import NumericLike

__all__ = [
    "cosine_decay", "cosine_decay_restarts", "exponential_decay", "inverse_time_decay", "linear_cosine_decay",
    "natural_exp_decay", "noisy_linear_cosine_decay", "piecewise_constant", "piecewise_constant_decay",
    "polynomial_decay",
]  # fmt: skip


def _rate_and_steps(learning_rate: Any, *steps: Any) -> tuple[Any, ...]:
    """The rate as a tensor, and the steps in its dtype. Raises `InvalidArgumentError` if the step is None."""
    if steps and steps[0] is None:
        raise InvalidArgumentError(
            "global_step: expected a number, tensor or variable; got None", source=user_line()
        )
    rate = convert_to_tensor(learning_rate, name="learning_rate")
    return rate, *(cast(s, rate.dtype) for s in steps)


def _decay(rule: Callable[[Any, Any, Any], Any]) -> Callable[..., Tensor]:
    """The schedule ``rule(rate, decay_rate, passed)`` of the periods ``passed``, each of ``decay_steps``."""
    scope = rule.__name__.title().replace("_", "")

    def schedule(
        learning_rate: Any,
        global_step: NumericLike,
        decay_steps: Any,
        decay_rate: Any,
        staircase: bool = False,
        name: str | None = None,
    ) -> Tensor:
        with get_default_graph().name_scope(name or scope):
            rate, step, steps, decay = _rate_and_steps(learning_rate, global_step, decay_steps, decay_rate)
            passed = step / steps
            return rule(rate, decay, floor(passed) if staircase else passed)

    return with_parameters(rule, parameters_of(schedule), lambda given: schedule(**given))


@_decay
def exponential_decay(rate: NumericLike, decay_rate: NumericLike, passed: Any) -> Any:
    """``learning_rate * decay_rate ** (global_step / decay_steps)``.

    Args:
        learning_rate: The rate at step 0.
        global_step: The number of steps so far, such as `get_or_create_global_step()`.
        decay_steps: The number of steps in which the rate decays once.
        decay_rate: The factor of a decay.
        staircase: Whether the exponent is rounded down.

    Returns:
        A scalar tensor, the rate of this step.

    Example:
        >>> tf.train.exponential_decay(0.1, global_step=20, decay_steps=10, decay_rate=0.5).eval()
        np.float32(0.025)
    """
    return rate * decay_rate**passed


@_decay
def natural_exp_decay(rate: Any, decay_rate: Any, passed: Any) -> Any:
    """``learning_rate * exp(-decay_rate * global_step / decay_steps)``; with ``staircase`` the quotient is
    rounded down.
    """
    return rate * exp(-decay_rate * passed)


@_decay
def inverse_time_decay(rate: NumericLike, decay_rate: NumericLike, passed: Any) -> Any:
    """``learning_rate / (1 + decay_rate * global_step / decay_steps)``; with ``staircase`` the quotient is
    rounded down.
    """
    return rate / (1 + decay_rate * passed)


def polynomial_decay(
    learning_rate: NumericLike,
    global_step: NumericLike,
    decay_steps: NumericLike,
    end_learning_rate: NumericLike = 0.0001,
    power: NumericLike = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Tensor:
    """Decay from ``learning_rate`` to ``end_learning_rate`` as ``(1 - global_step / decay_steps) ** power``.

    After ``decay_steps`` the rate stays at its end; with ``cycle`` it restarts, each time decaying over the
    next multiple of ``decay_steps``.
    """
    with get_default_graph().name_scope(name or "PolynomialDecay"):
        rate, step, steps, end, exponent = _rate_and_steps(
            learning_rate, global_step, decay_steps, end_learning_rate, power
        )
        if cycle:
            steps = steps * where(equal(step, 0), cast(1, rate.dtype), ceil(step / steps))
        else:
            step = minimum(step, steps)
        return (rate - end) * (1 - step / steps) ** exponent + end


def piecewise_constant(
    x: NumericLike, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None
) -> Tensor:
    """``values[0]`` while ``x <= boundaries[0]``, then ``values[1]`` while ``x <= boundaries[1]``, …, at last
    ``values[-1]``.

    Raises `InvalidArgumentError` unless there is one more value than boundaries, `DTypeError` for boundaries
    of another dtype than x's or values of several.

    Example:
        >>> tf.train.piecewise_constant(tf.constant(7), boundaries=[5, 10], values=[0.1, 0.01, 0.001]).eval()
        np.float32(0.01)
    """
    if len(boundaries) != len(values) - 1:
        expected = f"expected {len(values) - 1} boundaries for {len(values)} values"
        raise InvalidArgumentError(
            f"piecewise_constant: {expected}; got {len(boundaries)}", source=user_line()
        )
    with get_default_graph().name_scope(name or "PiecewiseConstant"):
        tensor = convert_to_tensor(x)
        edges = [_boundary(b, tensor) for b in boundaries]
        choices = [convert_to_tensor(v) for v in values]
        if len({v.dtype for v in choices}) > 1:
            names = ", ".join(v.dtype.name for v in choices)
            raise DTypeError(
                f"piecewise_constant: expected values of one dtype; got {names}", source=user_line()
            )
        passed = [cast(greater(tensor, edge), "int32") for edge in edges]
        position = reduce_sum(stack(passed)) if passed else convert_to_tensor(0)
        return gather(stack(choices), position)


piecewise_constant_decay = piecewise_constant


def _boundary(value: Any, x: Tensor) -> Tensor:
    """``value`` in x's dtype: int32 boundaries widen to an int64 step. Raises `DTypeError` for others."""
    boundary = convert_to_tensor(value)
    if boundary.dtype is x.dtype:
        return boundary
    if boundary.dtype.name == "int32" and x.dtype.name == "int64":
        return cast(boundary, x.dtype)
    raise DTypeError(
        f"piecewise_constant: expected boundaries of x's dtype {x.dtype.name}; got {boundary.dtype.name}",
        source=user_line(),
    )


def _half_cosine(fraction: Any) -> Any:
    """Half a cosine: falls from 1 to 0 as ``fraction`` rises from 0 to 1."""
    return 0.5 * (1 + cos(math.pi * fraction))


def cosine_decay(
    learning_rate: NumericLike,
    global_step: NumericLike,
    decay_steps: NumericLike,
    alpha: NumericLike = 0.0,
    name: str | None = None,
) -> Tensor:
    """Half a cosine wave from ``learning_rate`` to ``alpha`` times it (Loshchilov and Hutter 2017)."""
    with get_default_graph().name_scope(name or "CosineDecay"):
        rate, step, steps, floor_part = _rate_and_steps(learning_rate, global_step, decay_steps, alpha)
        wave = _half_cosine(minimum(step, steps) / steps)
        return rate * ((1 - floor_part) * wave + floor_part)


def cosine_decay_restarts(
    learning_rate: NumericLike,
    global_step: NumericLike,
    first_decay_steps: Any,
    t_mul: Any = 2.0,
    m_mul: Any = 1.0,
    alpha: NumericLike = 0.0,
    name: str | None = None,
) -> Tensor:
    """`cosine_decay` repeated, each time ``t_mul`` times as long and starting ``m_mul`` times as high
    (Loshchilov and Hutter 2017). ``t_mul`` must be at least 1.
    """
    with get_default_graph().name_scope(name or "SGDRDecay"):
        rate, step, first, longer, lower, floor_part = _rate_and_steps(
            learning_rate, global_step, first_decay_steps, t_mul, m_mul, alpha
        )
        passed = step / first
        geometric = floor(log(1 - passed * (1 - longer)) / log(longer))
        begun = (1 - longer**geometric) / (1 - longer)
        is_even = equal(longer, 1)
        restarts = where(is_even, floor(passed), geometric)
        fraction = where(is_even, passed - floor(passed), (passed - begun) / longer**geometric)
        wave = lower**restarts * _half_cosine(fraction)
        return rate * ((1 - floor_part) * wave + floor_part)


def linear_cosine_decay(
    learning_rate: NumericLike,
    global_step: NumericLike,
    decay_steps: NumericLike,
    num_periods: Any = 0.5,
    alpha: NumericLike = 0.0,
    beta: NumericLike = 0.001,
    name: str | None = None,
) -> Tensor:
    """``learning_rate * ((alpha + linear) * cosine + beta)``, with ``linear`` from 1 to 0 and a cosine of
    ``num_periods`` waves over ``decay_steps`` (Bello et al. 2017).
    """
    with get_default_graph().name_scope(name or "LinearCosineDecay"):
        rate, step, steps, periods, plus, floor_part = _rate_and_steps(
            learning_rate, global_step, decay_steps, num_periods, alpha, beta
        )
        fraction = minimum(step, steps) / steps
        wave = _half_cosine(2 * periods * fraction)
        return rate * ((plus + 1 - fraction) * wave + floor_part)


def noisy_linear_cosine_decay(
    learning_rate: NumericLike,
    global_step: NumericLike,
    decay_steps: NumericLike,
    initial_variance: NumericLike = 1.0,
    variance_decay: NumericLike = 0.55,
    num_periods: Any = 0.5,
    alpha: NumericLike = 0.0,
    beta: NumericLike = 0.001,
    name: str | None = None,
) -> Tensor:
    """`linear_cosine_decay` with a normal number, of the variance ``initial_variance / (1 + global_step) **
    variance_decay``, added to ``linear`` in each step (Bello et al. 2017).
    """
    with get_default_graph().name_scope(name or "NoisyLinearCosineDecay"):
        rate, step, steps, periods, plus, floor_part, variance, decay = _rate_and_steps(
            learning_rate,
            global_step,
            decay_steps,
            num_periods,
            alpha,
            beta,
            initial_variance,
            variance_decay,
        )
        step = minimum(step, steps)
        noise = random_normal([], stddev=sqrt(variance / (1 + step) ** decay), dtype=rate.dtype)
        wave = _half_cosine(2 * periods * step / steps)
        return rate * ((plus + 1 - step / steps + noise) * wave + floor_part)
