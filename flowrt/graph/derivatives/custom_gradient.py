"""`custom_gradient` and `custom_jvp`: functions with user-defined derivatives.

Both pass the function's results and arguments through one IdentityN with the rule attached, so the derivative
has an edge to the arguments, and none to the operations inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flowrt.dtypes import INEXACT
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.derivatives.gradients import as_list
from flowrt.graph.derivatives.jvp import TangentRule
from flowrt.graph.ops.base.filling import zeros_like_op
from flowrt.graph.ops.base.identities import identity_n, stop_gradient
from flowrt.graph.ops.elementwise.arithmetic import clip_by_value
from flowrt.graph.source import misuse


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``f(*xs) -> (ys, grad_fn)``; ``grad_fn(*dys)`` returns one gradient per x.

    The inner operations of ``f`` take no part in differentiation. Forward mode transposes ``grad_fn``, which
    must then be linear in the dys. Raises `InvalidArgumentError` when ``f`` or ``grad_fn`` returns something
    else.

    Example:
        >>> @tf.custom_gradient
        ... def clipped(x):
        ...     return x, lambda dy: tf.clip_by_value(dy, -1.0, 1.0)
        ...
        >>> x = tf.constant(2.0)
        >>> (slope,) = tf.gradients(5.0 * clipped(x), x)
        >>> slope.eval()
        np.float32(1.0)
    """

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        xs = [convert_to_tensor(x) for x in args]
        ys, grad_fn = _call(f, xs, kwargs, "custom_gradient", "grad_fn")
        count = len(as_list(ys))

        def gradient(_: Operation, *dys: Any) -> list[Any]:
            dxs = as_list(grad_fn(*dys[:count]))
            _check_count(f, "custom_gradient", "gradients", len(xs), dxs)
            return [None] * count + dxs

        return _with_rule(ys, xs, gradient)

    return decorated


def clip_by_value_preserving_gradient(value: Tensor, low: float, high: float) -> Tensor:
    """``value`` between ``low`` and ``high``, with the gradient of ``value``: TensorFlow's kernels of LSTMs
    clip their memory so.
    """

    @custom_gradient
    def clipped(free: Tensor) -> tuple[Tensor, Any]:
        return clip_by_value(free, low, high), lambda gradient: gradient

    return clipped(value)


def custom_jvp(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``f(*xs) -> (ys, jvp_fn)``; ``jvp_fn(*dxs)`` returns the tangent of each y, or None for zero.

    A dx is a tensor like its x (zeros if the x is constant), or None for an x that is not floating or
    complex. ``jvp_fn`` must be linear in the dxs and may use xs and tensors created by ``f``: reverse mode
    transposes it, and higher derivatives differentiate the operations it builds. The inner operations of
    ``f`` take no part in differentiation. Raises `InvalidArgumentError` when ``f`` or ``jvp_fn`` returns
    something else.
    """

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        xs = [convert_to_tensor(x) for x in args]
        ys, jvp_fn = _call(f, xs, kwargs, "custom_jvp", "jvp_fn")
        count = len(as_list(ys))

        def tangents(op: Operation, *dxs: Tensor | None) -> list[Any]:
            moving = zip(op.inputs[count:], dxs[count:], strict=True)
            given = [zeros_like_op(x) if dx is None and x.dtype in INEXACT else dx for x, dx in moving]
            dys = as_list(jvp_fn(*given))
            _check_count(f, "custom_jvp", "tangents", count, dys)
            return [*dys, *dxs[count:]]

        return _with_rule(ys, xs, TangentRule(tangents))

    return decorated


def _call(f: Any, xs: list[Tensor], kwargs: dict[str, Any], decorator: str, second: str) -> tuple[Any, Any]:
    result = f(*xs, **kwargs)
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
        raise misuse(f"{decorator}: expected {f.__name__} to return (ys, {second}); got {result!r}")
    return result


def _check_count(f: Any, decorator: str, what: str, expected: int, got: list[Any]) -> None:
    if len(got) != expected:
        raise misuse(f"{decorator} of {f.__name__}: expected {expected} {what}; got {len(got)}")


def _with_rule(ys: Any, xs: list[Tensor], rule: Callable[..., list[Any]]) -> Any:
    """``ys`` as functions of ``xs`` with the derivative ``rule``."""
    values = [stop_gradient(y) for y in as_list(ys)]
    functions = (values[0].graph if values else get_default_graph()).gradient_functions
    name = f"custom_gradient_{len(functions)}"
    functions[name] = rule
    outputs = identity_n([*values, *xs], _gradient_op_type=name)[: len(values)]
    return type(ys)(outputs) if isinstance(ys, (list, tuple)) else outputs[0]
