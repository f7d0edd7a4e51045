"""The optimizer updates of `flowrt.graph.ops.state.optimizer_updates` for one element, for use in compiled
loops.

``rule(b, *inputs, **attrs)`` takes the elements of the variable, its slots and the gradient, and the rule's
numbers, in the op's order (see `flowrt.graph.op_def.Loop`), and returns the new elements of the variable and
the slots. The operations and their order are those of the rules over arrays, so that both round identically,
except for products and sums that a back end contracts.
"""

from __future__ import annotations

from flowrt.loops.loop_program import LoopBuilder
from flowrt.loops.loop_program import LoopValue as Value


def gradient_descent(b: LoopBuilder, var: Value, alpha: Value, grad: Value) -> Value:
    return var - grad * alpha


def momentum(
    b: LoopBuilder, var: Value, accum: Value, lr: Value, grad: Value, momentum: Value, *, use_nesterov: bool
) -> tuple[Value, ...]:
    accum = accum * momentum + grad
    ahead = accum * momentum + grad if use_nesterov else accum
    return var - ahead * lr, accum


def adagrad(
    b: LoopBuilder, var: Value, accum: Value, lr: Value, grad: Value, *, update_slots: bool
) -> tuple[Value, ...]:
    if update_slots:
        accum = accum + grad * grad
    return var - grad / b.sqrt(accum) * lr, accum


def adadelta(
    b: LoopBuilder,
    var: Value,
    accum: Value,
    accum_update: Value,
    lr: Value,
    rho: Value,
    epsilon: Value,
    grad: Value,
) -> tuple[Value, ...]:
    accum = _decayed(accum, grad * grad, rho)
    step = b.sqrt((accum_update + epsilon) / (accum + epsilon)) * grad
    return var - step * lr, accum, _decayed(accum_update, step * step, rho)


def rmsprop(
    b: LoopBuilder,
    var: Value,
    ms: Value,
    mom: Value,
    lr: Value,
    rho: Value,
    momentum: Value,
    epsilon: Value,
    grad: Value,
) -> tuple[Value, ...]:
    ms = _decayed(ms, grad * grad, rho)
    mom = mom * momentum + grad / b.sqrt(ms + epsilon) * lr
    return var - mom, ms, mom


def centered_rmsprop(
    b: LoopBuilder,
    var: Value,
    mg: Value,
    ms: Value,
    mom: Value,
    lr: Value,
    rho: Value,
    momentum: Value,
    epsilon: Value,
    grad: Value,
) -> tuple[Value, ...]:
    ms = _decayed(ms, grad * grad, rho)
    mg = _decayed(mg, grad, rho)
    mom = mom * momentum + grad / b.sqrt(ms - mg * mg + epsilon) * lr
    return var - mom, mg, ms, mom


def adam(
    b: LoopBuilder, var: Value, m: Value, v: Value, beta1_power: Value, beta2_power: Value, lr: Value, beta1:
    Value, beta2: Value, epsilon: Value, grad: Value, *, use_nesterov: bool,
) -> tuple[Value, ...]:  # fmt: skip
    rate = lr * b.sqrt(1 - beta2_power) / (1 - beta1_power)
    m = _decayed(m, grad, beta1)
    v = _decayed(v, grad * grad, beta2)
    ahead = m * beta1 + grad * (1 - beta1) if use_nesterov else m
    return var - ahead / (b.sqrt(v) + epsilon) * rate, m, v


def ftrl(
    b: LoopBuilder, var: Value, accum: Value, linear: Value, grad: Value, lr: Value, l1: Value, l2: Value,
    lr_power: Value, *, multiply_linear_by_lr: bool,
) -> tuple[Value, ...]:  # fmt: skip
    scale = lr if multiply_linear_by_lr else b.const(1, var.dtype)
    new = accum + grad * grad
    root, old_root = b.pow(new, -lr_power), b.pow(accum, -lr_power)
    linear = linear + (grad * scale - (root - old_root) * (scale / lr) * var)
    quadratic = root * (scale / lr) + l2 * scale + l2 * scale
    limit = l1 * scale
    shrunk = (b.select(linear < 0, -limit, limit) - linear) / quadratic
    return b.select(abs(linear) > limit, shrunk, 0), new, linear


def _decayed(mean: Value, value: Value, rho: Value) -> Value:
    """``rho * mean + (1 - rho) * value``, in the order of the rules over arrays."""
    return mean + (value - mean) * (1 - rho)
