"""`shard`: one worker's part of a dataset that all workers build, by rewriting its tree.

Each record must be read by one worker, once per epoch. The tree is sharded below any shuffle: workers with
different orders would otherwise read some records twice and others never.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from flowrt.base.structure import flatten, map_structure
from flowrt.data.batching import Batch, PaddedBatch
from flowrt.data.choosing import Choose, Resample, TakeWhile, Unique
from flowrt.data.node import Node, known_int
from flowrt.data.pipeline import Filter, Interleave, Map, Shard
from flowrt.data.record_files import Files
from flowrt.data.sources import Tensors, TensorSlices
from flowrt.data.traced import (
    FRESH_SEED,
    Traced,
    TracedDataset,
    TracedFunction,
    is_drawn_anew,
    operations_before,
)
from flowrt.data.windows import BucketByLength, GroupByReducer, GroupByWindow, TracedReduction
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.effects import draws_anew
from flowrt.graph.ops.random.sampling import random_shuffle_op

N = TypeVar("N", bound=Node)


class AutoShardPolicy(Enum):
    """FILE: whole files to each worker. DATA: records. AUTO: FILE if there are enough files, else DATA. OFF:
    the workers' datasets differ already.
    """

    OFF, AUTO, FILE, DATA = -1, 0, 1, 2


def shard(node: Node, count: int, index: int, policy: AutoShardPolicy) -> Node | None:
    """Worker ``index``'s part of ``node``, with batches of 1/``count`` of the size.

    Returns None if all workers read the elements in the same order: then each reads the same batches and
    takes its slice of each, which gives the same steps as a single worker. Raises `InvalidArgumentError` for
    FILE with fewer files than workers, and for batch sizes not divisible by ``count``.
    """
    if policy is AutoShardPolicy.OFF:
        return divide_batches(node, count)
    if policy is not AutoShardPolicy.DATA:
        by_file = _at_files(node, count, index)
        if by_file is not None:
            return divide_batches(by_file, count)
        if policy is AutoShardPolicy.FILE:
            raise InvalidArgumentError(
                f"AutoShardPolicy.FILE: expected a dataset of at least {count} files, one per worker; "
                "got fewer. Use AutoShardPolicy.DATA"
            )
    if not is_random(node):
        return None
    return divide_batches(_at_records(node, count, index), count)


def is_random(node: Node) -> bool:
    """Whether the order of ``node`` differs between processes, and from one start to the next: a shuffle, or
    what selects elements, draws without a seed.
    """
    if any(leaf is FRESH_SEED for leaf in _leaves(node)) or _has_random_order(node):
        return True
    if isinstance(node, SELECT_BY_VALUE) and _has_random_values(node):
        return True
    return any(is_random(child) for child in (*_inputs(node), *_returned(node)))


SELECT_BY_VALUE = (
    Filter, TakeWhile, Unique, Choose, Interleave, GroupByWindow, GroupByReducer, BucketByLength, Resample
)  # fmt: skip
"""Nodes that choose their elements by values: of their inputs, or of their functions."""


def _has_random_order(node: Node) -> bool:
    """Whether tensors that ``node`` is made with (a seed, a number of elements, names of files), but for the
    values of its elements, are drawn without a seed. Of values, `random_shuffle` makes the order.
    """
    tensors = [leaf for leaf in _leaves(node) if isinstance(leaf, Tensor)]
    if not isinstance(node, Tensors | TensorSlices):
        return any(map(is_drawn_anew, tensors))
    operations = (op for tensor in tensors for op in operations_before(tensor))
    return any(op.op_def is random_shuffle_op and draws_anew(op.node) for op in operations)


def _has_random_values(node: Node) -> bool:
    """Whether values of ``node``, or of what is below it, are drawn without a seed, or in any order."""
    drawn = any(
        leaf.draws_anew if isinstance(leaf, Traced) else isinstance(leaf, Tensor) and is_drawn_anew(leaf)
        for leaf in _leaves(node)
    )
    below = (*_inputs(node), *_returned(node))
    return drawn or _draws_in_any_order(node) or any(map(_has_random_values, below))


def _draws_in_any_order(node: Node) -> bool:
    """Whether threads of ``node``, a map, draw random numbers: whichever comes first, with a seed too."""
    if (
        not isinstance(node, Map)
        or node.num_parallel_calls is None
        or known_int(node.num_parallel_calls) == 1
    ):
        return False
    function: Any = node.fn  # a TracedFunction until the tree is opened
    return isinstance(function, TracedFunction) and function.draws


def _returned(node: Node) -> list[Node]:
    """The datasets that functions of ``node`` return."""
    return [leaf.node for leaf in _leaves(node) if isinstance(leaf, TracedDataset | TracedReduction)]


def _inputs(node: Node) -> list[Node]:
    return [leaf for leaf in _leaves(node) if isinstance(leaf, Node)]


def _leaves(node: Node) -> list[Any]:
    return [leaf for field in _fields(node) for leaf in flatten(getattr(node, field))]


def _with_inputs(node: N, changed: Callable[[Node], Node]) -> N:
    """``node`` with each of its inputs ``changed``."""

    def leaf(value: Any) -> Any:
        return changed(value) if isinstance(value, Node) else value

    return dataclasses.replace(  # type: ignore[type-var]
        node, **{field: map_structure(leaf, getattr(node, field)) for field in _fields(node)}
    )


def _fields(node: Node) -> list[str]:
    return [field.name for field in dataclasses.fields(node)]  # type: ignore[arg-type]


# --- by file


def _at_files(node: Node, count: int, index: int) -> Node | None:
    """``node`` with every ``count``-th of its files, starting at ``index``; None if there are too few."""
    if isinstance(node, Files):
        _check_source(node)
        if isinstance(node.filenames, np.ndarray) and node.filenames.size < count:
            return None
        names: Any = node.filenames.ravel() if isinstance(node.filenames, np.ndarray) else node.filenames
        return dataclasses.replace(node, filenames=names[index::count]) if names.shape else None
    function: Any = getattr(node, "fn", None)  # a TracedDataset until the tree is opened
    if isinstance(node, Interleave) and isinstance(function, TracedDataset) and _has_files(function.node):
        size = _known_size(node.input)
        if size is not None and size < count:
            return None
        return _with_inputs(node, lambda names: _at_records(names, count, index))
    below = getattr(node, "input", None)
    if not isinstance(below, Node):
        return None
    sharded = _at_files(below, count, index)
    return None if sharded is None else _with_inputs(node, lambda _: sharded)


def _known_size(node: Node) -> int | None:
    """The number of elements of the source of ``node``, if it is an array's rows."""
    while isinstance(below := getattr(node, "input", None), Node):
        node = below
    arrays = flatten(node.tensors) if isinstance(node, TensorSlices) else []
    return len(arrays[0]) if arrays and isinstance(arrays[0], np.ndarray) else None


