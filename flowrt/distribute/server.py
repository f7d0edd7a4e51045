"""`Server`: one task of a cluster. It listens, and performs the actions of its master and its worker.

    Peer.asked ---> Master.handle / Worker.handle, under the lock ---> actions ---> performed without it

Requests of other tasks and of sessions in this process take the same path, without frames when both ends are
here. Long work (partitioning and compiling graphs, running steps, connecting) gets its own thread, but a
session of this process runs its task's part on the thread that called `Session.run`: that saves two
hand-overs. A part known to be short needs no thread: it runs on the threads that receive its request and its
tensors (`Steps.run_async`).
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, final
from weakref import WeakValueDictionary

import flowrt.version
from flowrt.device.device import Device
from flowrt.device.interruptible import in_slices
from flowrt.device.local_devices import local_devices
from flowrt.distribute.cluster.bind_policy import checked_security
from flowrt.distribute.cluster.cluster_spec import ClusterSpec, parse_address
from flowrt.distribute.cluster.containers import Containers
from flowrt.distribute.cluster.graph_limits import check_remote_graph
from flowrt.distribute.cluster.metrics_address import checked_metrics_address
from flowrt.distribute.cluster.standstill import Standstill
from flowrt.distribute.cluster.threads import Threads
from flowrt.distribute.cluster.timeouts import connect_timeout_s, drain_s, job_grace_s, liveness
from flowrt.distribute.connection_manager import TICK_S, ConnectionManager, ignore, task_of
from flowrt.distribute.machines import events as ev
from flowrt.distribute.master import master as m
from flowrt.distribute.observe.observer import Observer
from flowrt.distribute.wire.failure_detector import FailureDetector
from flowrt.distribute.wire.messages import Message, kind_of, lost, read_graph
from flowrt.distribute.wire.peer import Done, Reply
from flowrt.distribute.worker import worker as w
from flowrt.distribute.worker.describe import describe_parts
from flowrt.distribute.worker.inspection import Inspection
from flowrt.distribute.worker.part import CompiledPart, cut_by_task
from flowrt.distribute.worker.steps import Steps, as_op_error
from flowrt.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    copy_to_raise,
)
from flowrt.executor.ends.config import ConfigProto, RunOptions, device_request
from flowrt.executor.session.local_runtime import limit_threads
from flowrt.graph.construction.detached import attach_constants
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Listener
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.faulty import with_faults
from flowrt.rendezvous.transport import new_transport

CUT_S = 1.0
"""Time for a step to notice that it was cut off: a kernel in C runs to its end."""
EXIT_WITH_JOB = "FLOWRT_EXIT_WITH_JOB"
"""A task that only serves, in `Server.join`, ends with the programs that it served, unless this is 0."""

T = TypeVar("T")

LOCAL = "local"
"""The sessions of this process, as a client."""

_SERVERS: WeakValueDictionary[str, Server] = WeakValueDictionary()


def server_of(target: str) -> Server | None:
    """The server of this process that ``target`` means."""
    return _SERVERS.get(target)


def server_as(cluster: ClusterSpec, task: str) -> Server | None:
    """The server of this process that is ``task`` of ``cluster``."""
    found = (server for server in list(_SERVERS.values()) if server.task == task)
    return next((server for server in found if server.cluster == cluster), None)


def task_name(job: str, index: int) -> str:
    return f"/job:{job}/replica:0/task:{index}"


@final
class Server:
    """A task that takes part in steps and serves sessions that connect to `target`.

    ``server_or_cluster_def`` is a `ClusterSpec` or its argument; ``job_name`` and ``task_index`` are optional
    if the cluster has one task. ``config`` sets the devices of the task. ``bind``: ``host:port`` to listen
    at, if not the task's address in the cluster. ``security``: from the environment, if it is None
    (`load_security`); with ``insecure`` it may be insufficient for the addresses. ``allowed_ops``: privileged
    ops permitted in graphs of other processes. ``log_dir``: directory for the last events when a step fails,
    for ``flowrt debug hang``.

    Raises `InvalidArgumentError` for a task that is not in the cluster, `PermissionDeniedError` for an
    address open to strangers, `AlreadyExistsError` if the port is taken, and `UnavailableError` if the
    address cannot be bound.
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,
        *,
        bind: str | None = None,
        security: Security | None = None,
        insecure: bool = False,
        allowed_ops: Collection[str] = (),
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if protocol not in (None, "grpc"):
            raise InvalidArgumentError(f"Server: expected the protocol 'grpc'; got {protocol!r}")
        self.cluster = ClusterSpec(server_or_cluster_def)
        job, index = _which(self.cluster, job_name, task_index)
        self.job_name, self.task_index, self.task = job, index, task_name(job, index)
        self._addresses = {task_name(j, i): address for j, i, address in self.cluster.tasks()}
        self._bind = bind or self._addresses[self.task]
        security = checked_security(security, self._bind, list(self._addresses.values()), insecure)
        place = self.cluster, job, index, self._bind
        self._metrics_at = checked_metrics_address(*place, security, insecure)
        self._security = security
        self._allowed_ops = frozenset(allowed_ops)
        self.incarnation = secrets.randbits(64) | 1
        limit_threads(config := config or ConfigProto())
        self.devices = local_devices(device_request(config), job, index)
        self._by_name = {device.name: device for device in self.devices}
        self._transport = with_faults(new_transport(security), kind_of)
        self._threads = Threads(f"flowrt {self.task}")
        self._failure_detector = FailureDetector()
        self.came = self._failure_detector.come  # see `flowrt.distribute.connection_manager.Handler`
        self._connections = ConnectionManager(
            self.task, self.incarnation, self.cluster, self._addresses, self._transport, self._threads, self
        )
        self._observer = Observer(self.task, self.incarnation, log_dir)
        self._steps = Steps(self.task, self._connections, self._to_worker, self._observer)
        self._lock = threading.Lock()
        self._master = m.Master(self.task, list(self._addresses), random.Random(secrets.randbits(128)))
        described = [_described(device, self.incarnation) for device in self.devices]
        version, new_rendezvous = flowrt.version.VERSION, self._steps.new_rendezvous
        self._worker = w.Worker(self.task, self.incarnation, version, described, new_rendezvous)
        self._inspection = Inspection(
            self.task, self._addresses, self._worker, self._steps, self._observer.counts, self._connections,
            self.devices, self._threads,
        )  # fmt: skip
        self._containers = Containers(self._failure_detector.missing)
        self._serial = itertools.count(1)
        self._own: dict[int, Done] = {}  # requests of this task and of sessions in its process, by number
        self._here = threading.local()
        self._masters: set[str] = set()  # connected clients that have had sessions here
        self._job_end: tuple[float, str, bool] | None = None
        """Time at which the job ends unless a session begins before; and its description."""
        self._job_error: OpError | None = None
        """The reason why `join` raises, if a program was lost in the midst of the job."""
        self._is_joined, self._job_grace_s, self._drain_s = False, job_grace_s(), drain_s()
        self.on_job_end: Callable[[str, bool], object] = self._end_with_job
        """Called when the last client that had sessions here is gone, with its name, and whether that was
        during a session: it was killed, or cut off.
        """
        self.on_drain: Callable[[], object] = self._drain_beside
        """Called on a remote request to drain: see `drain`."""
        self._listener: Listener | None = None
        self._standstill = Standstill(TICK_S, liveness().lost_s)
        self._now = time.monotonic()
        """Time of the last tick, without the time in which this process stood still, as deadlines need it."""
        self._ticker = threading.Thread(target=self._tick, name=f"flowrt {self.task} ticks", daemon=True)
        self._stopped, self._ended = threading.Event(), threading.Event()
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """A cluster of one task, on a free port of the loopback."""
        return Server({"localhost": ["127.0.0.1:0"]}, config=config, start=start)

    # --- life

    def start(self) -> None:
        """Listen. Does nothing the second time."""
        if self._stopped.is_set():
            raise FailedPreconditionError(f"server {self.task}: it was stopped. Create a new one")
        if self._listener is not None:
            return
        self._pass_time(time.monotonic())  # before the first request: deadlines count from here
        is_serving = None if self._metrics_at is None else self._inspection.is_serving
        self._listener = self._transport.listen(self._bind, self._connections.accept, is_serving)
        if parse_address(self._addresses[self.task]).port == 0:
            self._addresses[self.task] = self._listener.address
        _SERVERS[self.target] = self
        self._connections.groups.register((self._addresses[self.task], self._listener.address))
        self._ticker.start()
        try:
            self._inspection.serve(self._metrics_at, self._security)
        except OpError:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """``host:port`` that it listens at."""
        if self._listener is None:
            raise FailedPreconditionError(f"server {self.task}: expected start() before its address is read")
        return self._listener.address

    @property
    def target(self) -> str:
        """Target for a `Session`."""
        return f"grpc://{self.address}"

    @property
    def metrics_url(self) -> str | None:
        """Address of its metrics (``FLOWRT_METRICS``), None if they are not served."""
        return self._inspection.url

    @property
    def server_def(self) -> dict[str, Any]:
        return {"cluster": self.cluster.as_dict(), "job_name": self.job_name, "task_index": self.task_index}

    @property
    def num_running_steps(self) -> int:
        return self._worker.num_running

    def greet(self, tasks: Collection[str]) -> None:
        """Connect to ``tasks`` as soon as they are up, so that they detect the loss of this one."""
        for task in tasks:
            if task != self.task:
                self._connections.greet(task, connect_timeout_s())

    def join(self, timeout_s: float | None = None) -> bool:
        """Block until the server was stopped; False if ``timeout_s`` seconds passed first. It stops when the
        last program that had sessions here has ended, unless ``FLOWRT_EXIT_WITH_JOB`` is 0: a program that is
        no task may be followed by another within ``FLOWRT_JOB_GRACE`` (10 s).

        Raises `UnavailableError` if that program was lost during a session: it was killed, or cut off.
        """
        self._is_joined = True
        try:
            has_ended = in_slices(self._ended.wait, timeout_s)
        finally:
            self._is_joined = False
        if has_ended and self._job_error is not None:
            raise copy_to_raise(self._job_error)
        return has_ended

    def drain(self, timeout_s: float) -> bool:
        """Accept no new work, wait for running steps, and stop; False if they did not end in time: then they
        are cut off with an error.
        """
        self._worker.is_draining = True
        is_idle = self._wait_for_steps(timeout_s)
        if not is_idle:
            self._end_steps(lost(self.task, f"it was drained, and FLOWRT_DRAIN ({timeout_s:g} s) had passed"))
            self._wait_for_steps(CUT_S)
        self._connections.announce(Message(pb.TaskStatus(task=self.task, is_draining=True)))
        self.stop()
        return is_idle

    def _wait_for_steps(self, timeout_s: float) -> bool:
        """Whether all have ended and were answered for, ``timeout_s`` from now at the latest."""
        end = time.monotonic() + timeout_s
        while not (is_idle := self._is_idle()) and time.monotonic() < end:
            self._stopped.wait(0.01)
        return is_idle

    def _is_idle(self) -> bool:
        with self._lock:
            return not self._worker.num_running and not self._steps.num_running

    def _end_steps(self, error: OpError) -> None:
        with self._lock:
            running = self._worker.running()
        for step, rendezvous in running:
            self._steps.end(ev.EndStep(step, rendezvous, error))

    def stop(self) -> None:
        """End all steps, connections and threads. Idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._listener is not None:
            _SERVERS.pop(self.target, None)
            self._connections.groups.unregister()
        reason = f"{self.task} was stopped"
        self._end_steps(CancelledError(reason))
        self._inspection.close()
        self._connections.close(reason)
        if self._listener is not None:  # not earlier: it ends every call, including connections not closed
            self._listener.close()
        self._threads.close()
        if self._ticker.is_alive() and self._ticker is not threading.current_thread():
            self._ticker.join(5.0)
        self._containers.clear(())
        for device in self.devices:
            device.close()
        self._ended.set()

    def _end_with_job(self, name: str, in_midst: bool) -> None:
        if os.environ.get(EXIT_WITH_JOB) == "0":
            return
        if in_midst:
            self._job_error = lost(
                name, "it died during a session. Start the job again, from its last checkpoint"
            )
        self._drain_beside()

    def _drain_beside(self) -> None:
        threading.Thread(target=self.drain, args=(self._drain_s,), name=f"flowrt {self.task} drains").start()

    # --- callbacks of the connections

    def asked(self, token: str, request_id: int, message: Message) -> None:
        """See `flowrt.distribute.connection_manager.Handler`."""
        if type(message.body) in (pb.CreateSession, pb.CreateWorkerSession):
            self._masters.add(token)
            self._failure_detector.serve(task_of(token))
            self._job_end = None
        kind = type(message.body)
        if kind is pb.GetProgress:
            self._steps.tell_progress(token, request_id, message)
        elif kind in (pb.GetMetrics, pb.ProfileSteps):
            self._inspection.asked(token, request_id, message)
        else:
            self._dispatch(token, request_id, message)

    def lost(self, token: str, name: str, error: OpError) -> None:
        """See `flowrt.distribute.connection_manager.Handler`."""
        event = ev.PeerLost(token, error)
        with self._lock:
            in_midst = self._worker.serves(token) or self._master.serves(token)
        self._to_master(event)
        self._to_worker(event)
        if name in self._addresses and self._failure_detector.lose(name, error, in_midst):
            self._containers.lose_task(name, error)
        if token in self._masters:
            self._masters.discard(token)
            is_task = name in self._addresses
            # a program may open one session after another
            wait_s = 0.0 if is_task or in_midst else self._job_grace_s
            if not self._masters:
                self._job_end = (self._now + wait_s, name, in_midst)
                self._end_job()

    def _end_job(self) -> None:
        """Report the end of the job when its time has come."""
        end = self._job_end
        if end is not None and self._now >= end[0] and self._is_joined and not self._stopped.is_set():
            self._job_end = None
            self.on_job_end(*end[1:])

    # --- the state machines

    def ask_master(self, message: Message, reply: Reply) -> None:
        """A request of a session in this process. The part of this task runs on the calling thread."""
        self._own[reply.request_id] = reply.settle
        self._here.may_run = True
        try:
            self._dispatch(LOCAL, reply.request_id, message)
        finally:
            self._here.may_run = False

    def new_reply(self) -> Reply:
        """A new reply for `ask_master`."""
        reply = Reply()
        reply.request_id = next(self._serial)
        return reply

    def _dispatch(self, peer: str, request_id: int, message: Message) -> None:
        event = ev.Asked(peer, request_id, message)
        (self._to_master if m.Master.knows(message.body) else self._to_worker)(event)

    def _to_master(self, event: ev.MasterEvent) -> None:
        with self._lock:
            actions = self._master.handle(event)
        for action in actions:
            _PERFORM[type(action)](self, action)

    def _to_worker(self, event: ev.WorkerEvent) -> None:
        with self._lock:
            actions = self._worker.handle(event)
        for action in actions:
            _PERFORM[type(action)](self, action)

    def _start_step(self, start: ev.StartStep) -> None:
        is_traced = start.trace_level != RunOptions.NO_TRACE or self._steps.profiles.is_active
        if start.part.is_short and not is_traced:
            self._steps.run_async(start)
        else:
            self._work(self._steps.prepare(start))

    def _ask_for(self, ask: ev.Ask) -> None:
        self._ask(ask.task, ask.message, functools.partial(self._answered, ask.token), ask.wait_s)

    def _tell(self, tell: ev.Tell) -> None:
        if tell.task == self.task:
            may_run, self._here.may_run = getattr(self._here, "may_run", False), False
            self._ask(tell.task, tell.message, ignore)  # what it begins is not this thread's
            self._here.may_run = may_run
        else:
            self._connections.tell(tell.task, tell.message)

    def _work(self, work: Callable[[], object]) -> None:
        """Run long work: here, if this thread may, else on a separate thread."""
        if getattr(self._here, "may_run", False):
            work()
        else:
            self._threads.submit(work)

    def _answer(self, answer: ev.Answer) -> None:
        peer, request_id, message, error = answer
        if peer in (LOCAL, self.task):
            done = self._own.pop(request_id, None)
            if done is not None:
                done(message, error)
        elif (found := self._connections.find(peer)) is not None:
            try:
                found.answer(request_id, message, error)
            except OpError as failure:
                found.answer(request_id, None, failure)

    def _answered(self, token: int, message: Message | None, error: OpError | None) -> None:
        self._to_master(ev.Answered(token, message, error))

    def _ask(self, task: str, message: Message, done: Done, wait_s: float = 0.0) -> None:
        if task != self.task:
            self._connections.ask(task, message, (done,), wait_s)
            return
        number = next(self._serial)
        self._own[number] = done
        self._to_worker(ev.Asked(self.task, number, message))

    # --- graphs

    def _extend(self, extend: ev.ExtendGraph) -> None:
        graph, error = _attempt(lambda: extend.graph.extended(extend.message))
        self._to_master(ev.GraphExtended(extend.token, graph, error))

    def _cut(self, cut: ev.CutGraph) -> None:
        def parts_and_placement() -> tuple[Mapping[str, ev.Part], Mapping[str, str]]:
            subgraph, options = cut.graph.step(cut.message), cut.options
            if cut.client != LOCAL:
                check_remote_graph(subgraph, self._allowed_ops)
            devices = {d.name: d.incarnation for d in cut.devices}
            return cut_by_task(
                subgraph,
                devices,
                cut.placement,
                soft_placement=options.allow_soft_placement,
                optimises=options.optimises,
                logs_placement=options.log_device_placement,
            )

        made, error = _attempt(parts_and_placement)
        self._to_master(ev.GraphCut(cut.token, *(made or ({}, {})), error))

    def _compile(self, action: ev.CompileGraph) -> None:
        def part() -> CompiledPart:
            subgraph = attach_constants(read_graph(action.message), action.constants)
            if action.peer != self.task:
                check_remote_graph(subgraph, self._allowed_ops)
            resource = self._containers.of(action.session)
            return CompiledPart(subgraph, self._by_name, resource, action.optimises)

        self._to_worker(ev.GraphCompiled(action.graph, *_attempt(part)))

    def _describe(self, asked: ev.DescribeParts) -> None:
        described, error = _attempt(lambda: describe_parts(self.task, asked.parts))
        self._answer(ev.Answer(asked.peer, asked.request_id, described, error))

    # --- time

    def _tick(self) -> None:
        while not self._stopped.wait(TICK_S):
            self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """Let deadlines pass, send heartbeats, give up silent peers. To be called each `TICK_S` seconds."""
        self._pass_time(now)
        self._connections.beat(now)
        self._end_job()
        with self._lock:
            running = self._worker.running()
        self._steps.watch(now, running)

    def _pass_time(self, now: float) -> None:
        self._standstill.before(now)
        self._now = now - self._standstill.total_s
        ticked = ev.Ticked(self._now)
        self._to_master(ticked)
        self._to_worker(ticked)


_PERFORM: Mapping[type, Callable[[Server, Any], object]] = {
    ev.Answer: Server._answer,
    ev.Ask: Server._ask_for,
    ev.Tell: Server._tell,
    ev.ExtendGraph: lambda server, extend: server._work(functools.partial(server._extend, extend)),
    ev.CutGraph: lambda server, cut: server._work(functools.partial(server._cut, cut)),
    ev.CompileGraph: lambda server, graph: server._work(functools.partial(server._compile, graph)),
    ev.DescribeParts: lambda server, asked: server._work(functools.partial(server._describe, asked)),
    ev.StartStep: lambda server, start: server._start_step(start),
    ev.EndStep: lambda server, end: server._steps.end(end),
    ev.ServeTensors: lambda server, serve: server._steps.serve(serve),
    ev.OpenWorkerSession: lambda server, opened: server._containers.open(*opened),
    ev.CloseWorkerSession: lambda server, closed: server._containers.close(*closed),
    ev.ClearContainers: lambda server, cleared: server._containers.clear(cleared.containers),
    ev.ForgetParts: lambda server, forgotten: [part.close() for part in forgotten.parts],
    ev.StartDraining: lambda server, _: server.on_drain(),
}
"""Implementation of each action."""


def _attempt(work: Callable[[], T]) -> tuple[T | None, OpError | None]:
    """The result of ``work()``, or the error, to be raised at the requester."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 (see above)
        return None, as_op_error(error)


def _which(cluster: ClusterSpec, job: str | None, index: int | None) -> tuple[str, int]:
    """The task that is meant. Raises `InvalidArgumentError`."""
    if job is None:
        if len(cluster.jobs) != 1:
            raise InvalidArgumentError(f"Server: expected a job_name of {', '.join(cluster.jobs)}; got none")
        job = cluster.jobs[0]
    if index is None:
        if cluster.num_tasks(job) != 1:
            raise InvalidArgumentError(f"Server: expected a task_index in job {job!r}; got none")
        index = cluster.task_indices(job)[0]
    cluster.task_address(job, index)
    return job, index


def _described(device: Device, incarnation: int) -> Any:
    return pb.DeviceAttributes(
        name=device.name,
        device_type=device.device_type,
        memory_limit=device.pool.stats().bytes_limit or 0,
        incarnation=incarnation,
    )
