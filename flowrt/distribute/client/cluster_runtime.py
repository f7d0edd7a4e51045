"""Back end of a `Session` that targets a cluster: its master, in this process or another.

    Session.run -> ClusterStep.run -> master: RunStep -> fetches

A session compiles nothing itself. It extends its master's graph by missing nodes, creates a callable, once
per signature, and then sends one small message per step. The master of a server in this process is called
directly, any other through a connection.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final
from weakref import WeakSet, finalize

import flowrt.version
from flowrt.base.progress import Progress
from flowrt.device.device import Device
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.device.spec import parse_device
from flowrt.distribute.client.cluster_steps import CHECK_S, ClusterStep, MasterLink, RemoteCalls
from flowrt.distribute.cluster.bind_policy import check_dial
from flowrt.distribute.cluster.cluster_spec import parse_address
from flowrt.distribute.cluster.standstill import Standstill
from flowrt.distribute.cluster.timeouts import connect_timeout_s, liveness
from flowrt.distribute.connection_manager import keep_dialling
from flowrt.distribute.machines.session_graph import Extension, SentGraph, callable_of, partial_run_of
from flowrt.distribute.server import Server, server_of
from flowrt.distribute.wire.messages import PROTOCOL, Message
from flowrt.distribute.wire.peer import Peer, Reply, dial
from flowrt.distribute.wire.wait_log import WaitLog
from flowrt.errors import OpError
from flowrt.executor.ends.config import ConfigProto, OptimizerOptions
from flowrt.executor.ends.feeds import bring
from flowrt.executor.ends.fetches import Fetches
from flowrt.executor.lower.schedule import loop_compilers
from flowrt.executor.session.local_runtime import Run, closed
from flowrt.executor.session.request import Request
from flowrt.executor.session.session_variables import StoredShard
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.pipeline import CompileOptions
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.shapes import Shape
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.security import load_security
from flowrt.rendezvous.transport import new_transport

LOGGER = logging.getLogger(__name__)

FEEDING = DeviceRequest({"GPU": 0})
"""Devices of a cluster session in this process, where feeds are prepared."""


@final
class _Here:
    """The master of a server in this process."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.new_reply, self.ask = server.new_reply, server.ask_master

    def check(self) -> None:
        """This process is not silent."""

    def close(self) -> None:
        """The server stays."""


@final
class _There:
    """A master in another process."""

    def __init__(self, address: str, timeout_s: float) -> None:
        def connect(left_s: float) -> Peer:
            return dial(self._transport, address, self, left_s)

        self._lost_s = liveness().lost_s
        self._standstill = Standstill(CHECK_S, self._lost_s)
        security = load_security(os.environ, Path.home())
        check_dial(address, security)
        self._transport = new_transport(security)
        self._peer = keep_dialling(connect, f"a master at {address}", timeout_s, threading.Event())

    def hello(self) -> Any:
        """See `flowrt.distribute.wire.peer.Owner`."""
        return pb.Hello(protocol=PROTOCOL, version=flowrt.version.VERSION)

    def greeted(self, peer: Peer, hello: Any) -> None:
        """See `flowrt.distribute.wire.peer.Owner`."""

    def asked(self, peer: Peer, request_id: int, message: Message) -> None:
        """See `flowrt.distribute.wire.peer.Owner`: peers ask a client whether it is alive."""
        peer.answer(request_id, Message(pb.Done()), None)

    def lost(self, peer: Peer, error: OpError) -> None:
        """See `flowrt.distribute.wire.peer.Owner`: the peer settles pending requests."""

    def new_reply(self) -> Reply:
        reply = Reply()
        reply.request_id = self._peer.next_id()
        return reply

    def ask(self, message: Message, reply: Reply) -> None:
        self._standstill.before(time.monotonic())  # time in which nobody waits is none
        self._peer.ask(message, reply.settle, reply.request_id)

    def check(self) -> None:
        now = time.monotonic()
        if stood_s := self._standstill.before(now):
            self._peer.heard_at = min(now, self._peer.heard_at + stood_s)
        self._peer.repeat()
        if now - self._peer.heard_at > self._lost_s:
            self._peer.fail(f"no sign of life for {self._lost_s:g} s")

    def close(self) -> None:
        self._peer.close("the session was closed")


