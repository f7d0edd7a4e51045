"""The operations of one worker's training step with parameter servers, from gradients to acknowledged
updates.

    begin          a NoOp that the whole step waits for; it waits for each server's ParameterShardBegin
    gradients      computed by the step's function, on the worker
    push           each server's update, once its worker, or enough workers, have pushed gradients
    replicate      with replicas: the new state to the next server, before the step counts
    clock          the worker's step count, incremented when all servers have acknowledged this step

Every server has a shard: its variables of the step, their slots, and an optimizer's own variables, as if
there were no others. The step counter belongs to the shard of its server, so it counts updates.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from flowrt import dtypes
from flowrt.distribute.strategies.reduce.cross_device_ops import placed_on
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.node import Subgraph
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.reductions import reduce_min
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.state import parameter_shards as ops
from flowrt.graph.ops.state.variable_ops import var_handle_op
from flowrt.graph.ops.text.python_calls import group, no_op
from flowrt.graph.resources.parameter_shard import Policy
from flowrt.variables.variable import GraphKeys, Variable

FIRST_CLOCK = 6
"""Index of the first worker clock in a status."""


@final
@dataclass
class Shard:
    """The state of ``server`` for one training operation; ``handle`` is the resource there.

    With replicas, ``replica`` is the resource on the next server, which also has variables of the same names.
    """

    server: int
    handle: Tensor
    variables: list[Variable] = field(default_factory=list)
    replica: Tensor | None = None
    replica_operations: list[str] = field(default_factory=list)
    """The names of those that are on the replica's server."""


class Servers(NamedTuple):
    """``devices`` of the parameter servers; ``worker`` is this one's number; ``tasks`` are the workers'."""

    devices: Sequence[str]
    worker: int
    worker_device: str
    tasks: Sequence[str]
    policy: Policy
    timeout_s: float

    def of(self, variable: Variable) -> int:
        """The server of a variable. Raises `InvalidArgumentError` for one that is on none."""
        if variable.device not in self.devices:
            raise InvalidArgumentError(
                f"apply_gradients: expected variables on parameter servers; {variable.op.name!r} is on "
                f"{variable.device or 'no device'!r}. Create it in the strategy's scope"
            )
        return self.devices.index(variable.device)

    def next(self, server: int) -> str:
        """The device of the server that keeps the replica of a shard."""
        return self.devices[(server + 1) % len(self.devices)]


class TrainingOperation(NamedTuple):
    """``operation`` makes a step. ``clock`` counts the worker's steps; ``ended``, if it is fetched, is its
    value after the step if the run makes one.
    """

    operation: Operation
    shards: Sequence[Shard]
    clock: Variable
    ended: Tensor


