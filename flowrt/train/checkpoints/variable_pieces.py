"""Variables in a session as pieces: the pieces that this process writes, and the parts that it reads.

A session keeps a variable in shards (`BaseSession.variable_shards`): they are written from where they are,
and read to where they are, without a copy of the whole. What only steps can reach, such as the variables of a
cluster, and what has several copies, is saved and restored by its whole value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowrt.base.progress import Progress
from flowrt.dtypes import string
from flowrt.errors import FailedPreconditionError
from flowrt.executor.session.session_variables import StoredShard
from flowrt.graph.shapes import is_static
from flowrt.train.checkpoints.pieces import Holder, block_of, choose_writers, count, whole
from flowrt.train.checkpoints.shard_file import HeldPiece
from flowrt.train.checkpoints.stored_tensor import Source
from flowrt.train.checkpoints.together import Processes
from flowrt.variables.variable import Variable


def held_pieces(sess: Any, variables: Mapping[str, Variable], processes: Processes) -> list[HeldPiece]:
    """The pieces of ``variables``, by their names in the checkpoint, that this process writes. Each is
    written by one of the devices that hold it, so that all write about as many bytes.

    Raises `FailedPreconditionError` for a variable without a value.
    """
    shards = _shards(sess, variables.values())
    values = values_of(sess, [v for v in variables.values() if v not in shards])
    held = list[HeldPiece]()
    in_place = {name: shards[v] for name, v in variables.items() if v in shards}
    mine = _chosen(in_place, variables, processes.number)
    for name, v in variables.items():
        if v in shards:
            held += [_held(name, v, shard) for shard in mine.get(name, ())]
        elif processes.number == 0:
            held.append(HeldPiece.of_array(name, values[v]))
    return held


def take_part_in_values(sess: Any, variables: Iterable[Variable]) -> None:
    """Read, at the same time as the worker that saves, the values that need all workers."""
    _shared_values(sess, variables)


def filling(sess: Any, sources: Mapping[Variable, Source]) -> Callable[[], None]:
    """A function that sets variables from ``sources``, which have their shapes. What it reads is checked now:
    afterwards, files do not make it fail.
    """
    shards = _shards(sess, sources)
    for v, source in sources.items():
        parts = [shard.slices for shard in shards[v] if shard.where is not None] if v in shards else None
        for part in [whole(source.shape)] if parts is None else parts:
            source.check(part)

    def fill() -> None:
        with Progress("restoring", len(sources), "tensors") as progress:
            for done, (v, source) in enumerate(sources.items()):
                progress.update(done, v.op.name)
                for shard in shards.get(v, ()):
                    if shard.where is not None:
                        shard.fill(partial(source.read, shard.slices))
            sess.assign_variables(_values_of_copies({v: s for v, s in sources.items() if v not in shards}))

    return fill


def _values_of_copies(sources: Mapping[Variable, Source]) -> dict[Variable, Any]:
    found = dict[Variable, Any]()
    for v, source in sources.items():
        value = np.empty(source.shape, v.dtype.np)
        source.read(whole(source.shape), value)
        found |= dict(zip(v.copies, v.value_for_copies(value), strict=True))
    return found


def _shards(sess: Any, variables: Iterable[Variable]) -> dict[Variable, list[StoredShard]]:
    """The shards of those variables that the session has in place, and that bytes can describe."""
    single = [v for v in variables if len(v.copies) == 1 and v.copies[0] is v]
    fixed = [v for v in single if v.dtype is not string and is_static(v.op.node.attrs["shape"])]
    return {v: shards for v, shards in zip(fixed, sess.variable_shards(fixed), strict=True) if shards}


def _chosen(
    shards: Mapping[str, list[StoredShard]], variables: Mapping[str, Variable], task: int
) -> dict[str, list[StoredShard]]:
    """The shards that process ``task`` writes, by name."""
    holders: dict[tuple[str, Any], dict[Holder, StoredShard]] = {}
    for name, found in shards.items():
        for shard in (shard for shard in found if not shard.is_copy):
            block = block_of(shard.slices)
            if count(block[1]) or not count(_shape(variables[name])):  # a tensor without elements is listed
                holders.setdefault((name, block), {})[Holder(shard.task, shard.device)] = shard
    sizes = [count(shape) * variables[name].dtype.size for name, (_, shape) in holders]
    writers = choose_writers([(size, list(of)) for size, of in zip(sizes, holders.values(), strict=True)])
    mine: dict[str, list[StoredShard]] = {}
    for (name, _), of, writer in zip(holders, holders.values(), writers, strict=True):
        if writer.task == task:
            mine.setdefault(name, []).append(of[writer])
    return mine


def _held(name: str, variable: Variable, shard: StoredShard) -> HeldPiece:
    offset, shape = block_of(shard.slices)
    if shard.where is not None:
        try:
            shard.where[1].read()
        except FailedPreconditionError as error:
            raise variable.op.error(FailedPreconditionError, error.message) from None
    nbytes = count(shape) * variable.dtype.size
    return HeldPiece(name, variable.dtype, _shape(variable), offset, shape, nbytes, shard.reading)


def _shape(variable: Variable) -> tuple[int, ...]:
    """The shape of a variable for which it is static."""
    return tuple(size or 0 for size in variable.shape.as_list())


def values_of(sess: Any, variables: Sequence[Variable]) -> dict[Variable, Any]:
    """The value to save for each variable."""
    shared = _shared_values(sess, variables)
    kept = [v for v in variables if v not in shared]
    found = iter(sess.variable_values([copy for v in kept for copy in v.copies]))
    return shared | {v: v.value_of_copies([next(found) for _ in v.copies]) for v in kept}


def _shared_values(sess: Any, variables: Iterable[Variable]) -> dict[Variable, Any]:
    """The values that other workers hold parts of; the workers read them at the same time."""
    tensors = {v: v.shared_value for v in variables if v.shared_value is not None}
    return dict(zip(tensors, sess.run(list(tensors.values())), strict=True)) if tensors else {}
