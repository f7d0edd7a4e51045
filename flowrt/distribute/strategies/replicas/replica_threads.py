"""A function called once per replica, each call on its own thread, one at a time.

    caller's thread     advance 0, advance 1, ...      merge_fn      advance 0, advance 1, ...     regroup
    replica 0           fn ... merge_call |                          | ... return
    replica 1                             fn ... merge_call |                     | ... return

A replica's thread runs until its function calls ``merge_call`` or ends; then the next one runs. When all have
reached a ``merge_call``, the caller's thread calls its function with all their arguments. So graph
construction stays sequential, and the order of the operations is deterministic.

Rules of this file:
  1. Exactly one of these threads runs at any time; the others wait to be resumed.
  2. A thread begins with its caller's scopes (names, devices, control inputs, variables), and its replica's
     device. A ``merge_fn`` runs with those at the ``merge_call``.
  3. However it ends, no thread is left: one that waits at a ``merge_call`` is made to leave its function.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from flowrt.distribute.strategies.replicas.replica_collections import ReplicaCollections
from flowrt.distribute.strategies.replicas.replica_context import ReplicaContext
from flowrt.distribute.strategies.values.distributed_values import regroup, select
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.graph import Graph, default_sessions, get_default_graph
from flowrt.graph.construction.scopes import Scopes
from flowrt.graph.source import Source, called_for, user_source
from flowrt.variables.distribution_context import DistributionContext, distribution_context, entered_context
from flowrt.variables.variable_creators import (
    Creator,
    variable_creator_scope,
    variable_creators,
    variable_creators_set,
)
from flowrt.variables.variable_scope import OpenScopes, get_variable_scope, variable_scope, variable_store


@final
@dataclass(frozen=True)
class Surroundings:
    """Scopes that determine attributes of a thread's new operations and variables."""

    graph: Graph
    scopes: Scopes
    variable_scopes: OpenScopes
    creators: tuple[Creator, ...]
    context: DistributionContext | None
    sessions: tuple[Any, ...]

    @staticmethod
    def of_thread() -> Surroundings:
        graph = get_default_graph()
        return Surroundings(
            graph,
            graph.scopes.copy(),
            variable_store(graph).current.copy(),
            variable_creators(),
            distribution_context(),
            tuple(default_sessions()),
        )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, the thread has these surroundings; afterwards its own, except for the names used up."""
        open_scopes, sessions = variable_store(self.graph).current, default_sessions()
        own_scopes, own_variable_scopes = self.graph.scopes.copy(), open_scopes.copy()
        own_sessions = sessions[:]
        with self.graph, variable_creators_set(self.creators), entered_context(self.context):
            self.graph.scopes.become(self.scopes)
            open_scopes.become(self.variable_scopes)
            sessions[:] = self.sessions
            try:
                yield
            finally:
                sessions[:] = own_sessions
                open_scopes.become(own_variable_scopes)
                self.graph.scopes.become(own_scopes)


@dataclass(frozen=True)
class _MergeCall:
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    surroundings: Surroundings
    source: Source | None
    """The user's line."""


class _Abandoned(BaseException):
    """Unwinds the function of a replica with an abandoned call."""


@final
class _ThreadedReplica(ReplicaContext):
    """A replica, its thread, and its state: at a merge call, or finished."""

    def __init__(self, strategy: Any, number: int, call: Callable[[], Any], caller: Surroundings) -> None:
        extended = strategy.extended
        super().__init__(strategy, extended.first_replica_id + number, number)
        self._device = extended.worker_devices[number]
        self._call, self._caller = call, caller
        self._turn, self._turn_over = threading.Semaphore(0), threading.Semaphore(0)
        self._abandoned = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"flowrt-replica-{number}", daemon=True)
        self.standing_at: _MergeCall | None = None
        self.answer: Any = None
        self.result: Any = None
        self.scope_counts: dict[str, int] = {}
        self.has_ended = False

    # --- called by the caller's thread

    def advance(self) -> None:
        """Run to its next merge call or its end. Raises the errors of its function."""
        self.standing_at = None
        if self._thread.ident is None:
            self._thread.start()
        self._turn.release()
        self._turn_over.acquire()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End the thread: one that waits at a merge call, or reaches one, leaves its function."""
        self._abandoned = True
        self._turn.release()
        if self._thread.ident is not None:
            self._thread.join()

    # --- on its own thread

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self.result = self._called()
        except BaseException as error:  # noqa: BLE001 (raised in the caller's thread)
            self._error = error
        self.has_ended = True
        self._turn_over.release()

    def _called(self) -> Any:
        graph = self._caller.graph
        context = DistributionContext(self.strategy, replica=self)
        with self._caller.entered(), entered_context(context), graph.device(self._device):
            with graph.name_scope(self._name_scope(graph.get_name_scope())):
                result = self._call()
            self.scope_counts = variable_store(graph).current.copy().counts
        return result

    def _name_scope(self, outer: str) -> str:
        """``outer`` itself for the first replica, a nested scope for every other."""
        parts = [outer] if outer else []
        if self.local_replica_id > 0:
            parts.append(f"replica_{self.local_replica_id}")
        return "".join(f"{part}/" for part in parts)

    def _merge(self, merge_fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if get_default_graph() is not self._caller.graph:
            raise FailedPreconditionError(
                "merge_call: expected the graph in which the replica's function was called; got a "
                "function, branch or loop inside it. Call strategy.run() there, or move the merge out of it"
            )
        self.standing_at = _MergeCall(merge_fn, args, kwargs, Surroundings.of_thread(), user_source())
        if not self._abandoned:
            self._turn_over.release()
            self._turn.acquire()
        if self._abandoned:
            raise _Abandoned
        return self.answer


def call_for_each_replica(
    strategy: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The results of ``fn(*args, **kwargs)`` for each replica of ``strategy`` in this graph, regrouped.

    Raises the error of ``fn`` for the first failing replica, and `InvalidArgumentError` if the replicas do
    not call ``merge_call`` equally often.
    """
    caller, variables = Surroundings.of_thread(), _PairedVariables()

    def call_of(number: int) -> Callable[[], Any]:
        def call() -> Any:
            with variables.of_replica(number):
                return fn(*select(number, args), **select(number, kwargs))

        return call

    replicas = [
        _ThreadedReplica(strategy, number, call_of(number), caller)
        for number in range(len(strategy.extended.worker_devices))
    ]
    collections = ReplicaCollections(caller.graph, len(replicas))
    try:
        while not _advance(replicas, collections):
            _merge(strategy, replicas, caller)
    finally:
        for replica in replicas:
            replica.end()
    variable_store(caller.graph).current.counts = replicas[0].scope_counts
    return regroup([replica.result for replica in replicas])


