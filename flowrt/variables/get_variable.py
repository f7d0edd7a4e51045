"""`get_variable`: variables by name, made once and shared.

A variable's name is the open variable scope's and its own; name scopes do not matter. Whether a name must be
new, must exist, or may be either is the scope's ``reuse``.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowrt.dtypes import DType, DTypeLike, as_dtype, bool_, float32
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.shapes import as_shape, compatible, format_shape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, ShapeLike
from flowrt.initializers import GlorotUniform, Zeros
from flowrt.variables.distribution_context import layout_strategy
from flowrt.variables.variable import GraphKeys, Variable, VariableAggregation, VariableSynchronization
from flowrt.variables.variable_scope import VariableScope, VariableStore, nested_getter, variable_store


def get_variable(
    name: str,
    shape: ShapeLike = None,
    dtype: DTypeLike | None = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Any = None,
    constraint: Any = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
    layout: Any = None,
    stored: Any = None,
    axes: NumericLike | None = None,
) -> Variable:
    """The variable ``name`` of the current variable scope: a new one, or with the scope's ``reuse`` the
    existing one.

    Args:
        name: The name, after that of the scope.
        shape: The shape; not needed if the initializer is a value.
        dtype: The dtype, by default float32.
        initializer: An initializer, a function without arguments, or a value; by default `GlorotUniform` for
            floats, and zeros for others.
        regularizer: A function of the variable; its result is added to the collection REGULARIZATION_LOSSES.
        trainable: Whether optimizers train it; the default is True.
        collections: Names of the collections that it joins, instead of GLOBAL_VARIABLES.
        custom_getter: A function that is called as ``custom_getter(getter, name, **arguments)`` instead of
            creating the variable.
        constraint: A function that maps the value to an allowed one after each optimizer step.
        layout: With a `LayoutStrategy`, how the variable is used.
        stored: With a `LayoutStrategy`, how it is kept.
        axes: With a `LayoutStrategy`, logical axes in place of a layout.
        partitioner: Accepted: a variable stays one (see `flowrt.variables.partitioners`).

    Returns:
        The variable.

    Raises:
        InvalidArgumentError: The variable exists or does not, against ``reuse``; or the shape or dtype is not
            that of the shared one. The messages name the line that made it.

    Example:
        >>> with tf.variable_scope('layer', reuse=tf.AUTO_REUSE):
        ...     first = tf.get_variable('w', [2, 3])
        ...     again = tf.get_variable('w', [2, 3])
        >>> first is again, first.name, first.shape.as_list()
        (True, 'layer/w:0', [2, 3])
    """
    store = variable_store()
    scope = store.current.scope
    options: dict[str, Any] = {
        "name": f"{scope.name}/{name}" if scope.name else name,
        "shape": shape,
        "dtype": _requested_dtype(name, dtype, initializer, scope),
        "initializer": scope.initializer if initializer is None else initializer,
        "regularizer": scope.regularizer if regularizer is None else regularizer,
        "reuse": scope.reuse,
        "trainable": trainable,
        "collections": collections,
        "caching_device": scope.caching_device if caching_device is None else caching_device,
        "partitioner": scope.partitioner if partitioner is None else partitioner,
        "validate_shape": validate_shape,
        "use_resource": use_resource,
        "constraint": scope.constraint if constraint is None else constraint,
        "synchronization": synchronization,
        "aggregation": aggregation,
    }
    getter = (
        scope.custom_getter if custom_getter is None else nested_getter(custom_getter, scope.custom_getter)
    )
    with get_default_graph().root.name_scope(None), _with_layout(name, layout, stored, axes):
        if getter is None:
            return _get(store, **options)
        return getter(getter=partial(_get, store), **_accepted(getter, options))


def _with_layout(name: str, layout: Any, stored: Any, axes: Any) -> contextlib.AbstractContextManager[None]:
    """The layout of a variable made inside, for the strategy in force."""
    if layout is None and stored is None and axes is None:
        return contextlib.nullcontext()
    strategy = layout_strategy()
    if strategy is None:
        raise misuse(
            f"get_variable {name!r}: expected the scope of a LayoutStrategy for a layout; got none",
            FailedPreconditionError,
        )
    found: contextlib.AbstractContextManager[None] = strategy.extended.variable_layout(layout, stored, axes)
    return found


def _accepted(getter: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Drop the arguments that getters of older scripts do not have."""
    parameters = inspect.signature(getter).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return options
    newer = {"constraint", "synchronization", "aggregation"} - parameters.keys()
    return {key: value for key, value in options.items() if key not in newer}