def _has_files(node: Node) -> bool:
    return isinstance(node, Files) or any(map(_has_files, _inputs(node)))


# --- by record


def _at_records(node: Node, count: int, index: int) -> Node:
    """Every ``count``-th record of ``node``, starting at ``index``, taken below any random transformation."""
    if not is_random(node):
        return Shard(node, count, index)
    _check_source(node)
    return _with_inputs(node, lambda below: _at_records(below, count, index))


def _check_source(node: Node) -> None:
    """Raise `InvalidArgumentError` if ``node`` has no inputs and another order in each worker: there is
    nothing below it to divide.
    """
    if not _inputs(node) and is_random(node):
        raise InvalidArgumentError(
            "distributed dataset: expected a source with the same elements in the same order in all workers; "
            "got one whose tensors are drawn without a seed, as by random_shuffle. Give that op a seed, or "
            "use Dataset.shuffle()"
        )


def divide_batches(node: Node, count: int) -> Node:
    """``node`` with its last batch size divided by ``count``. Raises `InvalidArgumentError`."""
    if isinstance(node, Batch | PaddedBatch):
        size = known_int(node.batch_size)
        if size is None or size % count:
            raise InvalidArgumentError(
                f"distributed dataset: expected a batch size divisible by {count}, the number of workers;"
                f" got {size or 'a tensor'}"
            )
        return dataclasses.replace(node, batch_size=size // count)
    below = getattr(node, "input", None)
    if not isinstance(below, Node):
        raise InvalidArgumentError(
            "distributed dataset: expected a dataset with batch(); got one batched in another "
            "function. Use distribute_datasets_from_function()"
        )
    return _with_inputs(node, lambda batches: divide_batches(batches, count))
