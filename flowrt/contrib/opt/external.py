"""Optimizers that minimize a whole loss, step by step, from outside the graph: SciPy's.

They see one vector, in which all variables are laid out one after another. For each vector that they ask
about, the variables are assigned, then the loss and its gradient are fetched.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.executor.session.default_session import get_default_session
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.source import misuse, user_line
from flowrt.logging import info
from flowrt.variables.variable import Variable, trainable_variables

_FREE = (-np.inf, np.inf)


class ExternalOptimizerInterface:
    """Base of optimizers outside the graph: a subclass defines `_minimize`.

    ``loss`` is a scalar; ``var_list`` are the variables (all trainable ones if None). ``equalities`` are
    scalars to hold at zero, ``inequalities`` scalars to hold at zero or above. ``var_to_bounds`` gives
    variables ``(low, high)``, each a number or an array that broadcasts to the variable's shape, None for no
    bound. Other arguments go to `_minimize`, as ``optimizer_kwargs``.
    """

    def __init__(
        self,
        loss: Tensor,
        var_list: Iterable[Variable] | None = None,
        equalities: Sequence[Tensor] | None = None,
        inequalities: Sequence[Tensor] | None = None,
        var_to_bounds: Mapping[Variable, tuple[Any, Any]] | None = None,
        **optimizer_kwargs: Any,
    ) -> None:
        self._loss = convert_to_tensor(loss)
        if self._loss.shape.rank not in (0, None):
            raise misuse(f"{type(self).__name__}: expected a scalar loss; got {self._loss!r}")
        self._equalities, self._inequalities = list(equalities or ()), list(inequalities or ())
        self._vars = list(trainable_variables() if var_list is None else var_list)
        if not self._vars:
            raise misuse(f"{type(self).__name__}: expected variables to minimize over; got none")
        self.optimizer_kwargs = optimizer_kwargs
        self._shapes: list[Any] = [tuple(variable.shape.as_list()) for variable in self._vars]
        self._packed_bounds = None if var_to_bounds is None else self._pack_bounds(var_to_bounds)
        self._packed_var = _packed([variable.read_value() for variable in self._vars])
        self._packed_loss_grad = self._gradient(self._loss)
        self._equality_grads = [self._gradient(each) for each in self._equalities]
        self._inequality_grads = [self._gradient(each) for each in self._inequalities]
        self._fed = [placeholder(v.dtype, shape) for v, shape in zip(self._vars, self._shapes, strict=True)]
        self._updates = [
            variable.assign(value, read_value=False)
            for variable, value in zip(self._vars, self._fed, strict=True)
        ]

    def minimize(
        self,
        session: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        fetches: Sequence[Any] | None = None,
        step_callback: Callable[[Any], Any] | None = None,
        loss_callback: Callable[..., Any] | None = None,
        **run_kwargs: Any,
    ) -> None:
        """Minimize the loss in ``session`` (the default one if None), with ``feed_dict`` fed throughout.

        ``step_callback`` is called after each step with the vector of all variables, ``loss_callback`` after
        each evaluation of the loss with the values of ``fetches``. The variables have the minimum afterwards;
        after an error, the values at which it occurred. Raises `InvalidArgumentError` without a session.
        """
        session = session or get_default_session()
        if session is None:
            raise InvalidArgumentError("minimize: expected a session; got None", source=user_line())
        feeds, more = dict(feed_dict or {}), list(fetches or ())

        def evaluation(*tensors: Tensor, callback: Callable[..., Any] | None = None) -> Callable[[Any], Any]:
            def evaluate(vector: Any) -> list[Any]:
                session.run(self._updates, self._parts(vector))
                values = session.run([*tensors, *more], feeds)
                if callback is not None:
                    callback(*values[len(tensors) :])
                return list(values[: len(tensors)])

            return evaluate

        found = self._minimize(
            initial_val=session.run(self._packed_var),
            loss_grad_func=evaluation(self._loss, self._packed_loss_grad, callback=loss_callback),
            equality_funcs=[evaluation(each) for each in self._equalities],
            equality_grad_funcs=[evaluation(each) for each in self._equality_grads],
            inequality_funcs=[evaluation(each) for each in self._inequalities],
            inequality_grad_funcs=[evaluation(each) for each in self._inequality_grads],
            packed_bounds=self._packed_bounds,
            step_callback=step_callback or (lambda vector: None),
            optimizer_kwargs=self.optimizer_kwargs,
        )
        session.run(self._updates, self._parts(found), **run_kwargs)

    def _minimize(
        self,
        initial_val: Any,
        loss_grad_func: Callable[[Any], Any],
        equality_funcs: Sequence[Callable[[Any], Any]],
        equality_grad_funcs: Sequence[Callable[[Any], Any]],
        inequality_funcs: Sequence[Callable[[Any], Any]],
        inequality_grad_funcs: Sequence[Callable[[Any], Any]],
        packed_bounds: Sequence[tuple[Any, Any]] | None,
        step_callback: Callable[[Any], Any],
        optimizer_kwargs: Mapping[str, Any],
    ) -> Any:
        """The vector of the minimum, for a subclass to define. ``loss_grad_func`` gives the loss of a vector
        and its gradient, the other functions a list of one scalar or gradient.
        """
        raise UnimplementedError(
            f"{type(self).__name__}: expected a subclass with _minimize; it has none", source=user_line()
        )

    # --- variables as one vector

    def _gradient(self, scalar: Tensor) -> Tensor:
        found = gradients(scalar, self._vars)
        return _packed(
            [
                zeros_like(variable.read_value()) if slope is None else convert_to_tensor(slope)
                for slope, variable in zip(found, self._vars, strict=True)
            ]
        )

    def _parts(self, vector: Any) -> dict[Tensor, Any]:
        """The value of each variable's placeholder."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1]
        parts = zip(self._fed, np.split(np.asarray(vector), ends), self._shapes, strict=True)
        return {fed: part.reshape(shape).astype(fed.dtype.np) for fed, part, shape in parts}

    def _pack_bounds(self, bounds: Mapping[Variable, tuple[Any, Any]]) -> list[tuple[float, float]]:
        packed = []
        for variable, shape in zip(self._vars, self._shapes, strict=True):
            ends: Any = bounds.get(variable, (None, None))
            if not hasattr(ends, "__len__") or len(ends) != 2:
                raise misuse(f"var_to_bounds: expected (low, high) of {variable.op.name}; got {ends!r}")
            pair = (free if end is None else end for end, free in zip(ends, _FREE, strict=True))
            low, high = (np.broadcast_to(np.asarray(end, float), shape).ravel() for end in pair)
            packed += list(zip(low.tolist(), high.tolist(), strict=True))
        return packed


