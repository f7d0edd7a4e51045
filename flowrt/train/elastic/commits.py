"""`Commit`: all variables after a step, in host memory; and the exchange of it between members."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from flowrt.distribute.cluster.timeouts import connect_timeout_s
from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.group import Group, join
from flowrt.distribute.elastic.coordinator import NO_COMMIT
from flowrt.distribute.elastic.elastic_messages import Epoch
from flowrt.dtypes import as_dtype
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.passes.layouts.processes import own_of_variable
from flowrt.train.checkpoints.checkpoint import write_checkpoint
from flowrt.train.checkpoints.checkpoint_state import (
    get_checkpoint_state,
    latest_checkpoint,
    load_variable,
    update_checkpoint_state,
)
from flowrt.train.checkpoints.pieces import Slices
from flowrt.train.checkpoints.stored_arrays import from_stored, to_stored
from flowrt.train.checkpoints.variable_pieces import filling, values_of
from flowrt.variables.variable import GraphKeys, Variable, global_variables

LOCK = ".elastic.lock"
"""A file beside the checkpoints, locked while a worker makes one of its commit."""


@final
@dataclass(frozen=True)
class Commit:
    """The ``values`` of all variables, by name, after step number ``step``. The step of a checkpoint that is
    still to be restored has none.
    """

    step: int = NO_COMMIT
    values: Mapping[str, Any] = field(default_factory=dict)


def check_committable() -> None:
    """Raise `UnimplementedError` if variables of the default graph are on a mesh of workers: maybe none of
    these has all of them.
    """
    for variable in global_variables():
        if own_of_variable(variable.op.node.attrs) is not None:
            raise UnimplementedError(
                f"variable {variable.op.name!r}: expected variables that each worker has as a whole; got one "
                "with a layout on a mesh of workers. Let this job go on from checkpoints: "
                "session(commit_every=0, save_checkpoint_steps=...)",
                op=variable.op.name,
            )


def commit_of(session: Any, step: Variable) -> Commit:
    """The values in ``session``. Values of which each worker has a part are computed by all together."""
    values = {v.op.name: np.asarray(value) for v, value in values_of(session, global_variables()).items()}
    return Commit(int(values[step.op.name]), values)


def restore_commit(session: Any, commit: Commit) -> None:
    """Set all variables of the default graph. Raises `InvalidArgumentError` if they are not those of the
    commit; then none has changed.
    """
    variables = {v.op.name: v for v in global_variables()}
    if variables.keys() != commit.values.keys():
        differ = sorted(variables.keys() ^ commit.values.keys())
        raise InvalidArgumentError(
            f"elastic job: expected the same variables in each epoch; {differ[0]!r} is not in all. Names "
            "must not depend on the number of workers"
        )
    filling(session, {v: _Value(name, v, commit.values[name]) for name, v in variables.items()})()


@final
class _Value:
    """A `flowrt.train.checkpoints.stored_tensor.Source` in memory."""

    def __init__(self, name: str, variable: Variable, value: Any) -> None:
        self._value = np.asarray(value)
        self.shape = self._value.shape
        if not variable.shape.is_compatible_with(list(self.shape)):
            raise InvalidArgumentError(
                f"variable {name!r}: expected shape {variable.shape} as in this epoch's graph; got "
                f"{list(self.shape)} of another epoch. Shapes must not depend on the number of workers"
            )

    def check(self, part: Slices) -> None:
        """See `Source`."""

    def read(self, part: Slices, out: Any) -> None:
        """See `Source`."""
        out[...] = self._value[part]


# --- between members


def shared_commit(epoch: Epoch, own: Commit) -> Commit:
    """The commit of rank 0, in all members of ``epoch``, which call this together. Raises `UnavailableError`
    if one is lost meanwhile.
    """
    size = len(epoch.addresses)
    if size == 1:
        return own
    group = Group(f"state of epoch {epoch.number}", size, (epoch.rank,))
    with join(group, epoch.addresses, timeout_s=connect_timeout_s(), names=epoch.names) as joined:
        communicator = joined.members[0].communicator
        return _broadcast(communicator, own)


def _broadcast(communicator: Communicator, own: Commit) -> Commit:
    """Rank 0's commit: a description in JSON, then the bytes of each value."""
    stored = {name: _bytes_of(name, value) for name, value in own.values.items()}
    kinds = [
        (name, as_dtype(own.values[name].dtype).name, list(own.values[name].shape), data.nbytes)
        for name, data in stored.items()
    ]
    described = json.dumps([own.step, kinds]).encode()
    (size,) = communicator.broadcast(np.array([len(described)]), name="size of the state")
    text = np.frombuffer(described[:size].ljust(size), np.uint8)
    step, kinds = json.loads(communicator.broadcast(text, name="description of the state").tobytes())
    values: dict[str, Any] = {}
    for name, dtype, shape, nbytes in kinds:
        data = stored[name] if communicator.rank == 0 else np.empty(nbytes, np.uint8)
        if nbytes:
            data = communicator.broadcast(data, name=name)
        values[name] = from_stored(as_dtype(dtype), tuple(shape), data, f"state of {name!r}")
    return Commit(step, values)


def _bytes_of(name: str, value: Any) -> Any:
    return to_stored(name, value).reshape(-1).view(np.uint8)


# --- checkpoints


def checkpointed_step(directory: str) -> int:
    """The global step of the newest checkpoint of ``directory``; `NO_COMMIT` if there is none."""
    prefix = latest_checkpoint(directory)
    return NO_COMMIT if prefix is None else int(load_variable(prefix, GraphKeys.GLOBAL_STEP))


def save_commit(commit: Commit, directory: str) -> None:
    """Make ``commit`` the newest checkpoint of ``directory``, unless there is one as new. Of processes that
    call this at once, one saves and the others wait. Raises as `write_checkpoint`.
    """
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, LOCK), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if checkpointed_step(directory) >= commit.step:
            return
        prefix = os.path.join(directory, f"model.ckpt-{commit.step}")
        write_checkpoint(prefix, commit.values)
        state = get_checkpoint_state(directory)
        older = [] if state is None else state.all_model_checkpoint_paths
        update_checkpoint_state(directory, prefix, [*older, prefix])
