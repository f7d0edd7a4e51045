"""`ParameterServerSessionCreator`: sessions of a worker, including after the loss of servers.

    probe      find the servers that answer
    status     find their roles for each shard: its primary, its replica, none
    homes      choose a new primary if the old one is lost                    parameter_server/homes.py
    promote    turn replicas into primaries, of a new generation, so that the old ones are rejected
    move       move the operations of this graph from the old servers

All workers independently find the same homes, from the state on the servers. A step with an unknown outcome
is repeated with its clock (`WorkerHook`), and a shard that has its gradient does not apply it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.cluster.timeouts import connecting_within
from flowrt.distribute.launch.check import probe
from flowrt.distribute.parameter_server.homes import Home, Seen, find_home
from flowrt.distribute.strategies.parameter_server.graph_homes import GraphHomes
from flowrt.distribute.strategies.parameter_server.parameter_server_step import Shard, TrainingOperation
from flowrt.distribute.strategies.reduce.cross_device_ops import placed_on
from flowrt.errors import AbortedError, InvalidArgumentError, OpError, UnavailableError
from flowrt.executor.ends.config import ConfigProto
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import Graph, Operation
from flowrt.graph.ops.state import parameter_shards as ops
from flowrt.graph.resources.parameter_shard import Role
from flowrt.rendezvous.transport import new_transport
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from flowrt.train.sessions.session_manager import MAX_WAIT_S, ChiefSessionCreator, WorkerSessionCreator
from flowrt.variables.variable import GraphKeys

PROBE_S = 2.0
"""A server that does not answer in this time is considered lost; one that has ended refuses at once."""


@final
class ParameterServerSessionCreator:
    """A `SessionCreator` of ``graph`` with the arguments of those for chiefs and workers. ``master`` is this
    worker's own server.
    """

    def __init__(
        self,
        strategy: Any,
        graph: Graph,
        master: str,
        is_chief: bool,
        scaffold: Scaffold | None = None,
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        max_wait_secs: float = MAX_WAIT_S,
    ) -> None:
        self._strategy, self._master, self._is_chief = strategy, master, is_chief
        self._scaffold, self._config = scaffold or Scaffold(), config
        self._checkpoint_dir, self._max_wait_s = checkpoint_dir, max_wait_secs
        self._graph = graph
        self._homes: GraphHomes | None = None

    def create_session(self) -> Session:
        """Raises as the chief's and the workers' creators, `UnavailableError` when a shard is lost, and
        `InvalidArgumentError` for a variable that replicas do not have.
        """
        if not self._is_replicated:
            return self._new_session(has_state=False)
        with connecting_within(0.0):  # servers that answered are up; if not, the next attempt asks again
            return self._new_session(self._move_home())

    def _new_session(self, has_state: bool) -> Session:
        config = self._strategy.update_config_proto(self._config or ConfigProto())
        if self._is_chief and not has_state:
            creator = ChiefSessionCreator(self._scaffold, self._master, config, self._checkpoint_dir)
            return creator.create_session()
        return WorkerSessionCreator(self._scaffold, self._master, config, self._max_wait_s).create_session()

    @property
    def _is_replicated(self) -> bool:
        return bool(self._strategy.extended.servers.policy.is_replicated)

    def _move_home(self) -> bool:
        """Find the shards' homes and move the graph there. Returns whether there is a state to continue."""
        extended = self._strategy.extended
        shards, devices = extended.shards(self._graph), extended.servers.devices
        if self._homes is None:
            _check_covered(self._graph, shards, devices)
            self._homes = GraphHomes(self._graph, shards, devices)
        alive = self._alive(devices)
        extended.lost = {device for number, device in enumerate(devices) if number not in alive}
        survey = _Survey(shards, devices, alive)
        config = self._strategy.update_config_proto(ConfigProto())
        with Session(self._master, graph=survey.graph, config=config) as session:
            seen = survey.look(session)
            numbers = [shard.server for shard in shards]
            found = [find_home(n, len(devices), state, alive) for n, state in zip(numbers, seen, strict=True)]
            survey.promote(session, found, seen)
        self._homes.move(dict(zip(numbers, found, strict=True)))
        return any(seen)

    def _alive(self, devices: Sequence[str]) -> list[int]:
        spec, transport = self._strategy.cluster_resolver.cluster_spec(), new_transport()
        return [number for number, device in enumerate(devices) if _answers(transport, spec, device)]


