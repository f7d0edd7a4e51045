"""Optimizer updates: one op per rule and kind of gradient, in place on the variable and its slots.

Each rule is one function over arrays, ``update(xp, grad, scratch, var, *slots, **numbers)``. Dense gradients
apply it in cache-sized chunks, or, compiled, the elementwise version in
`flowrt.graph.ops.state.update_loops`; sparse ones apply it to the rows in the gradient, after adding up equal
indices. The rules are TensorFlow's, equation by equation; their sources are cited with the optimizers in
`flowrt.train.optimizers.standard_optimizers`. Everything is checked before anything is written; for indices
on a GPU see `flowrt.graph.ops.base.indexing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation
from flowrt.graph.op_def import Effect, Effects, OpDef, ShapeContext, define_op, parse_attrs
from flowrt.graph.op_facets import Kernel, Loop, LoopRule
from flowrt.graph.ops.array.scatter_rows import folded_by_id
from flowrt.graph.ops.base.indexing import check_range, put_rows, take
from flowrt.graph.ops.state import update_loops
from flowrt.graph.ops.state.variable_ops import variable_shape
from flowrt.graph.resources.variables import VariableResource, held, locks_of
from flowrt.graph.shapes import Shape, compatible, concat, format_shape

CHUNK = 16384
"""Number of elements: 64 KiB of float32, so that the chunks of a variable, two slots, the gradient and the
scratch fit a 512 KiB second-level cache. An Adam step on 400,000 floats takes 0.7 of the unchunked time.
"""

_USE_LOCKING = "use_locking: bool = False"  # attr of TensorFlow's ops; updates are always atomic here


@final
@dataclass(frozen=True)
class UpdateRule:
    """A rule, from which `dense` and `sparse` define an op each.

    ``order`` is the inputs' order: ``var``, slots in capitals, numbers (scalars) in small letters, ``grad``.
    """

    name: str
    order: str
    update: Callable[..., None]
    doc: str
    loop: LoopRule | None = None
    """The update for dense gradients as a `Loop`, if it has one."""
    attrs: str = ""

    @property
    def names(self) -> list[str]:
        return self.order.split()

    def dense(self) -> OpDef[Operation]:
        """``Resource<name>``."""
        name = f"Resource{self.name}"
        loop = None if self.loop is None else Loop(self.loop)
        return self._define(name, self._arguments(), self._dense_shape, self._kernel(_dense), loop)

    def sparse(self) -> OpDef[Operation]:
        """``ResourceSparse<name>``, with the rows' ``indices`` after the gradient."""
        inputs = self._arguments()
        inputs.insert(self.names.index("grad") + 1, "indices: Tindices in INDEX")
        name = f"Resource{self.name.replace('Apply', 'SparseApply')}"
        return self._define(name, inputs, self._sparse_shape, self._kernel(_sparse, "indices"))

    def dense_and_sparse(self) -> tuple[OpDef[Operation], OpDef[Operation]]:
        return self.dense(), self.sparse()

    def _arguments(self) -> list[str]:
        kinds = {"global_step": "int64", **{n: "resource" for n in self.names if _is_resource(n)}}
        return [f"{n.lower()}: {kinds.get(n, 'T in FLOATING')}" for n in self.names]

    def _define(
        self, name: str, inputs: list[str], shape: Any, kernel: Kernel, loop: Loop | None = None
    ) -> OpDef[Operation]:
        return define_op(
            name,
            f"{', '.join(inputs)} ->",
            attrs=f"{_USE_LOCKING}, {self.attrs}" if self.attrs else _USE_LOCKING,
            shape=shape,
            kernel=kernel,
            effects=Effects(Effect.WRITE),
            loop=loop,
            doc=self.doc,
        )

    def _dense_shape(self, s: ShapeContext) -> list[Shape]:
        return _check_gradient(variable_shape(s), s.shapes[self.names.index("grad")])

    def _sparse_shape(self, s: ShapeContext) -> list[Shape]:
        whole, position = variable_shape(s), self.names.index("grad")
        return _check_gradient(
            concat([s.shapes[position + 1], None if whole is None else whole[1:]]), s.shapes[position]
        )

    def _kernel(self, apply: Callable[..., None], *extra: str) -> Callable[..., None]:
        names = self.names
        position = names.index("grad") + 1
        inputs = [*names[:position], *extra, *names[position:]]
        handles, own = [name for name in names if _is_resource(name)], [*parse_attrs(self.attrs)]

        def kernel(
            xp: Any,
            *values: Any,
            use_nesterov: bool = False,
            update_slots: bool = True,
            multiply_linear_by_lr: bool = False,
        ) -> None:
            options = {
                "use_nesterov": use_nesterov,
                "update_slots": update_slots,
                "multiply_linear_by_lr": multiply_linear_by_lr,
            }
            given = dict(zip(inputs, values, strict=True))
            resources = [given.pop(name) for name in handles]
            gradient = [given.pop("grad"), *(given.pop(name) for name in extra)]
            numbers = {**given, **{key: options[key] for key in own}}
            with held(locks_of(resources)):
                apply(xp, self.update, *gradient, _arrays(resources), numbers)

        return kernel


