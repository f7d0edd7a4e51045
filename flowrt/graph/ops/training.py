"""Optimizer updates: one op a rule and kind of gradient, in place on the variable and its slots.

Each rule is one function over arrays, ``update(xp, grad, scratch, var, *slots, **hypers)``. Dense gradients run it in chunks
that stay in the cache; sparse ones run it on the rows that the gradient names, after adding up equal indices. The
rules are TensorFlow's, equation by equation; their sources stand with the optimizers in `flowrt.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.op_def import NONDIFFERENTIABLE, Attr, Effect, OpDef, ShapeContext, attr_bool, define_op
from flowrt.graph.ops.state import check_indices, variable_shape
from flowrt.graph.resources import VariableResource
from flowrt.graph.shapes import Shape, compatible, concat, format_shape

CHUNK = 16384
"""Elements: 64 KiB of float32, so that a variable's, two slots', the gradient's and the scratch's chunks fit a 512 KiB
second-level cache. An Adam step on 400,000 floats takes 0.7 of the unchunked time."""

Update = Callable[..., None]


def define_update(name: str, order: str, update: Update, doc: str, attrs: dict[str, Attr] | None = None) -> tuple[OpDef, OpDef]:
    """The dense op ``Resource<name>`` and the sparse one, which takes ``indices`` last.

    ``order`` is the inputs' order: ``var``, slots in capitals, hyper-parameters (scalars) in small letters, ``grad``.
    """
    names = order.split()
    resources = [n for n in names if n == "var" or n.isupper()]
    hypers = [n for n in names if n not in resources and n != "grad"]
    inputs = ", ".join(f"{n.lower()}: {'resource' if n in resources else 'T'}" for n in names)

    def run(xp: Any, values: Sequence[Any], indices: Any, options: dict[str, Any]) -> None:
        given = dict(zip(names, values, strict=True))
        numbers = {h: given[h] for h in hypers}
        with ExitStack() as stack:
            for r in dict.fromkeys(given[n] for n in resources):
                stack.enter_context(r.lock)
            arrays = [_checked(given[n], given["var"], n) for n in resources]
            apply = _dense if indices is None else _sparse
            apply(xp, update, given["grad"], indices, arrays, {**numbers, **options})

    def dense_shape(s: ShapeContext) -> list[Shape]:
        expected, got = variable_shape(s), s.shapes[names.index("grad")]
        if not compatible(expected, got):
            raise InvalidArgumentError(
                f"expected a gradient of the variable's shape {format_shape(expected)}; got {format_shape(got)}"
            )
        return []

    def sparse_shape(s: ShapeContext) -> list[Shape]:
        whole, got = variable_shape(s), s.shapes[names.index("grad")]
        expected = concat([s.shapes[-1], None if whole is None else whole[1:]])
        if not compatible(expected, got):
            message = f"expected gradient rows of shape {format_shape(expected)}; got {format_shape(got)}"
            raise InvalidArgumentError(message)
        return []

    count = len(names)
    return (
        _define(f"Resource{name}", f"{inputs} ->", dense_shape, _dense_kernel(run, attrs), doc, attrs, False),
        _define(
            f"Resource{name.replace('Apply', 'SparseApply')}", f"{inputs}, indices: Tindices ->", sparse_shape,
            _sparse_kernel(run, attrs, count), doc, attrs, True,
        ),
    )  # fmt: skip


def _dense_kernel(run: Any, attrs: dict[str, Attr] | None) -> Any:
    if attrs:
        return lambda xp, *values, use_nesterov: run(xp, values, None, {"use_nesterov": use_nesterov})
    return lambda xp, *values: run(xp, values, None, {})


def _sparse_kernel(run: Any, attrs: dict[str, Attr] | None, count: int) -> Any:
    if attrs:
        return lambda xp, *values, use_nesterov: run(xp, values[:count], values[count], {"use_nesterov": use_nesterov})
    return lambda xp, *values: run(xp, values[:count], values[count], {})


def _define(
    name: str, signature: str, shape: Any, kernel: Any, doc: str, attrs: dict[str, Attr] | None, sparse: bool
) -> OpDef:
    types = {"T": dtypes.INEXACT, **({"Tindices": dtypes.INDEX} if sparse else {})}
    return define_op(
        name,
        signature,
        types=types,
        attrs=attrs or {},
        shape=shape,
        kernel=kernel,
        vjp=NONDIFFERENTIABLE,
        jvp=NONDIFFERENTIABLE,
        samples=lambda rng: (),
        effect=Effect.WRITE,
        doc=doc,
    )


def _checked(resource: VariableResource, variable: VariableResource, name: str) -> Any:
    array = resource.read()
    if array.shape != variable.read().shape:
        expected = list(variable.read().shape)
        raise InvalidArgumentError(f"{name.lower()}: expected the variable's shape {expected}; got {list(array.shape)}")
    return array


def _dense(xp: Any, update: Update, grad: Any, _: Any, arrays: list[Any], options: dict[str, Any]) -> None:
    if grad.shape != arrays[0].shape:
        expected, got = list(arrays[0].shape), list(grad.shape)
        raise InvalidArgumentError(f"expected a gradient of the variable's shape {expected}; got {got}")
    flat = [a.reshape(-1) for a in arrays]
    gradient = grad.reshape(-1)
    scratch = xp.empty((2, min(CHUNK, gradient.size)), gradient.dtype)
    for start in range(0, gradient.size, CHUNK):
        end = min(start + CHUNK, gradient.size)
        update(xp, gradient[start:end], scratch[:, : end - start], *[a[start:end] for a in flat], **options)


def _sparse(xp: Any, update: Update, grad: Any, indices: Any, arrays: list[Any], options: dict[str, Any]) -> None:
    check_indices(xp, indices, arrays[0].shape[0])
    rows, position = xp.unique(indices, return_inverse=True)
    summed = xp.zeros((rows.size, *arrays[0].shape[1:]), grad.dtype)
    xp.add.at(summed, position.reshape(-1), grad.reshape(-1, *arrays[0].shape[1:]))
    touched = [a[rows] for a in arrays]
    scratch = xp.empty((2, *summed.shape), summed.dtype)
    update(xp, summed, scratch, *touched, **options)
    for array, values in zip(arrays, touched, strict=True):
        array[rows] = values


# --- the rules. s and t are scratch arrays of the gradient's shape.


def _gradient_descent(xp: Any, grad: Any, scratch: Any, var: Any, *, alpha: Any) -> None:
    xp.multiply(grad, alpha, out=scratch[0])
    xp.subtract(var, scratch[0], out=var)


def _momentum(
    xp: Any, grad: Any, scratch: Any, var: Any, accum: Any, *, lr: Any, momentum: Any, use_nesterov: bool
) -> None:
    s = scratch[0]
    xp.multiply(accum, momentum, out=accum)
    xp.add(accum, grad, out=accum)
    if use_nesterov:
        xp.multiply(accum, momentum, out=s)
        xp.add(s, grad, out=s)
        xp.multiply(s, lr, out=s)
    else:
        xp.multiply(accum, lr, out=s)
    xp.subtract(var, s, out=var)


def _adagrad(xp: Any, grad: Any, scratch: Any, var: Any, accum: Any, *, lr: Any) -> None:
    s = scratch[0]
    xp.multiply(grad, grad, out=s)
    xp.add(accum, s, out=accum)
    xp.sqrt(accum, out=s)
    xp.divide(grad, s, out=s)
    xp.multiply(s, lr, out=s)
    xp.subtract(var, s, out=var)


def _decay(xp: Any, mean: Any, value: Any, rho: Any, s: Any) -> None:
    """``mean = rho * mean + (1 - rho) * value``, as ``mean += (value - mean) * (1 - rho)``."""
    xp.subtract(value, mean, out=s)
    xp.multiply(s, mean.dtype.type(1) - rho, out=s)
    xp.add(mean, s, out=mean)


def _adadelta(
    xp: Any, grad: Any, scratch: Any, var: Any, accum: Any, accum_update: Any, *, lr: Any, rho: Any, epsilon: Any
) -> None:
    s, t = scratch
    xp.multiply(grad, grad, out=t)
    _decay(xp, accum, t, rho, s)
    xp.add(accum, epsilon, out=s)
    xp.add(accum_update, epsilon, out=t)
    xp.divide(t, s, out=t)
    xp.sqrt(t, out=t)
    xp.multiply(t, grad, out=t)
    xp.multiply(t, lr, out=s)
    xp.subtract(var, s, out=var)
    xp.multiply(t, t, out=t)
    _decay(xp, accum_update, t, rho, s)


def _rmsprop(
    xp: Any, grad: Any, scratch: Any, var: Any, ms: Any, mom: Any, *, lr: Any, rho: Any, momentum: Any, epsilon: Any
) -> None:
    s, t = scratch
    xp.multiply(grad, grad, out=t)
    _decay(xp, ms, t, rho, s)
    xp.add(ms, epsilon, out=s)
    _move(xp, grad, s, var, mom, lr, momentum)


def _centered_rmsprop(
    xp: Any, grad: Any, scratch: Any, var: Any, mg: Any, ms: Any, mom: Any, *, lr: Any, rho: Any, momentum: Any, epsilon: Any
) -> None:
    s, t = scratch
    xp.multiply(grad, grad, out=t)
    _decay(xp, ms, t, rho, s)
    _decay(xp, mg, grad, rho, s)
    xp.multiply(mg, mg, out=t)
    xp.subtract(ms, t, out=s)
    xp.add(s, epsilon, out=s)
    _move(xp, grad, s, var, mom, lr, momentum)


def _move(xp: Any, grad: Any, s: Any, var: Any, mom: Any, lr: Any, momentum: Any) -> None:
    """``mom = momentum * mom + lr * grad / sqrt(s); var -= mom``."""
    xp.sqrt(s, out=s)
    xp.divide(grad, s, out=s)
    xp.multiply(s, lr, out=s)
    xp.multiply(mom, momentum, out=mom)
    xp.add(mom, s, out=mom)
    xp.subtract(var, mom, out=var)


def _adam(
    xp: Any, grad: Any, scratch: Any, var: Any, m: Any, v: Any, *,
    beta1_power: Any, beta2_power: Any, lr: Any, beta1: Any, beta2: Any, epsilon: Any, use_nesterov: bool,
) -> None:  # fmt: skip
    s, t = scratch
    one = var.dtype.type(1)
    rate = lr * xp.sqrt(one - beta2_power) / (one - beta1_power)
    _decay(xp, m, grad, beta1, s)
    xp.multiply(grad, grad, out=t)
    _decay(xp, v, t, beta2, s)
    xp.sqrt(v, out=s)
    xp.add(s, epsilon, out=s)
    if use_nesterov:
        xp.multiply(m, beta1, out=t)
        xp.add(t, grad * (one - beta1), out=t)
    else:
        t = m
    xp.divide(t, s, out=s)
    xp.multiply(s, rate, out=s)
    xp.subtract(var, s, out=var)


def _ftrl(
    xp: Any, grad: Any, scratch: Any, var: Any, accum: Any, linear: Any, *, lr: Any, l1: Any, l2: Any, lr_power: Any
) -> None:
    new = accum + grad * grad
    power = -lr_power
    linear += grad - (new**power - accum**power) / lr * var
    quadratic = new**power / lr + 2 * l2
    shrunk = (xp.sign(linear) * l1 - linear) / quadratic
    xp.copyto(var, xp.where(xp.abs(linear) > l1, shrunk, xp.zeros_like(shrunk)))
    xp.copyto(accum, new)


_NESTEROV = {"use_nesterov": attr_bool(False)}

apply_gradient_descent, sparse_apply_gradient_descent = define_update(
    "ApplyGradientDescent", "var alpha grad", _gradient_descent, "var -= alpha * grad"
)
apply_momentum, sparse_apply_momentum = define_update(
    "ApplyMomentum", "var ACCUM lr grad momentum", _momentum,
    "accum = momentum * accum + grad; var -= lr * accum", _NESTEROV,
)  # fmt: skip
apply_adagrad, sparse_apply_adagrad = define_update(
    "ApplyAdagrad", "var ACCUM lr grad", _adagrad, "accum += grad^2; var -= lr * grad / sqrt(accum)"
)
apply_adadelta, sparse_apply_adadelta = define_update(
    "ApplyAdadelta", "var ACCUM ACCUM_UPDATE lr rho epsilon grad", _adadelta,
    "var -= lr * sqrt(accum_update + epsilon) / sqrt(accum + epsilon) * grad, with decaying means of squares",
)  # fmt: skip
apply_rmsprop, sparse_apply_rmsprop = define_update(
    "ApplyRMSProp", "var MS MOM lr rho momentum epsilon grad", _rmsprop,
    "mom = momentum * mom + lr * grad / sqrt(ms + epsilon); var -= mom",
)  # fmt: skip
apply_centered_rmsprop, sparse_apply_centered_rmsprop = define_update(
    "ApplyCenteredRMSProp", "var MG MS MOM lr rho momentum epsilon grad", _centered_rmsprop,
    "as ApplyRMSProp with the variance ms - mg^2 in place of ms",
)  # fmt: skip
apply_adam, sparse_apply_adam = define_update(
    "ApplyAdam", "var M V beta1_power beta2_power lr beta1 beta2 epsilon grad", _adam,
    "var -= lr * sqrt(1 - beta2_power) / (1 - beta1_power) * m / (sqrt(v) + epsilon)", _NESTEROV,
)  # fmt: skip
apply_ftrl, sparse_apply_ftrl = define_update(
    "ApplyFtrl", "var ACCUM LINEAR grad lr l1 l2 lr_power", _ftrl, "Follow-the-regularised-leader, proximal."
)