class ScipyOptimizerInterface(ExternalOptimizerInterface):
    """``scipy.optimize.minimize`` of a loss; ``method``, "L-BFGS-B" by default, ``options`` and ``tol`` are
    its arguments.

    Example:
        >>> v = tf.Variable([7.0, 7.0])
        >>> optimizer = tf.contrib.opt.ScipyOptimizerInterface(tf.reduce_sum(v * v), options={"maxiter": 100})
        >>> session.run(v.initializer)
        >>> optimizer.minimize(session)
        >>> np.abs(v.eval()) < 1e-4
        array([ True,  True])

    Raises `InvalidArgumentError` for arguments that are set here: bounds are ``var_to_bounds``, constraints
    ``equalities`` and ``inequalities``.
    """

    _DEFAULT_METHOD = "L-BFGS-B"

    def _minimize(
        self,
        initial_val: Any,
        loss_grad_func: Callable[[Any], Any],
        equality_funcs: Sequence[Callable[[Any], Any]],
        equality_grad_funcs: Sequence[Callable[[Any], Any]],
        inequality_funcs: Sequence[Callable[[Any], Any]],
        inequality_grad_funcs: Sequence[Callable[[Any], Any]],
        packed_bounds: Sequence[tuple[Any, Any]] | None,
        step_callback: Callable[[Any], Any],
        optimizer_kwargs: Mapping[str, Any],
    ) -> Any:
        own = {
            "jac": True,
            "callback": step_callback,
            "constraints": [
                {"type": kind, "fun": function, "jac": slope}
                for kind, functions, slopes in (
                    ("eq", equality_funcs, equality_grad_funcs),
                    ("ineq", inequality_funcs, inequality_grad_funcs),
                )
                for function, slope in zip(functions, slopes, strict=True)
            ],
            "bounds": packed_bounds,
        }
        for key in own.keys() & optimizer_kwargs.keys():
            raise InvalidArgumentError(
                f"ScipyOptimizerInterface: expected no argument {key!r}, which is set here. Use"
                " var_to_bounds, equalities, inequalities, or minimize(step_callback=...)",
                source=user_line(),
            )

        def loss_and_gradient(vector: Any) -> tuple[Any, Any]:
            loss, slope = loss_grad_func(vector)
            return float(loss), slope.astype(np.float64)

        scipy: Any = importlib.import_module("scipy.optimize")
        start = initial_val.astype(np.float64)  # its compiled methods take no other dtype
        options = {"method": self._DEFAULT_METHOD, **optimizer_kwargs}
        result = scipy.minimize(loss_and_gradient, start, **own, **options)
        info(
            "Optimization terminated with:\n  Message: %s\n  Objective function value: %f\n"
            "  Number of iterations: %d\n  Number of functions evaluations: %d",
            result.message,
            result.fun,
            result.get("nit", 0),
            result.get("nfev", 0),
        )
        return result.x


def _packed(values: Sequence[Any]) -> Tensor:
    return concat([reshape(value, [-1]) for value in values], 0)