@final
class ClusterRuntime:
    """A session of the master at ``target``, ``grpc://host:port``. Raises `InvalidArgumentError` for another
    form of target, and `UnavailableError`, naming the missing tasks and the reasons, if there is no master or
    no cluster.
    """

    def __init__(self, target: str, config: ConfigProto) -> None:
        self.target, self._config = target, config
        address = str(parse_address(target.removeprefix("grpc://")))
        server = server_of(target)
        self._connect_s = config.operation_timeout_in_ms / 1000 or connect_timeout_s()
        with Progress(f"connecting to {target}"):
            self._link: MasterLink = _There(address, self._connect_s) if server is None else _Here(server)
        self.devices: Sequence[Device] = local_devices(FEEDING)
        self._graph = SentGraph()
        self._released: deque[int] = deque()
        """Partial runs with freed handles: a handle may die anywhere, so the next setup tells the master."""
        self._gone: deque[int] = deque()
        """Unused callables: a session drops those not run for long. The next new one tells the master."""
        self._extension: tuple[Extension, Reply] | None = None
        """Extension sent to the master, until its reply arrives."""
        self._extending = threading.Lock()
        self._lock = threading.Lock()
        self._session, self._is_closed = "", False
        _open.add(self)

    # --- asking

    def ask(self, message: Message) -> Message:
        """Send a request; returns the reply, or raises the error sent instead."""
        reply = self._link.new_reply()
        self._link.ask(message, reply)
        self._wait(reply)
        return reply.open()

    def _wait(self, reply: Reply) -> None:
        log = WaitLog(LOGGER)
        while not reply.is_there(CHECK_S):
            self._link.check()
            if not self._session:
                log.waits_for(f"the tasks of the cluster; the log of {self.target} names them")

    @property
    def session(self) -> str:
        """The master's name of this session, which is created on first use. Raises `FailedPreconditionError`
        if another thread closes it meanwhile.
        """
        with self._lock:
            if not self._session:
                body = pb.CreateSession(
                    is_isolated=self._config.isolate_session_state,
                    device_filters=self._config.device_filters,
                    allow_soft_placement=self._config.allow_soft_placement,
                    optimises=self._optimises(),
                    log_device_placement=self._config.log_device_placement,
                    connect_timeout_ms=max(1, round(self._connect_s * 1000)),
                )
                with Progress(f"waiting for the tasks of {self.target}"):
                    self._session = self.ask(Message(body)).body.session
                if self._is_closed:
                    self._end_session()
                    raise closed()
            return self._session

    def _end_session(self) -> None:
        """Close it at the master. If the master cannot be reached, it detects the end itself."""
        with suppress(OpError):
            self.ask(Message(pb.CloseSession(session=self._session)))

    # --- requests of a session

    def compile(self, graph: Graph, request: Request, shapes: Sequence[Shape]) -> ClusterStep:
        """Have the request placed, partitioned and compiled by the tasks involved."""
        feeds = dict(zip(request.feeds, shapes, strict=True))
        fetches, targets = request.fetches.tensors, request.fetches.targets
        subgraph = extract(graph, fetches, targets, feeds, request.done)
        self._extend(graph, subgraph, request.feeds)
        self._release()
        answer = self.ask(callable_of(self.session, fetches, targets, feeds, request.done))
        return ClusterStep(self.session, self._link, subgraph, answer.body.callable, self._gone.append)

    def _release(self) -> None:
        """Release unused callables in the tasks."""
        for _ in range(len(self._gone)):
            body = pb.ReleaseCallable(session=self.session, callable=self._gone.popleft())
            self._link.ask(Message(body), self._link.new_reply())

    def begin_partial_run(self, session: Any, fetches: Fetches, feeds: Sequence[Tensor]) -> RemoteCalls:
        """See `flowrt.executor.session.local_runtime.Runtime`."""
        graph, given = session.graph, {tensor: tensor.spec.shape for tensor in feeds}
        subgraph = extract(graph, fetches.tensors, fetches.targets, given)
        self._extend(graph, subgraph, feeds)
        released = [self._released.popleft() for _ in range(len(self._released))]
        setup = partial_run_of(self.session, fetches.tensors, fetches.targets, feeds, released)
        number = self.ask(setup).body.partial_run
        calls = RemoteCalls(self.session, self._link, number, self.bring, session.run_controlled)
        finalize(calls, self._released.append, calls.partial_run).atexit = False
        return calls

    def _extend(self, graph: Graph, subgraph: Subgraph, feeds: Sequence[Tensor]) -> None:
        """Send the master the nodes that its graph lacks for ``subgraph``."""
        with self._extending:
            self._hear_of_extension()  # left by an interrupted caller
            extension = self._graph.extension(graph, subgraph, feeds)
            if extension is None:
                return
            message = extension.message(self.session)
            self._extension = extension, self._link.new_reply()
            self._link.ask(message, self._extension[1])
            self._hear_of_extension()

    def _hear_of_extension(self) -> None:
        if self._extension is None:
            return
        extension, reply = self._extension
        self._wait(reply)
        self._extension = None
        self._graph.extended(extension, reply.open().body.version)

    def compile_options(self) -> CompileOptions:
        """See `flowrt.executor.session.local_runtime.Runtime`: compile options of the master and the tasks,
        as far as a client knows them.
        """
        devices = [parse_device(name) for name, _, _ in self.list_devices()]
        optimises = self._optimises()
        return CompileOptions(
            devices=devices,
            soft_placement=self._config.allow_soft_placement,
            optimises=optimises,
            loops=loop_compilers(devices if optimises else ()),
        )

    def _optimises(self) -> bool:
        return bool(self._config.graph_options.optimizer_options.opt_level != OptimizerOptions.L0)

    def bring(self, plan: Any, arrays: Sequence[Any]) -> Sequence[Any]:
        """Copy feeds in GPU memory to the host, for sending."""
        host = self.devices[0]
        return bring(arrays, [host] * len(arrays), self.devices)

    def variable_values(self, variables: Sequence[Any], run: Run) -> list[Any]:
        """See `flowrt.executor.session.session.BaseSession.variable_values`."""
        return list(run(list(variables)))

    def assign_variables(self, values: Mapping[Any, Any], run: Run) -> None:
        """See `flowrt.executor.session.session.BaseSession.assign_variables`."""
        run([v.initializer for v in values], {v.initializer.inputs[1]: x for v, x in values.items()})

    def variable_shards(self, variables: Sequence[Any], run: Run) -> list[list[StoredShard]]:
        """See `flowrt.executor.session.session.BaseSession.variable_shards`: none, all are in other
        processes.
        """
        return [[] for _ in variables]

    def forget(self) -> None:
        """The master forgets a callable when its step is closed."""

    def list_devices(self) -> list[tuple[str, str, int]]:
        """(name, type, bytes of memory) of all devices of the session."""
        answer = self.ask(Message(pb.ListDevices(session=self.session)))
        return [(d.name, d.device_type, d.memory_limit) for d in answer.body.devices]

    def reset(self, containers: Sequence[str]) -> None:
        """Drop the variables in ``containers`` in all tasks; of all containers if empty."""
        self.ask(Message(pb.Reset(containers=containers)))

    def close(self) -> None:
        """End the session. A thread that is creating it ends it."""
        _open.discard(self)
        self._is_closed = True
        if self._session:
            self._end_session()
        self._link.close()
        for device in self.devices:
            device.close()


_open: WeakSet[ClusterRuntime] = WeakSet()


@atexit.register
def _close_all() -> None:
    """A program that ends without closing its sessions was not killed: with which status the workers end
    depends on that.
    """
    for runtime in list(_open):
        runtime.close()