def _is_resource(name: str) -> bool:
    return name == "var" or name.isupper()


def _check_gradient(expected: Shape, got: Shape) -> list[Shape]:
    if not compatible(expected, got):
        shapes = f"{format_shape(expected)}, like the variable; got {format_shape(got)}"
        raise InvalidArgumentError(f"expected a gradient of shape {shapes}")
    return []


def _arrays(resources: Sequence[VariableResource]) -> list[Any]:
    """The variable's and the slots' arrays. Raises `InvalidArgumentError` unless all have one shape."""
    arrays = [r.read() for r in resources]
    for resource, array in zip(resources, arrays, strict=True):
        if array.shape != arrays[0].shape:
            expected, got = list(arrays[0].shape), list(array.shape)
            raise InvalidArgumentError(
                f"slot {resource.name!r}: expected the variable's shape {expected}; got {got}"
            )
    return arrays


def _dense(xp: Any, update: Any, grad: Any, arrays: list[Any], numbers: Mapping[str, Any]) -> None:
    if grad.shape != arrays[0].shape:
        _check_gradient(arrays[0].shape, grad.shape)
    flat = [a.reshape(-1) for a in arrays]
    gradient = grad.reshape(-1)
    chunk = CHUNK if xp is np else max(1, gradient.size)  # the cache is a CPU's; a GPU wants few launches
    scratch = xp.empty((2, min(chunk, gradient.size)), gradient.dtype)
    for start in range(0, gradient.size, chunk):
        end = min(start + chunk, gradient.size)
        update(xp, gradient[start:end], scratch[:, : end - start], *[a[start:end] for a in flat], **numbers)


def _sparse(
    xp: Any, update: Any, grad: Any, indices: Any, arrays: list[Any], numbers: Mapping[str, Any]
) -> None:
    row = arrays[0].shape[1:]
    _check_gradient(indices.shape + row, grad.shape)
    check_range(xp, "indices", indices.reshape(-1), arrays[0].shape[0])
    rows, summed = _summed(xp, indices.reshape(-1), grad.reshape(indices.size, *row))
    touched = [take(xp, a, rows) for a in arrays]
    scratch = xp.empty((2, *summed.shape), summed.dtype)
    update(xp, summed, scratch, *touched, **numbers)
    for array, values in zip(arrays, touched, strict=True):
        put_rows(xp, array, rows, values)


def _summed(xp: Any, indices: Any, grad: Any) -> tuple[Any, Any]:
    """Row numbers ``[m]`` and the sum ``[m, *row]`` of each one's gradients. On a device equal ones stay."""
    if xp is not np:
        rows, summed = folded_by_id(xp, "add", indices, grad.reshape(indices.size, math.prod(grad.shape[1:])))
        return rows, summed.reshape(grad.shape)
    rows, position = np.unique(indices, return_inverse=True)
    summed = np.zeros((rows.size, *grad.shape[1:]), grad.dtype)
    np.add.at(summed, position, grad)
    return rows, summed


# --- the rules. s and t are scratch arrays of the gradient's shape. The variable is written last, because the
# --- gradient may be a view of it.


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


