"""Values for variables from checkpoints and arrays, and choices of variables, of ``contrib.framework``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.source import misuse
from flowrt.logging import warning
from flowrt.train.checkpoints.open_checkpoint import open_checkpoint
from flowrt.train.checkpoints.saver import Saver
from flowrt.variables.variable import Variable, global_variables, local_variables


def assign_from_checkpoint_fn(
    model_path: Any, var_list: Any, ignore_missing_vars: bool = False, reshape_variables: bool = False
) -> Callable[[Any], None] | None:
    """A function of a session that restores ``var_list``, variables or variables by their names in the
    checkpoint ``model_path``: an ``init_fn``.

    With ``ignore_missing_vars`` variables that the checkpoint lacks keep their values; the result is None if
    none is left. Raises `InvalidArgumentError` for no variables; the function raises as `Saver.restore`.

    Example:
        >>> weights = tf.get_variable("weights", [2])
        >>> with tf.Session() as session:
        ...     session.run(tf.global_variables_initializer())
        ...     path = tf.train.Saver().save(session, "model/ckpt")
        ...     tf.contrib.framework.assign_from_checkpoint_fn(path, [weights])(session)
    """
    named = dict(var_list) if isinstance(var_list, Mapping) else {v.op.name: v for v in var_list}
    if not named:
        raise misuse("assign_from_checkpoint_fn: expected variables; got none", InvalidArgumentError)
    if ignore_missing_vars:
        stored = open_checkpoint(model_path).get_variable_to_shape_map()
        for name in named.keys() - stored.keys():
            warning("Variable %s is not in the checkpoint %s", name, model_path)
        named = {name: variable for name, variable in named.items() if name in stored}
        if not named:
            return None
    saver = Saver(named, reshape=reshape_variables)
    return lambda session: saver.restore(session, model_path)


def assign_from_checkpoint(
    model_path: Any, var_list: Any, ignore_missing_vars: bool = False
) -> tuple[Any, dict[Any, Any]]:
    """An operation that gives variables their values in a checkpoint, and what it is to be fed. See
    `assign_from_checkpoint_fn`; a variable may be a list of the variables that are its parts along the first
    axis.
    """
    reader = open_checkpoint(model_path)
    stored = reader.get_variable_to_shape_map()
    named = dict(var_list) if isinstance(var_list, Mapping) else {v.op.name: v for v in var_list}
    if missing := [name for name in named if name not in stored and not ignore_missing_vars]:
        raise misuse(f"assign_from_checkpoint: {model_path} has no {missing}", InvalidArgumentError)
    values = {}
    for name, variable in named.items():
        if name in stored:
            array, start = reader.get_tensor(name), 0
            parts = [variable] if isinstance(variable, Variable) else list(variable)
            for part in parts:
                rows = part.shape.as_list()[0] if len(parts) > 1 else None
                values[part] = array if rows is None else array[start : start + rows]
                start += rows or 0
    return _assign(values)


def assign_from_values(var_names_to_values: Mapping[str, Any]) -> tuple[Any, dict[Any, Any]]:
    """An operation that gives the variables of these names their values, and what it is to be fed.

    Raises `InvalidArgumentError` for a name that no variable has.
    """
    return _assign({get_unique_variable(name): value for name, value in var_names_to_values.items()})


def assign_from_values_fn(var_names_to_values: Mapping[str, Any]) -> Callable[[Any], None]:
    """A function of a session that gives the variables of these names their values: an ``init_fn``."""
    operation, feed_dict = assign_from_values(var_names_to_values)

    def assign(session: Any) -> None:
        session.run(operation, feed_dict)

    return assign


def _assign(values: Mapping[Variable, Any]) -> tuple[Any, dict[Any, Any]]:
    fed, assigned = {}, []
    for variable, value in values.items():
        given = placeholder(variable.dtype, variable.shape, f"placeholder/{variable.op.name}")
        assigned.append(variable.assign(given))
        fed[given] = value
    return group(*assigned), fed


def get_unique_variable(var_op_name: str) -> Variable:
    """The variable of this name. Raises `InvalidArgumentError` if there is none."""
    from_name = [v for v in [*global_variables(), *local_variables()] if v.op.name == var_op_name]
    if not from_name:
        raise misuse(f"get_unique_variable: there is no variable {var_op_name!r}", InvalidArgumentError)
    return from_name[0]


def filter_variables(
    var_list: Iterable[Variable],
    include_patterns: Sequence[str] | None = None,
    exclude_patterns: Sequence[str] | None = None,
    reg_search: bool = True,
) -> list[Variable]:
    """The variables with names that have one of ``include_patterns`` (None: all) and none of
    ``exclude_patterns``: regular expressions, found anywhere, or at the start without ``reg_search``.
    """
    matches = re.search if reg_search else re.match
    return [
        v
        for v in var_list
        if (not include_patterns or any(matches(pattern, v.op.name) for pattern in include_patterns))
        and not any(matches(pattern, v.op.name) for pattern in exclude_patterns or ())
    ]
