"""`init_from_checkpoint`: initial values from a checkpoint, in place of the variables' own.

What is read is decided, and checked, when the function is called; it is read when the initializers run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError, nearest
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import ensure_shape
from flowrt.graph.ops.text.python_calls import py_func
from flowrt.graph.source import misuse
from flowrt.storage.durable_files import PathLike
from flowrt.train.checkpoints.checkpoint_reader import CheckpointReader
from flowrt.train.checkpoints.checkpoint_state import load_checkpoint
from flowrt.train.checkpoints.open_checkpoint import open_checkpoint
from flowrt.variables.variable import Variable, global_variables, local_variables

Assignments: TypeAlias = Mapping[str, Any] | Iterable[tuple[str, Any]]


def init_from_checkpoint(ckpt_dir_or_file: PathLike, assignment_map: Assignments) -> None:
    """Let variables be initialized from a checkpoint, of flowrt's or TensorFlow's; others keep their initial
    values. ``assignment_map`` is a dict, or pairs, from what the checkpoint has to what gets it:

    - a tensor's name to a variable or to a variable's name;
    - a scope, "old/", to a scope, "new/": each variable in it gets the tensor of the same name behind the
      scope. "/" stands for names without a scope.

    ``ckpt_dir_or_file`` is a prefix, or a directory, of which the latest checkpoint is taken. Call it before
    the operation that initializes variables is made.

    >>> tf.train.init_from_checkpoint("bert/model.ckpt", {"bert/": "encoder/"})
    >>> session.run(tf.global_variables_initializer())

    Raises `NotFoundError` for a checkpoint, a tensor or variables that are not there, `InvalidArgumentError`
    and `DTypeError` where shapes or dtypes differ, and as `CheckpointReader`. No variable has changed then.
    """
    reader = load_checkpoint(ckpt_dir_or_file)
    pairs = assignment_map.items() if isinstance(assignment_map, Mapping) else assignment_map
    variables = {v.op.name: v for v in [*global_variables(), *local_variables()]}
    chosen: dict[Variable, str] = {}
    for source, target in pairs:
        chosen |= _chosen(reader, source, target, variables)
    for variable, name in chosen.items():
        _check(reader, variable, name)
    for variable, name in chosen.items():
        variable.initialize_from(partial(_stored_value, reader.prefix, name, variable))


def _chosen(
    reader: CheckpointReader, source: Any, target: Any, variables: Mapping[str, Variable]
) -> dict[Variable, str]:
    """The tensor of each variable that one pair names."""
    if not isinstance(source, str):
        raise misuse(f"init_from_checkpoint: expected names in the checkpoint; got {source!r}", DTypeError)
    if isinstance(target, Variable):
        return {target: source}
    if not isinstance(target, str):
        raise misuse(
            f"init_from_checkpoint: {source!r}: expected a variable or a name; got {target!r}", DTypeError
        )
    if not target.endswith("/"):
        name = target.removesuffix(":0")
        if name not in variables:
            raise misuse(
                f"init_from_checkpoint: the graph has no variable {target!r}.{nearest(name, variables)}",
                NotFoundError,
            )
        return {variables[name]: source}
    if not source.endswith("/"):
        raise misuse(f"init_from_checkpoint: expected a scope for {target!r}: 'old/'; got {source!r}")
    scope, old = target.removeprefix("/"), source.removeprefix("/")
    found = {v: old + name.removeprefix(scope) for name, v in variables.items() if name.startswith(scope)}
    if not found:
        raise misuse(
            f"init_from_checkpoint: the graph has no variables in {target!r}.{nearest(target, variables)}",
            NotFoundError,
        )
    return found


def _check(reader: CheckpointReader, variable: Variable, name: str) -> None:
    where = f"init_from_checkpoint: variable {variable.op.name!r}"
    stored = reader.stored(name)
    if stored.dtype != variable.dtype:
        raise misuse(
            f"{where} is {variable.dtype.name}; tensor {name!r} of {reader.prefix} is {stored.dtype.name}",
            DTypeError,
        )
    if not variable.shape.is_compatible_with(list(stored.shape)):
        raise misuse(
            f"{where} has shape {variable.shape}; tensor {name!r} of {reader.prefix} has "
            f"{list(stored.shape)}",
            InvalidArgumentError,
        )


def _stored_value(prefix: str, name: str, variable: Variable) -> Tensor:
    read = py_func(lambda: open_checkpoint(prefix).get_tensor(name), [], variable.dtype, name="Restore")
    return ensure_shape(read, variable.shape)