def _adagrad(xp: Any, grad: Any, scratch: Any, var: Any, accum: Any, *, lr: Any, update_slots: bool) -> None:
    s = scratch[0]
    if update_slots:
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
    xp: Any, grad: Any, scratch: Any, var: Any, accum: Any, accum_update: Any, *, lr: Any, rho: Any,
    epsilon: Any,
) -> None:  # fmt: skip
    s, t = scratch
    xp.multiply(grad, grad, out=t)
    _decay(xp, accum, t, rho, s)
    xp.add(accum, epsilon, out=s)
    xp.add(accum_update, epsilon, out=t)
    xp.divide(t, s, out=t)
    xp.sqrt(t, out=t)
    xp.multiply(t, grad, out=t)  # the step, before the learning rate
    xp.multiply(t, t, out=s)
    _decay(xp, accum_update, s, rho, s)
    xp.multiply(t, lr, out=t)
    xp.subtract(var, t, out=var)


def _rmsprop(
    xp: Any, grad: Any, scratch: Any, var: Any, ms: Any, mom: Any, *, lr: Any, rho: Any, momentum: Any,
    epsilon: Any,
) -> None:  # fmt: skip
    s, t = scratch
    xp.multiply(grad, grad, out=t)
    _decay(xp, ms, t, rho, s)
    xp.add(ms, epsilon, out=s)
    _move(xp, grad, s, var, mom, lr, momentum)


def _centered_rmsprop(
    xp: Any, grad: Any, scratch: Any, var: Any, mg: Any, ms: Any, mom: Any, *,
    lr: Any, rho: Any, momentum: Any, epsilon: Any,
) -> None:  # fmt: skip
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
    xp: Any, grad: Any, scratch: Any, var: Any, accum: Any, linear: Any, *,
    lr: Any, l1: Any, l2: Any, lr_power: Any, multiply_linear_by_lr: bool,
) -> None:  # fmt: skip
    """Update in place; with ``multiply_linear_by_lr`` the slot ``linear`` holds lr times its usual value."""
    scale = lr if multiply_linear_by_lr else var.dtype.type(1)
    new = accum + grad * grad
    root, old_root = new**-lr_power, accum**-lr_power
    linear += grad * scale - (root - old_root) * (scale / lr) * var
    quadratic = root * (scale / lr) + l2 * scale + l2 * scale
    shrunk = (xp.sign(linear) * (l1 * scale) - linear) / quadratic
    accum[...] = new
    var[...] = xp.where(xp.abs(linear) > l1 * scale, shrunk, xp.zeros_like(shrunk))


def _proximal(xp: Any, var: Any, prox: Any, rate: Any, l1: Any, l2: Any, t: Any) -> None:
    """``var = sign(prox) * max(|prox| - rate * l1, 0) / (1 + rate * l2)``; ``t`` is scratch."""
    xp.abs(prox, out=t)
    xp.subtract(t, rate * l1, out=t)
    xp.maximum(t, 0, out=t)
    xp.copysign(t, prox, out=t)
    xp.divide(t, rate * l2 + var.dtype.type(1), out=var)


def _proximal_gradient_descent(
    xp: Any, grad: Any, scratch: Any, var: Any, *, alpha: Any, l1: Any, l2: Any
) -> None:
    s, t = scratch
    xp.multiply(grad, alpha, out=s)
    xp.subtract(var, s, out=s)
    _proximal(xp, var, s, alpha, l1, l2, t)


def _proximal_adagrad(
    xp: Any, grad: Any, scratch: Any, var: Any, accum: Any, *, lr: Any, l1: Any, l2: Any
) -> None:
    """The shrinkage has the accumulator's learning rate too (Duchi and Singer 2009)."""
    s, t = scratch
    xp.multiply(grad, grad, out=s)
    xp.add(accum, s, out=accum)
    rate = lr / xp.sqrt(accum)
    xp.multiply(grad, rate, out=s)
    xp.subtract(var, s, out=s)
    _proximal(xp, var, s, rate, l1, l2, t)