def _requested_dtype(name: str, dtype: Any, initializer: Any, scope: VariableScope) -> DType:
    if initializer is None or callable(initializer):
        return scope.dtype if dtype is None else as_dtype(dtype)
    value = initializer if hasattr(initializer, "dtype") else as_array(initializer)
    own = as_dtype(value.dtype)
    if dtype is not None and as_dtype(dtype) is not own:
        message = (
            f"get_variable {name!r}: expected an initializer of dtype {as_dtype(dtype).name}; got {own.name}"
        )
        raise misuse(message)
    return own


def _get(
    store: VariableStore,
    name: str,
    shape: Any = None,
    dtype: Any = float32,
    initializer: Any = None,
    regularizer: Any = None,
    reuse: Any = None,
    partitioner: Any = None,
    use_resource: bool | None = None,
    **options: Any,
) -> Variable:
    """``options`` are what `Variable` takes."""
    with store.lock:
        existing = store.variables.get(name)
        if existing is not None:
            _check_shared(existing, name, shape, dtype, reuse)
            return existing
        if reuse is True:
            raise misuse(
                f"variable {name!r}: expected an existing one from get_variable, as reuse is True; got none. "
                "Use reuse=AUTO_REUSE to create it if missing"
            )
        variable = Variable(
            _initial_value(name, shape, as_dtype(dtype), initializer), name=name, dtype=dtype, **options
        )
        store.variables[name] = variable
    if regularizer is not None:
        _regularize(variable, name, regularizer)
    return variable


def _check_shared(variable: Variable, name: str, shape: Any, dtype: Any, reuse: Any) -> None:
    made = f"The existing one was made at {variable.op.source}"
    if not reuse:
        raise misuse(
            f"variable {name!r}: expected a new name; got that of an existing variable. To share it, set "
            f"reuse=True or reuse=AUTO_REUSE in variable_scope. {made}"
        )
    if not compatible(as_shape(shape), as_shape(variable.shape)):
        expected, got = format_shape(as_shape(variable.shape)), format_shape(as_shape(shape))
        raise misuse(
            f"variable {name!r}: expected shape {expected}, as reuse shares the existing variable; got"
            f" {got}. {made}"
        )
    if as_dtype(dtype) is not variable.dtype:
        expected, got = variable.dtype.name, as_dtype(dtype).name
        raise misuse(
            f"variable {name!r}: expected dtype {expected}, as reuse shares the existing variable; got"
            f" {got}. {made}"
        )
    strategy = layout_strategy()
    if strategy is not None:
        strategy.extended.check_reused(variable)


def _initial_value(name: str, shape: Any, dtype: DType, initializer: Any) -> Any:
    """The initial value for `Variable`: a value, or a function without arguments."""
    if initializer is None:
        if not (dtype.is_floating or dtype.is_integer or dtype is bool_):
            message = f"variable {name!r}: expected an initializer, as its dtype is {dtype.name}; got None"
            raise misuse(message)
        initializer = GlorotUniform(dtype=dtype) if dtype.is_floating else Zeros(dtype=dtype)
    initializer = initializer() if inspect.isclass(initializer) else initializer
    try:
        known = as_shape(shape)
    except InvalidArgumentError as error:
        raise misuse(f"variable {name!r}: {error}") from None
    if not callable(initializer):
        own = as_shape(initializer.shape) if hasattr(initializer, "shape") else np.shape(initializer)
        if not compatible(known, own):
            expected, got = format_shape(known), format_shape(own)
            raise misuse(f"variable {name!r}: expected a value of shape {expected}; got {got}")
        return initializer
    if known is not None and None not in known:
        return partial(_call_initializer, initializer, [int(d or 0) for d in known], dtype)
    if _takes_nothing(initializer):
        return initializer
    given = "none" if shape is None else format_shape(known)
    message = (
        f"variable {name!r}: expected a shape without unknown dimensions for its initializer; got {given}"
    )
    raise misuse(message)


def _takes_nothing(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _call_initializer(initializer: Any, shape: list[int], dtype: DType) -> Any:
    parameters = inspect.signature(initializer).parameters
    if "dtype" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return initializer(shape, dtype=dtype)
    return initializer(shape) if parameters else initializer()


def _regularize(variable: Variable, name: str, regularizer: Callable[[Variable], Any]) -> None:
    graph = variable.graph
    with graph, graph.colocate_with(variable.op), graph.name_scope(f"{name}/Regularizer/"):
        loss = regularizer(variable)
    if loss is not None:
        graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)


def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Variable:
    """Call `get_variable` for a variable that is neither trained nor saved: its collection is
    LOCAL_VARIABLES.
    """
    bound = inspect.signature(get_variable).bind(name, *args, **kwargs).arguments
    bound["collections"] = [*(bound.get("collections") or ()), GraphKeys.LOCAL_VARIABLES]
    return get_variable(**{**bound, "trainable": False})
