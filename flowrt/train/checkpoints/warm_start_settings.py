"""`warm_start`: initial values of a model's variables from the checkpoint of another one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.errors import NotFoundError, UnimplementedError
from flowrt.graph.source import misuse
from flowrt.logging import info
from flowrt.train.checkpoints.checkpoint_state import load_checkpoint
from flowrt.train.checkpoints.warm_start import init_from_checkpoint
from flowrt.variables.variable import Variable, global_variables, trainable_variables


class WarmStartSettings(NamedTuple):
    """A checkpoint, or a directory of them, and the variables that begin with its values: `warm_start`."""

    ckpt_to_initialize_from: Any
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def warm_start(
    ckpt_to_initialize_from: Any,
    vars_to_warm_start: Any = ".*",
    var_name_to_vocab_info: Mapping[str, Any] | None = None,
    var_name_to_prev_var_name: Mapping[str, str] | None = None,
) -> None:
    """Let variables begin with their values in a checkpoint, or in the newest one of a directory.

    ``vars_to_warm_start`` is a regular expression for the names of trainable variables (None: all), a list of
    those for all variables, or a list of variables; ``var_name_to_prev_var_name`` has the names in the
    checkpoint of those that have another one there. Call it before the operation that initializes variables
    is made.

    Raises `UnimplementedError` for ``var_name_to_vocab_info``, and as `init_from_checkpoint`.

    Example:
        >>> weights = tf.get_variable("dnn/weights", [2], initializer=tf.ones_initializer())
        >>> with tf.Session() as session:
        ...     session.run(weights.initializer)
        ...     path = tf.train.Saver().save(session, "trained/model.ckpt")
        >>> tf.train.warm_start(path, "dnn/.*")
    """
    if var_name_to_vocab_info:
        raise misuse("warm_start: expected no var_name_to_vocab_info", UnimplementedError)
    renamed = dict(var_name_to_prev_var_name or {})
    chosen = {variable.op.name: variable for variable in _chosen(vars_to_warm_start)}
    if unknown := renamed.keys() - chosen.keys():
        raise misuse(f"warm_start: there are no variables {sorted(unknown)} to start", NotFoundError)
    load_checkpoint(ckpt_to_initialize_from)  # also without any variable
    init_from_checkpoint(
        ckpt_to_initialize_from, [(renamed.get(name, name), variable) for name, variable in chosen.items()]
    )
    info("Begin with values of %s: %s", ckpt_to_initialize_from, ", ".join(sorted(chosen)))


def _chosen(given: Any) -> Sequence[Variable]:
    if given is None or isinstance(given, str):
        return [v for v in trainable_variables() if given is None or re.match(given, v.op.name)]
    if all(isinstance(each, Variable) for each in given):
        return list(given)
    return [v for v in global_variables() if any(re.match(pattern, v.op.name) for pattern in given)]