def _adagrad_da(
    xp: Any, grad: Any, scratch: Any, var: Any, summed: Any, squares: Any, *,
    lr: Any, l1: Any, l2: Any, global_step: Any,
) -> None:  # fmt: skip
    summed += grad
    squares += grad * grad
    steps = global_step.astype(var.dtype)
    shrunk = xp.maximum(xp.abs(summed) - l1 * steps, 0)
    var[...] = -xp.sign(summed) * shrunk * lr / (l2 * steps * lr + xp.sqrt(squares))


_NESTEROV = "use_nesterov: bool = False"

apply_gradient_descent = UpdateRule(
    "ApplyGradientDescent",
    "var alpha grad",
    _gradient_descent,
    "var -= alpha * grad",
    update_loops.gradient_descent,
).dense()

apply_momentum, sparse_apply_momentum = UpdateRule(
    "ApplyMomentum",
    "var ACCUM lr grad momentum",
    _momentum,
    "accum = momentum * accum + grad; var -= lr * accum",
    update_loops.momentum,
    _NESTEROV,
).dense_and_sparse()

apply_adagrad, sparse_apply_adagrad = UpdateRule(
    "ApplyAdagrad",
    "var ACCUM lr grad",
    _adagrad,
    "accum += grad^2; var -= lr * grad / sqrt(accum)",
    update_loops.adagrad,
    "update_slots: bool = True",
).dense_and_sparse()

apply_adadelta, sparse_apply_adadelta = UpdateRule(
    "ApplyAdadelta",
    "var ACCUM ACCUM_UPDATE lr rho epsilon grad",
    _adadelta,
    "var -= lr * sqrt(accum_update + epsilon) / sqrt(accum + epsilon) * grad, with moving averages of"
    " squares",
    update_loops.adadelta,
).dense_and_sparse()

apply_rmsprop, sparse_apply_rmsprop = UpdateRule(
    "ApplyRMSProp",
    "var MS MOM lr rho momentum epsilon grad",
    _rmsprop,
    "mom = momentum * mom + lr * grad / sqrt(ms + epsilon); var -= mom",
    update_loops.rmsprop,
).dense_and_sparse()

apply_centered_rmsprop, sparse_apply_centered_rmsprop = UpdateRule(
    "ApplyCenteredRMSProp",
    "var MG MS MOM lr rho momentum epsilon grad",
    _centered_rmsprop,
    "as ApplyRMSProp with the variance ms - mg^2 instead of ms",
    update_loops.centered_rmsprop,
).dense_and_sparse()

apply_adam = UpdateRule(
    "ApplyAdam",
    "var M V beta1_power beta2_power lr beta1 beta2 epsilon grad",
    _adam,
    "var -= lr * sqrt(1 - beta2_power) / (1 - beta1_power) * m / (sqrt(v) + epsilon)",
    update_loops.adam,
    _NESTEROV,
).dense()

apply_ftrl, sparse_apply_ftrl = UpdateRule(
    "ApplyFtrl",
    "var ACCUM LINEAR grad lr l1 l2 lr_power",
    _ftrl,
    "Follow-the-regularised-leader, proximal.",
    update_loops.ftrl,
    "multiply_linear_by_lr: bool = False",
).dense_and_sparse()

apply_proximal_gradient_descent, sparse_apply_proximal_gradient_descent = UpdateRule(
    "ApplyProximalGradientDescent",
    "var alpha l1 l2 grad",
    _proximal_gradient_descent,
    "prox = var - alpha * grad; var = sign(prox) * max(|prox| - alpha * l1, 0) / (1 + alpha * l2)",
).dense_and_sparse()

apply_proximal_adagrad, sparse_apply_proximal_adagrad = UpdateRule(
    "ApplyProximalAdagrad",
    "var ACCUM lr l1 l2 grad",
    _proximal_adagrad,
    "As ApplyProximalGradientDescent with alpha = lr / sqrt(accum), after accum += grad^2.",
).dense_and_sparse()

apply_adagrad_da, sparse_apply_adagrad_da = UpdateRule(
    "ApplyAdagradDA",
    "var GRADIENT_ACCUMULATOR GRADIENT_SQUARED_ACCUMULATOR grad lr l1 l2 global_step",
    _adagrad_da,
    "var = -lr * sign(sum) * max(|sum| - l1 * t, 0) / (l2 * t * lr + sqrt(squares)), sums of all gradients",
).dense_and_sparse()
