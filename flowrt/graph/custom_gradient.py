"""`custom_gradient`: a function whose gradient is given by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import get_default_graph
from flowrt.graph.op_def import op_def


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``f(*xs) -> (ys, grad_fn)``; ``grad_fn(*dys)`` returns one gradient an x.

    The inner operations of ``f`` take no part in differentiation. Raises `InvalidArgumentError` when ``f``
    returns something else.
    """

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        xs = [convert_to_tensor(x) for x in args]
        result = f(*xs, **kwargs)
        if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
            raise InvalidArgumentError(
                f"custom_gradient: expected {f.__name__} to return (ys, grad_fn); got {result!r}"
            )
        value, grad_fn = result
        single = not isinstance(value, (list, tuple))
        ys = [convert_to_tensor(y) for y in ([value] if single else value)]
        functions = get_default_graph().gradient_functions
        name = f"custom_gradient_{len(functions)}"

        def gradient(_: Any, *dys: Any) -> list[Any]:
            given = grad_fn(*dys[: len(ys)])
            dxs = list(given) if isinstance(given, (list, tuple)) else [given]
            if len(dxs) != len(xs):
                message = f"custom_gradient of {f.__name__}: expected {len(xs)} gradients; got {len(dxs)}"
                raise InvalidArgumentError(message)
            return [None] * len(ys) + dxs

        functions[name] = gradient
        # ys and xs pass through one op, so that the gradient has an edge to the xs
        outputs = op_def("IdentityN")([*ys, *xs], _gradient_op_type=name)[: len(ys)]
        return outputs[0] if single else type(value)(outputs)

    return decorated