@final
class StepBuilder:
    """Builds a `TrainingOperation`; its step waits for ``begin``."""

    def __init__(self, servers: Servers, graph: Graph, begin: Operation) -> None:
        self._servers, self._graph, self._begin = servers, graph, begin

    def apply_gradients(
        self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]], global_step: Variable | None, name: str
    ) -> TrainingOperation:
        """The training operation with the same effect as `Optimizer.apply_gradients`."""
        mine: dict[int, list[tuple[Any, Variable]]] = {}
        for gradient, variable in pairs:
            mine.setdefault(self._servers.of(variable), []).append((gradient, variable))
        counting = None if global_step is None else self._servers.of(global_step)
        numbers = sorted({*mine, *([] if counting is None else [counting]), *self._servers_to_replicate()})
        with self._graph.name_scope(name) as scope:
            shards = [self._shard(number) for number in numbers]
            clock = self._clock(shards)
            with self._graph.control_dependencies(None):
                number = clock.read_value()
            tags = self._tags(self._begin_step(shards, number))
            updates = []
            for shard in shards:
                step = global_step if shard.server == counting else None
                updates.append(self._update(shard, optimizer, mine.get(shard.server, []), step))
            if self._servers.policy.is_replicated:
                tags, updates = self._kept(number, tags, updates)
            ends = []
            for shard, tag, update in zip(shards, tags, updates, strict=True):
                pushed = self._push(shard, number, tag, update)
                ends.append(pushed if shard.replica is None else self._replicate(shard, pushed))
            with self._graph.control_dependencies(ends), placed_on(self._servers.worker_device):
                done = clock.assign(number + 1, read_value=False, name=scope)
        with self._graph.control_dependencies(None), placed_on(self._servers.worker_device):
            return TrainingOperation(done, shards, clock, clock.read_value())

    def _servers_to_replicate(self) -> set[int]:
        """Servers with variables, trained or not; empty without replicas."""
        if not self._servers.policy.is_replicated:
            return set()
        devices = self._servers.devices
        everything = [v.device for v in _all_variables(self._graph)]
        return {number for number, device in enumerate(devices) if device in everything}

    # --- before the step

    def _shard(self, server: int) -> Shard:
        policy = self._servers.policy
        name = self._graph.unique_name(f"shard_{server}", mark_as_used=False)
        kind = f"{policy.workers} workers, quorum {policy.quorum}, staleness {policy.staleness}"
        kind += ", backup" if policy.is_backup else ""

        def handle(device: str) -> Tensor:
            with self._graph.control_dependencies(None), placed_on(device):
                return ops.parameter_shard_op(
                    workers=policy.workers,
                    quorum=policy.quorum,
                    staleness=ops.UNBOUNDED if policy.staleness is None else policy.staleness,
                    is_replicated=policy.is_replicated,
                    is_backup=policy.is_backup,
                    timeout_s=self._servers.timeout_s,
                    tasks=self._servers.tasks,
                    shared_name=f"{name} ({kind})",  # shards are separate per mode
                    name=f"shard_{server}",
                )

        shard = Shard(server, handle(self._servers.devices[server]))
        if policy.is_replicated:
            shard.replica = handle(self._servers.next(server))
            shard.replica_operations.append(shard.replica.op.name)
        return shard

    def _clock(self, shards: Sequence[Shard]) -> Variable:
        """Number of steps that the worker has completed. A new or restarted worker continues from the
        smallest count of all servers: those with more recorded steps ignore repeated ones.
        """

        def first() -> Tensor:
            clocks = []
            for shard in shards:
                with placed_on(shard.handle.device):
                    clocks.append(ops.shard_status_op(shard.handle)[FIRST_CLOCK + self._servers.worker])
            return reduce_min(stack(clocks))

        with placed_on(self._servers.worker_device):
            return Variable(
                first, trainable=False, collections=[GraphKeys.LOCAL_VARIABLES], name="clock", dtype="int64"
            )

    def _begin_step(self, shards: Sequence[Shard], number: Tensor) -> list[Tensor]:
        """The versions that the worker reads in its step ``number``."""
        begun = []
        with self._graph.control_dependencies(None):
            for shard in shards:
                with placed_on(shard.handle.device):
                    begun.append(ops.begin_step_op(shard.handle, number, worker=self._servers.worker))
                self._begin.add_control_input(begun[-1].op)
        return begun

    def _tags(self, begun: Sequence[Tensor]) -> Sequence[Tensor]:
        """The version that each shard's gradient is of. Gradients that count only in one version are of the
        oldest that they were computed from.
        """
        if not self._servers.policy.drops_late or len(begun) == 1:
            return begun
        with placed_on(self._servers.worker_device):
            return [reduce_min(stack(begun))] * len(begun)

    # --- the update

    def _update(
        self,
        shard: Shard,
        optimizer: Any,
        pairs: Sequence[tuple[Any, Variable]],
        global_step: Variable | None,
    ) -> Update:
        """Update with the shard's own optimizer: slots with their variables, all others with the first."""
        own = copy.copy(optimizer)
        own._non_slots = {}
        if pairs:
            with self._graph.control_dependencies(None), placed_on(shard.handle.device):
                own._create_slots([variable for _, variable in pairs])
        update = traced_update(self._graph, own, pairs, global_step)
        for key, variable in own._non_slots.items():
            optimizer._non_slots.setdefault(key, variable)
        device = self._servers.devices[shard.server]
        shard.variables = [v for v in _all_variables(self._graph) if v.device == device]
        return update

    def _kept(
        self, number: Tensor, tags: Sequence[Tensor], updates: Sequence[Update]
    ) -> tuple[Sequence[Tensor], list[Update]]:
        """The gradients, but a repeated step sends the same ones again: servers that were at different
        versions when a server was lost then all apply the same update.
        """
        with placed_on(self._servers.worker_device):
            with self._graph.control_dependencies(None):
                keeper = ops.gradient_keeper_op(name="keeper")
            values = [*tags, *(tensor for update in updates for tensor in update.gradients)]
            kept = iter(ops.keep_gradients_op(keeper, number, values, name="keep"))
        kept_tags = [next(kept) for _ in tags]
        return kept_tags, [
            update._replace(gradients=[next(kept) for _ in update.gradients]) for update in updates
        ]

    def _push(self, shard: Shard, number: Tensor, tag: Tensor, update: Update) -> Tensor:
        with placed_on(shard.handle.device):
            return ops.push_gradients_op(
                shard.handle,
                number,
                tag,
                update.handles,
                [*update.gradients, *update.others],
                worker=self._servers.worker,
                parts=update.parts,
                update=update.function,
                name="push",
            )

    def _replicate(self, shard: Shard, version: Tensor) -> Operation:
        """Has the replica take the state with ``version``. The operation that ends when it has it."""
        handles, kinds = [v.handle for v in shard.variables], [v.dtype for v in shard.variables]
        with placed_on(shard.handle.device):
            header, *values = ops.fetch_state_op(shard.handle, version, handles, T=kinds, name="fetch")
        assert shard.replica is not None
        with placed_on(shard.replica.device):
            copies = [_copy_handle(self._graph, variable) for variable in shard.variables]
            installed = ops.install_state_op(shard.replica, header, copies, values, name="install")
        shard.replica_operations += [tensor.op.name for tensor in (*copies, installed)]
        with placed_on(shard.handle.device):
            return ops.replicated_op(shard.handle, installed, name="replicated")