def _advance(replicas: Sequence[_ThreadedReplica], collections: ReplicaCollections) -> bool:
    """Let each replica run to its next merge call. Returns whether all have ended instead."""
    for replica in replicas:
        with collections.of_replica(replica.local_replica_id):
            replica.advance()
    ended = [replica.local_replica_id for replica in replicas if replica.has_ended]
    if ended and len(ended) < len(replicas):
        waiting = [r.local_replica_id for r in replicas if not r.has_ended]
        raise InvalidArgumentError(
            "strategy.run: expected every replica to call merge_call (as all_reduce, apply_gradients and "
            f"assigning to a variable do) equally often; got one more of replicas {waiting} when {ended} "
            "had returned. Do not make it depend on the replica's index"
        )
    return bool(ended)


def _merge(strategy: Any, replicas: Sequence[_ThreadedReplica], caller: Surroundings) -> None:
    """Call the function of the merge call that all ``replicas`` have reached; each gets its result's part."""
    calls = [replica.standing_at for replica in replicas]
    first = calls[0]
    assert first is not None
    args, kwargs = regroup([(tuple(call.args), dict(call.kwargs)) for call in calls if call is not None])
    with _merge_surroundings(caller, [call.surroundings for call in calls if call is not None]).entered():
        merged = called_for(first.source, first.function, strategy, *args, **kwargs)
    for number, replica in enumerate(replicas):
        replica.answer = select(number, merged)


def _merge_surroundings(caller: Surroundings, replicas: Sequence[Surroundings]) -> Surroundings:
    """Scopes of the caller, with the names of the first replica and the control inputs of all."""
    scopes = caller.scopes.copy()
    scopes.name = replicas[0].scopes.name
    scopes.controllers = tuple(dict.fromkeys(c for each in replicas for c in each.scopes.controllers))
    return replace(caller, scopes=scopes, variable_scopes=replicas[0].variable_scopes)


class _PairedVariables:
    """Gives each replica the variables that the first one made: it runs first, and makes them for all.

    A call of `Variable` is paired by its name and by its number among the calls of that name; `get_variable`
    finds its variables by their names anyway.
    """

    def __init__(self) -> None:
        self._made: dict[str, list[Any]] = {}

    @contextlib.contextmanager
    def of_replica(self, number: int) -> Iterator[None]:
        if number == 0:
            with variable_creator_scope(self._note):
                yield
            return
        with (
            variable_scope(get_variable_scope(), reuse=True, auxiliary_name_scope=False),
            variable_creator_scope(self._finder(number)),
        ):
            yield

    def _note(self, next_creator: Creator, **arguments: Any) -> Any:
        variable = next_creator(**arguments)
        self._made.setdefault(arguments["name"] or "Variable", []).append(variable)
        return variable

    def _finder(self, number: int) -> Creator:
        taken: dict[str, int] = {}

        def find(next_creator: Creator, **arguments: Any) -> Any:
            name = arguments["name"] or "Variable"
            position = taken.get(name, 0)
            taken[name] = position + 1
            by_name = variable_store().variables.get(name)
            made = [variable for variable in self._made.get(name, ()) if variable is not by_name]
            if position >= len(made):
                raise InvalidArgumentError(
                    f"variable {name!r}: expected replica 0 to create it too; only replica {number} did. "
                    "Names of variables must not depend on the replica's index"
                )
            return made[position]

        return find
