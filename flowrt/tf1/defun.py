"""`Defun` of TensorFlow's ``framework.function``: a decorator for functions of tensors of given dtypes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowrt.base.structure import flatten
from flowrt.dtypes import as_dtype
from flowrt.functions.function import function
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.derivatives.custom_gradient import custom_gradient
from flowrt.graph.source import misuse

__all__ = ["Defun"]


class _Call(NamedTuple):
    """A call as the operation that a gradient function is given."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


class Defun:
    """Decorate a function of tensors of ``input_types``, by default any: a call adds one operation.

    With ``python_grad_func`` its gradients are ``python_grad_func(op, *dys)``, with ``op.inputs`` and
    ``op.outputs``; with ``grad_func`` they are ``grad_func(*inputs, *dys)``. ``func_name`` is the
    operation's name. Other options are accepted. A call raises `InvalidArgumentError` for another number of
    tensors.
    """

    def __init__(self, *input_types: Any, **options: Any) -> None:
        self._types = [as_dtype(each) for each in input_types]
        self._name, self._gradient = options.get("func_name"), options.get("python_grad_func")
        grad_func = options.get("grad_func")
        if grad_func is not None:
            self._gradient = lambda op, *dys: grad_func(*op.inputs, *dys)

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        run = function(func, name=self._name) if self._gradient is None else _derived(func, self._gradient)

        @functools.wraps(func)
        def call(*args: Any) -> Any:
            if self._types and len(args) != len(self._types):
                raise misuse(
                    f"{func.__name__}: expected {len(self._types)} tensors, as Defun says; got {len(args)}"
                )
            kinds: Sequence[Any] = self._types or [None] * len(args)
            return run(*map(convert_to_tensor, args, kinds))

        return call


def _derived(func: Callable[..., Any], gradient: Callable[..., Any]) -> Callable[..., Any]:
    """``func`` with gradients by ``gradient``."""

    @custom_gradient
    def run(*xs: Tensor) -> Any:
        ys = func(*xs)
        return ys, lambda *dys: gradient(_Call(xs, flatten(ys)), *dys)

    return run
