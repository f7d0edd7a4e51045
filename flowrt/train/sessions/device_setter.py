"""`replica_device_setter`: variables on parameter servers, everything else on the worker.

    with flowrt.device(train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:1")):

Each worker of between-graph replication builds its graph under such a scope. All build the same variables in
the same order, so all choose the same parameter server for each, and share it.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from flowrt.device.spec import parse_device
from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.operation import Operation

PS_OPS = ("VarHandleOp",)
"""The types of operations that a parameter server keeps."""

Strategy: TypeAlias = Callable[[Operation], int]
"""Chooses the index of the parameter server for a variable's operation."""


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Strategy | None = None,
) -> Callable[[Operation], str] | None:
    """A function for `flowrt.device` that puts operations of the types ``ps_ops`` (variables) on the tasks of
    ``ps_device``, round-robin or as ``ps_strategy`` chooses, and all others on ``worker_device``.

    The number of tasks comes from ``cluster``, a `ClusterSpec` or an argument for one, else from
    ``ps_tasks``. Returns None, which as a scope only clears outer ones, if there are no parameter servers. An
    inner scope wins field by field; with ``merge_devices=False`` it replaces this one entirely. Raises
    `DTypeError` for a strategy that is not callable, `InvalidArgumentError` for invalid ``ps_tasks``.
    """
    if cluster is not None:
        job = parse_device(ps_device).job
        spec = ClusterSpec(cluster)
        ps_tasks = spec.num_tasks(job) if job in spec.jobs else 0
    is_whole = isinstance(ps_tasks, numbers.Integral)
    if not is_whole or ps_tasks < 0:
        raise InvalidArgumentError(
            f"replica_device_setter: expected ps_tasks to be an integer >= 0; got {ps_tasks!r}"
        )
    if ps_tasks == 0:
        return None
    strategy = RoundRobinStrategy(ps_tasks) if ps_strategy is None else ps_strategy
    if not callable(strategy):
        raise DTypeError(f"replica_device_setter: expected a ps_strategy to call; got {strategy!r}")
    types = frozenset(PS_OPS if ps_ops is None else ps_ops)
    server, worker = parse_device(ps_device), parse_device(worker_device)

    def choose(op: Operation) -> str:
        asked = parse_device(op.device)
        if op.type not in types:
            return worker.merge(asked).to_string()
        place = server
        if place.job and asked.job in (None, place.job):  # else the inner scope's job is the place
            place = place.replace(task=strategy(op))
        return place.merge(asked).to_string()

    return choose if merge_devices else lambda op: op.device or choose(op)


@final
class RoundRobinStrategy:
    """The tasks 0 to ``num_tasks`` - 1 in turn."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks, self._next = num_tasks, 0

    def __call__(self, op: Operation) -> int:
        task, self._next = self._next, (self._next + 1) % self._num_tasks
        return task


@final
class GreedyLoadBalancingStrategy:
    """The task with the least load so far; the first of several.

    ``load_fn(op)`` is the load of a variable's operation, at least 0: `byte_size_load_fn`. Raises
    `InvalidArgumentError` for another load.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Operation], float]) -> None:
        self._loads, self._load_fn = [0.0] * num_tasks, load_fn

    def __call__(self, op: Operation) -> int:
        load = self._load_fn(op)
        if not load >= 0:
            raise op.error(InvalidArgumentError, f"load_fn: expected a load of at least 0; got {load!r}")
        task = self._loads.index(min(self._loads))
        self._loads[task] += load
        return task


def byte_size_load_fn(op: Operation) -> int:
    """The size in bytes of the variable that ``op`` creates.

    Raises `InvalidArgumentError` for another operation, or a shape that is not fully known.
    """
    if op.type not in PS_OPS:
        raise op.error(InvalidArgumentError, "byte_size_load_fn: expected a variable's operation")
    shape = op.get_attr("shape")
    if shape is None or None in shape:
        raise op.error(InvalidArgumentError, f"byte_size_load_fn: expected a known shape; got {shape}")
    size: int = op.get_attr("dtype").size
    for dimension in shape:
        size *= dimension
    return size
