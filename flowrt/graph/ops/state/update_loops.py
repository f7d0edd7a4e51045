"""The optimizer updates of `flowrt.graph.ops.state.optimizer_updates` for one element, for use in compiled
loops.

``rule(b, *inputs, **attrs)`` takes the elements of the variable, its slots and the gradient, and the rule's
numbers, in the op's order (see `flowrt.graph.op_def.Loop`), and returns the new elements of the variable and
the slots. The operations and their order are those of the rules over arrays, so that both round identically,
except for products and sums that a back end contracts.
"""

from __future__ import annotations

from typing import Any


def gradient_descent(b: Any, var: Any, alpha: Any, grad: Any) -> Any:
    return var - grad * alpha


def momentum(
    b: Any, var: Any, accum: Any, lr: Any, grad: Any, momentum: Any, *, use_nesterov: bool
) -> tuple[Any, ...]:
    accum = accum * momentum + grad
    ahead = accum * momentum + grad if use_nesterov else accum
    return var - ahead * lr, accum


def adagrad(b: Any, var: Any, accum: Any, lr: Any, grad: Any, *, update_slots: bool) -> tuple[Any, ...]:
    if update_slots:
        accum = accum + grad * grad
    return var - grad / b.sqrt(accum) * lr, accum


def adadelta(
    b: Any, var: Any, accum: Any, accum_update: Any, lr: Any, rho: Any, epsilon: Any, grad: Any
) -> tuple[Any, ...]:
    accum = _decayed(accum, grad * grad, rho)
    step = b.sqrt((accum_update + epsilon) / (accum + epsilon)) * grad
    return var - step * lr, accum, _decayed(accum_update, step * step, rho)


def rmsprop(
    b: Any, var: Any, ms: Any, mom: Any, lr: Any, rho: Any, momentum: Any, epsilon: Any, grad: Any
) -> tuple[Any, ...]:
    ms = _decayed(ms, grad * grad, rho)
    mom = mom * momentum + grad / b.sqrt(ms + epsilon) * lr
    return var - mom, ms, mom


def centered_rmsprop(
    b: Any, var: Any, mg: Any, ms: Any, mom: Any, lr: Any, rho: Any, momentum: Any, epsilon: Any, grad: Any
) -> tuple[Any, ...]:
    ms = _decayed(ms, grad * grad, rho)
    mg = _decayed(mg, grad, rho)
    mom = mom * momentum + grad / b.sqrt(ms - mg * mg + epsilon) * lr
    return var - mom, mg, ms, mom


def adam(
    b: Any, var: Any, m: Any, v: Any, beta1_power: Any, beta2_power: Any, lr: Any, beta1: Any, beta2: Any,
    epsilon: Any, grad: Any, *, use_nesterov: bool,
) -> tuple[Any, ...]:  # fmt: skip
    rate = lr * b.sqrt(1 - beta2_power) / (1 - beta1_power)
    m = _decayed(m, grad, beta1)
    v = _decayed(v, grad * grad, beta2)
    ahead = m * beta1 + grad * (1 - beta1) if use_nesterov else m
    return var - ahead / (b.sqrt(v) + epsilon) * rate, m, v


def ftrl(
    b: Any, var: Any, accum: Any, linear: Any, grad: Any, lr: Any, l1: Any, l2: Any, lr_power: Any, *,
    multiply_linear_by_lr: bool,
) -> tuple[Any, ...]:  # fmt: skip
    scale = lr if multiply_linear_by_lr else b.const(1, var.dtype)
    new = accum + grad * grad
    root, old_root = b.pow(new, -lr_power), b.pow(accum, -lr_power)
    linear = linear + (grad * scale - (root - old_root) * (scale / lr) * var)
    quadratic = root * (scale / lr) + l2 * scale + l2 * scale
    limit = l1 * scale
    shrunk = (b.select(linear < 0, -limit, limit) - linear) / quadratic
    return b.select(abs(linear) > limit, shrunk, 0), new, linear


def _decayed(mean: Any, value: Any, rho: Any) -> Any:
    """``rho * mean + (1 - rho) * value``, in the order of the rules over arrays."""
    return mean + (value - mean) * (1 - rho)