@final
class WorkerHook(SessionRunHook):
    """Tracks the number of completed steps known to the loop. A failed run may have completed its step all
    the same: the next session begins with the loop's count, and the servers have the rest. It runs ``attend``
    in each new session, so that the servers detect its loss, and ``leave`` at the loop's end, so that they
    stop waiting for this worker.
    """

    def __init__(self, trained: Sequence[TrainingOperation], attend: Operation, leave: Operation) -> None:
        self._trained, self._attend, self._leave = trained, attend, leave
        self._known: Sequence[Any] | None = None

    def after_create_session(self, session: Session, coord: Any) -> None:
        if self._known is not None:
            session.assign_variables({t.clock: n for t, n in zip(self._trained, self._known, strict=True)})
        session.run(self._attend)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs([trained.ended for trained in self._trained])

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._known = run_values.results

    def end(self, session: Session) -> None:
        with suppress(AbortedError, UnavailableError):  # a lost server waits for no one
            session.run(self._leave)


def _answers(transport: Any, spec: ClusterSpec, device: str) -> bool:
    job, task = device.removeprefix("/job:").split("/task:")
    try:
        probe(transport, spec.task_address(job, int(task)), PROBE_S)
    except UnavailableError:
        return False
    except OpError:
        return True  # it is up; the session will report why it refuses this program
    return True


def _check_covered(graph: Graph, shards: Sequence[Shard], devices: Sequence[str]) -> None:
    covered = {variable for shard in shards for variable in shard.variables}
    for variable in graph.get_collection(GraphKeys.GLOBAL_VARIABLES):
        for each in variable.copies:
            if each.device in devices and each not in covered:
                raise InvalidArgumentError(
                    f"variable {each.op.name!r}: expected to be created before the training operation, so "
                    "that replicas include it; it was created after"
                )


@final
class _Survey:
    """A graph that reads the status of every shard from the servers in ``alive``."""

    def __init__(self, shards: Sequence[Shard], devices: Sequence[str], alive: Collection[int]) -> None:
        self.graph = Graph()
        self._statuses: list[dict[int, Any]] = []
        self._promotions: list[dict[int, Any]] = []
        with self.graph.as_default():
            for shard in shards:
                handles = {}
                for server in alive:
                    with placed_on(devices[server]):
                        handles[server] = ops.parameter_shard_op(**shard.handle.op.node.attrs)
                self._statuses.append({server: ops.shard_status_op(h) for server, h in handles.items()})
                self._promotions.append({server: ops.promote_op(h) for server, h in handles.items()})

    def look(self, session: Session) -> list[dict[int, Seen]]:
        """Status of each shard on the servers that have it."""
        found = []
        for statuses in session.run(self._statuses):
            numbers = {server: [int(n) for n in status[:3]] for server, status in statuses.items()}
            found.append(
                {
                    server: Seen(role == Role.PRIMARY.value, generation, version)
                    for server, (role, generation, version) in numbers.items()
                    if role != Role.NEW.value
                }
            )
        return found

    def promote(self, session: Session, homes: Sequence[Home], seen: Sequence[Mapping[int, Seen]]) -> None:
        chosen = []
        for home, states, promotions in zip(homes, seen, self._promotions, strict=True):
            state = states.get(home.primary)
            if state is not None and not state.is_primary:
                chosen.append(promotions[home.primary])
        if chosen:
            session.run(chosen)
