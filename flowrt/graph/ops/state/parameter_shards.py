"""Operations of parameter servers: a worker's step with the parameters on one server.

    version = begin(shard, clock)                           waits until the worker may begin
    ...                                                     reads the variables, computes gradients
    version = push(shard, clock, tag, gradients)            waits until they are applied, or too late
    gradients = keep(keeper, clock, gradients)              with a replica: the same if a step is repeated
    state = fetch(shard, version)                           with a replica: the state, for one step at a time
    replicated(shard, install(replica's shard, state))      that transfers it to the replica

A shard is a resource on the server's task, with its variables; `flowrt.graph.resources.parameter_shard` has
the logic, `flowrt.graph.resources.shard_service` the waiting. An update is a function of the graph, from the
gradients' mean (and other inputs, such as a learning rate) to writes of variables and slots; the server runs
it kernel by kernel, holding the shard's lock.

A state is an int64 header, ``[is there one, generation, version, *clocks]``, and the variables' values; empty
if another step transfers it. Versions and clocks are int64 scalars.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.errors import InvalidArgumentError, OpError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect, Effects, OpDef, define_handle, define_op
from flowrt.graph.resources.parameter_shard import Policy
from flowrt.graph.resources.shard_service import ShardService
from flowrt.graph.resources.variables import VariableResource

UNBOUNDED = -1
"""Value of the attr ``staleness``: no limit."""


def _new_shard(node: Node) -> ShardService:
    attrs = node.attrs
    staleness = None if attrs["staleness"] == UNBOUNDED else attrs["staleness"]
    policy = Policy(attrs["workers"], attrs["quorum"], staleness, attrs["is_replicated"], attrs["is_backup"])
    return ShardService(attrs["shared_name"] or node.name, policy, attrs["timeout_s"], attrs["tasks"])


parameter_shard_op = define_handle(
    "ParameterShard",
    _new_shard,
    "The handle of what a parameter server keeps of the versions of its parameters and of its workers, whose"
    " tasks are tasks.",
    attrs=(
        f"workers: int, quorum: int = 1, staleness: int = {UNBOUNDED}, is_replicated: bool = False, "
        "is_backup: bool = False, timeout_s: float, tasks: list(string) = (), container: string = '', "
        "shared_name: string = ''"
    ),
)


@final
class Attendance:
    """Presence of a session at a shard, during or before its steps; the shard is notified if the session is
    lost.
    """

    _serial = itertools.count(1)

    def __init__(self) -> None:
        self._session = next(self._serial)
        self._at: tuple[ShardService, int] | None = None

    def come(self, shard: ShardService, worker: int) -> None:
        self._at = shard, worker
        shard.attend(worker, self._session)

    def begin(self, shard: ShardService, worker: int, clock: int) -> int:
        self._at = shard, worker
        return shard.begin(worker, clock, self._session)

    def lose(self, error: OpError) -> None:
        """Report the loss of the session, with the reason: its client is gone and did not close it."""
        if self._at is not None:
            shard, worker = self._at
            shard.lose(worker, self._session, error.message)


attend_op: OpDef[Operation] = define_op(
    "ParameterShardAttend",
    "shard: resource ->",
    attrs="worker: int",
    kernel=lambda xp, shard, worker, state: state.come(shard, worker),
    effects=Effects(Effect.WRITE, state=lambda node: Attendance()),
    doc="Registers a worker's session: if it is lost before its first step, others do not wait long.",
)

begin_step_op = define_op(
    "ParameterShardBegin",
    "shard: resource, clock: host int64 -> int64",
    attrs="worker: int",
    shape=lambda s: [()],
    kernel=lambda xp, shard, clock, worker, state: np.int64(state.begin(shard, worker, clock)),
    effects=Effects(Effect.WRITE, state=lambda node: Attendance(), waits=True),
    doc="Waits until a worker's step may read the parameters; the version that it reads at least.",
)


# --- updates


class Gradients(NamedTuple):
    """Contribution of ``worker`` to an update of the variables ``names``."""

    worker: int
    names: Sequence[str]
    values: Sequence[Any]


def check_alike(given: Sequence[Gradients]) -> None:
    """Raises `InvalidArgumentError` when the workers do not update the same: they run different scripts."""
    first = given[0]
    for other in given[1:]:
        mine, others = (
            [f"{value.dtype}{list(value.shape[1:])}" for value in each.values] for each in (first, other)
        )
        if first.names != other.names or mine != others:
            raise InvalidArgumentError(
                f"expected the same update on all workers; worker {first.worker} updates "
                f"{', '.join(first.names)} from {mine}, worker {other.worker} {', '.join(other.names)} from "
                f"{others}. Do they run the same script?"
            )


def _push(
    xp: Any, shard: ShardService, clock: int, tag: int, variables: Sequence[VariableResource],
    arguments: Sequence[Any], worker: int, parts: Sequence[int], update: Subgraph,
) -> Any:  # fmt: skip
    count = sum(parts)
    gradients, others = arguments[:count], arguments[count:]
    if shard.policy.quorum > 1:  # kept until others arrive, unlike the step's own arrays
        gradients = tuple([xp.array(part) for part in gradients])

    def apply(given: Sequence[Gradients]) -> None:
        check_alike(given)
        mean = mean_of(xp, [each.values for each in given], parts)
        run_update(xp, update, [*variables, *mean, *others])

    names = tuple(variable.name for variable in variables)
    return np.int64(shard.push(worker, clock, tag, Gradients(worker, names, gradients), apply))


push_gradients_op = define_op(
    "ParameterShardPush",
    "shard: resource, clock: host int64, tag: host int64, variables: N * resource, "
    "arguments: *Targuments in ANY -> int64",
    attrs="worker: int, parts: list(int), update: func",
    shape=lambda s: [()],
    kernel=_push,
    effects=Effects(Effect.WRITE, waits=True),
    doc="Gives a worker's gradients, the first arguments, to an update of the variables, and waits for it:"
    " update(variables, mean gradients, other arguments). parts: 1 for a dense gradient, 2 for the values and"
    " indices of a sparse one.",
)


def mean_of(xp: Any, contributions: Sequence[Sequence[Any]], parts: Sequence[int]) -> list[Any]:
    """The mean of several workers' gradients, added up in their order. Of sparse ones, the rows of all, each
    divided by the number of workers.
    """
    if len(contributions) == 1:
        return list(contributions[0])
    mean: list[Any] = []
    for is_sparse in [part == 2 for part in parts]:
        position = len(mean)
        given = [contribution[position] for contribution in contributions]
        total = xp.concatenate(given) if is_sparse else functools.reduce(xp.add, given)
        mean.append(xp.divide(total, len(given), dtype=total.dtype))
        if is_sparse:
            mean.append(xp.concatenate([contribution[position + 1] for contribution in contributions]))
    return mean


def run_update(xp: Any, update: Subgraph, arguments: Sequence[Any]) -> None:
    """Run ``update`` node by node, in order. Raises the errors of its kernels."""
    values: dict[Ref, Any] = {(name, 0): value for name, value in zip(update.feeds, arguments, strict=True)}
    for node in update:
        if (node.name, 0) in values:
            continue
        outputs = evaluate_node(node, [values[ref] for ref in node.inputs], xp=xp)
        is_live = node.op.effect is Effect.READ  # the variable's own memory, which a later node may change
        values.update(((node.name, i), xp.array(v) if is_live else v) for i, v in enumerate(outputs))


# --- replicas


@final
class GradientKeeper:
    """A worker's last gradients, in case they must be sent again."""

    def __init__(self) -> None:
        self._clock = -1
        self._values: tuple[Any, ...] = ()

    def keep(self, clock: int, copied: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """The gradients kept for step ``clock``; ``copied()`` if it is new."""
        if clock != self._clock:
            self._values, self._clock = copied(), clock
        return self._values


gradient_keeper_op = define_handle(
    "GradientKeeper",
    lambda node: GradientKeeper(),
    "The handle of what a worker sent in its last step.",
    attrs="container: string = '', shared_name: string = ''",
)

keep_gradients_op: OpDef[list[Tensor]] = define_op(
    "KeepGradients",
    "keeper: resource, clock: host int64, values: *T in ANY -> *T",
    shape=lambda s: s.shapes[2:],
    kernel=lambda xp, keeper, clock, values: keeper.keep(clock, lambda: tuple([xp.array(v) for v in values])),
    effects=Effects(Effect.WRITE),
    doc="The values; in a step that is made again those of the first time, from which some servers may"
    " have updates"
    " already.",
)


def _header(is_there: bool, generation: int = 0, version: int = 0, clocks: Sequence[int] = ()) -> Any:
    return np.array([is_there, generation, version, *clocks], np.int64)


def _fetch(
    xp: Any, shard: ShardService, version: int, variables: Sequence[VariableResource]
) -> tuple[Any, ...]:
    if not shard.carries(version):
        empty = [xp.zeros(0, variable.dtype.np) for variable in variables]
        return (_header(False), *empty)
    status, values = shard.snapshot(lambda: [_copy(xp, variable) for variable in variables])
    return (_header(True, status.generation, status.version, status.clocks), *values)


def _copy(xp: Any, variable: VariableResource) -> Any:
    with variable.lock:
        return xp.array(variable.read())


fetch_state_op: OpDef[list[Tensor]] = define_op(
    "ParameterShardFetch",
    "shard: resource, version: host int64, variables: N * resource -> version: int64, values: *T in ANY",
    attrs="T: list(type)",
    shape=lambda s: [(None,), *[None] * len(s.attrs["T"])],
    kernel=_fetch,
    effects=Effects(Effect.WRITE, waits=True),
    doc="Waits until the shard's replica has a version, or until this step must transfer it; then returns "
    "its state.",
)


def _install(
    xp: Any, shard: ShardService, header: Any, variables: Sequence[VariableResource], values: Sequence[Any]
) -> Any:
    is_there, generation, version, *clocks = [int(number) for number in header]
    if not is_there:
        return np.int64(0)

    def install() -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(xp, value)

    shard.install(generation, version, clocks, install)
    return np.int64(version)


install_state_op = define_op(
    "ParameterShardInstall",
    "shard: resource, header: int64, variables: N * resource, values: *T in ANY -> int64",
    shape=lambda s: [()],
    kernel=_install,
    effects=Effects(Effect.WRITE),
    doc="Sets a replica to a primary's state, if that is newer; the version of the state, or 0 without one.",
)

replicated_op: OpDef[Operation] = define_op(
    "ParameterShardReplicated",
    "shard: resource, version: host int64 ->",
    kernel=lambda xp, shard, version: shard.replicated(version) if version else None,
    effects=Effects(Effect.WRITE),
    doc="Tells a primary which version its replica has.",
)

promote_op: OpDef[Operation] = define_op(
    "ParameterShardPromote",
    "shard: resource ->",
    kernel=lambda xp, shard: shard.promote(),
    effects=Effects(Effect.WRITE),
    doc="Makes a replica the primary.",
)


# --- membership and status

leave_op: OpDef[Operation] = define_op(
    "ParameterShardLeave",
    "shard: resource ->",
    attrs="worker: int",
    kernel=lambda xp, shard, worker: shard.leave(worker),
    effects=Effects(Effect.WRITE),
    doc="Nobody waits for this worker until its next step.",
)


def _status(xp: Any, shard: ShardService) -> Any:
    *numbers, clocks = shard.status()
    return np.array([*numbers, *clocks], np.int64)


shard_status_op = define_op(
    "ParameterShardStatus",
    "shard: resource -> int64",
    shape=lambda s: [(None,)],
    kernel=_status,
    effects=Effects(Effect.READ),
    doc="[role, generation, version, acknowledged version, dropped gradients, steps that waited,"
    " *clocks]; role 0:"
    " new, 1: primary, 2: secondary.",
)

staleness_histogram_op = define_op(
    "ParameterShardStaleness",
    "shard: resource -> int64",
    shape=lambda s: [(None,)],
    kernel=lambda xp, shard: xp.asarray(np.array(shard.staleness(), np.int64)),
    effects=Effects(Effect.READ),
    doc="The number of gradients that were 0, 1, 2, ... versions old when they were applied.",
)