class Update(NamedTuple):
    """An update as data: ``function(handles, gradients, others)``. ``parts``: the tensors per gradient."""

    function: Subgraph
    gradients: Sequence[Tensor]
    parts: Sequence[int]
    handles: Sequence[Tensor]
    others: Sequence[Tensor]


def traced_update(
    graph: Graph, optimizer: Any, pairs: Sequence[tuple[Any, Variable]], global_step: Variable | None
) -> Update:
    """The function that applies ``optimizer`` to the variables of ``pairs`` with their gradients."""
    function = FuncGraph(graph, "the update of a parameter server")
    gradients: list[Tensor] = []
    parts: list[int] = []
    stand_ins: list[Any] = []
    with function, function.control_dependencies(None), function.device(None):
        for gradient, variable in pairs:
            tensors = _tensors_of(gradient, variable)
            inner = [function.stand_in(tensor, "gradient") for tensor in tensors]
            gradients += tensors
            parts.append(len(tensors))
            if isinstance(gradient, IndexedSlices):
                stand_ins.append(IndexedSlices(inner[0], inner[1], gradient.dense_shape))
            else:
                stand_ins += inner
        count = len(function.parameters)
        last = _traced(optimizer, list(zip(stand_ins, [v for _, v in pairs], strict=True)), global_step)
    captured = [
        (outer, inner) for outer, inner in function.captures.items() if inner in function.parameters[count:]
    ]
    handles = [pair for pair in captured if pair[0].dtype is dtypes.resource]
    others = [pair for pair in captured if pair[0].dtype is not dtypes.resource]
    given = function.parameters[:count]
    ordered = [*(inner for _, inner in handles), *given, *(inner for _, inner in others)]
    body = function.subgraph([], [last]).replace(feeds=tuple(t.op.name for t in ordered))
    return Update(body, gradients, parts, [outer for outer, _ in handles], [outer for outer, _ in others])


def _traced(optimizer: Any, pairs: Sequence[tuple[Any, Variable]], global_step: Variable | None) -> Operation:
    """The last operation of an update of ``pairs`` and of the step counter."""
    operations: list[Operation] = []
    if pairs:
        optimizer._prepare()
        updates = [optimizer._update(variable, gradient) for gradient, variable in pairs]
        operations.append(optimizer._finish(updates, "finish"))
    if global_step is not None:
        operations.append(global_step.assign_add(convert_to_tensor(1, global_step.dtype), read_value=False))
    return group(*operations)


def _tensors_of(gradient: Any, variable: Variable) -> list[Tensor]:
    if isinstance(gradient, IndexedSlices):
        return [gradient.values, gradient.indices]
    return [convert_to_tensor(gradient, variable.dtype)]


def _all_variables(graph: Graph) -> list[Variable]:
    """Variables shared by sessions, in the form in which they are on the servers."""
    return [each for variable in graph.get_collection(GraphKeys.GLOBAL_VARIABLES) for each in variable.copies]


def _copy_handle(graph: Graph, variable: Variable) -> Tensor:
    """The handle of the replica of ``variable``: the variable of the same name on the requested server."""
    node = variable.op.node
    with graph.control_dependencies(None):
        attrs = {key: node.attrs[key] for key in ("dtype", "shape", "container", "shared_name")}
        return var_handle_op(**attrs, name=f"{variable.op.name.rpartition('/')[2]}_replica")


@contextmanager
def begun_step(graph: Graph) -> Iterator[Operation]:
    """Context in which operations wait for the yielded one."""
    with graph.control_dependencies(None):
        begin: Operation = no_op(name="begin_step")
    with graph.control_dependencies([begin]):
        yield begin
