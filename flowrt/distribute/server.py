"""`Server`: one task of a cluster. It listens, and does what its master and its worker decide.

    Peer.asked ---> Master.handle / Worker.handle, under the lock ---> actions ---> performed, the lock is free

A request of another task and one of a session in this process go the same way, without frames when both ends are
here. Work that takes time (cutting and compiling graphs, running steps, connecting) has a thread of its own, but a
session of this process runs its own task's part on the thread that called `Session.run`: that saves two hand-overs.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, final
from weakref import WeakValueDictionary

import flowrt.version
from flowrt.device.deadline import deadline
from flowrt.device.local_devices import local_devices
from flowrt.distribute import master as m
from flowrt.distribute import worker as w
from flowrt.distribute.cluster_spec import ClusterSpec, parse_address
from flowrt.distribute.containers import Containers
from flowrt.distribute.messages import PROTOCOL, Message, derived
from flowrt.distribute.part import CompiledPart, cut_by_task
from flowrt.distribute.peer import Done, Peer, Reply, dial
from flowrt.distribute.threads import Threads
from flowrt.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
    UnknownError,
)
from flowrt.executor.config import ConfigProto, RunOptions, device_request
from flowrt.executor.runner import StepControl
from flowrt.executor.step_stats import StepRecorder
from flowrt.protos import cluster_pb2 as pb
from flowrt.protos.step_stats_pb2 import StepStats
from flowrt.rendezvous.channel import Connection
from flowrt.rendezvous.remote import RemoteRendezvous
from flowrt.rendezvous.security import Security
from flowrt.rendezvous.transport import new_transport

LOGGER = logging.getLogger(__name__)

TICK_S = 0.25
HEARTBEAT_S = 2.0
LOST_S = 10.0
"""A peer that has said nothing for so long is gone."""

CONNECT_S = 60.0
"""How long a new session waits for the tasks of its cluster."""
REPORT_S = 5.0
"""How often it says for whom it waits."""
DIAL_S = 5.0

LOCAL = "local"
"""The sessions of this process, as a client."""

_SERVERS: WeakValueDictionary[str, Server] = WeakValueDictionary()


def server_of(target: str) -> Server | None:
    """The server of this process that ``target`` means."""
    return _SERVERS.get(target)


def task_name(job: str, index: int) -> str:
    return f"/job:{job}/replica:0/task:{index}"


@final
class Server:
    """A task that takes part in steps and makes sessions for those who connect to `target`.

    ``server_or_cluster_def`` is a `ClusterSpec` or what one is made of; ``job_name`` and ``task_index`` may be left out
    where the cluster has one task. ``config`` says which devices the task has. ``bind``: ``host:port`` to listen at,
    if not the task's address in the cluster. Raises `InvalidArgumentError` for a task that the cluster does not
    have, `AlreadyExistsError` where the port is taken, and `UnavailableError` where the address cannot be bound.
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
    ) -> None:
        if protocol not in (None, "grpc"):
            raise InvalidArgumentError(f"Server: expected the protocol 'grpc'; got {protocol!r}")
        self.cluster = ClusterSpec(server_or_cluster_def)
        job, index = _which(self.cluster, job_name, task_index)
        self.job_name, self.task_index, self.task = job, index, task_name(job, index)
        self._addresses = {task_name(j, i): address for j, i, address in self.cluster.tasks()}
        self._bind = bind or self._addresses[self.task]
        self._config = config or ConfigProto()
        self._transport = new_transport(security)
        self.incarnation = secrets.randbits(64) | 1
        self.devices = local_devices(device_request(self._config), job, index)
        self._by_name = {device.name: device for device in self.devices}
        described = [
            pb.DeviceAttributes(
                name=d.name,
                device_type=d.device_type,
                memory_limit=d.pool.stats().bytes_limit or 0,
                incarnation=self.incarnation,
            )
            for d in self.devices
        ]
        self._lock = threading.Lock()
        self._worker = w.Worker(
            self.task, self.incarnation, flowrt.version.VERSION, described, self._new_rendezvous
        )
        self._master = m.Master(self.task, list(self._addresses), random.Random(secrets.randbits(128)))
        self._containers = Containers()
        self._threads = Threads(f"flowrt {self.task}")
        self._peers: dict[str, Peer] = {}
        self._links: dict[str, Peer] = {}
        """The peer that each task is asked by."""
        self._dialing: dict[str, threading.Lock] = {task: threading.Lock() for task in self._addresses}
        self._serial = itertools.count(1)
        self._own: dict[int, Done] = {}
        """What this task asks itself, by request."""
        self._controls: dict[int, StepControl] = {}
        self._here = threading.local()
        self._listener: Any = None
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._masters: set[str] = set()
        self.on_job_end: Callable[[str], object] | None = None
        """Called when the last master that had sessions here is gone, with its name."""
        self._ticker: threading.Thread | None = None
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
            raise FailedPreconditionError(f"server {self.task}: it was stopped. Make a new one")
        if self._listener is not None:
            return
        self._listener = self._transport.listen(self._bind, self._accept)
        if parse_address(self._addresses[self.task]).port == 0:
            self._addresses[self.task] = self._listener.address
        _SERVERS[self.target] = self
        self._ticker = threading.Thread(target=self._tick, name=f"flowrt {self.task} ticks", daemon=True)
        self._ticker.start()

    @property
    def address(self) -> str:
        """``host:port`` that it listens at."""
        if self._listener is None:
            raise FailedPreconditionError(f"server {self.task}: expected start() before its address is asked for")
        address: str = self._listener.address
        return address

    @property
    def target(self) -> str:
        """What a `Session` connects to."""
        return f"grpc://{self.address}"

    @property
    def server_def(self) -> dict[str, Any]:
        return {"cluster": self.cluster.as_dict(), "job_name": self.job_name, "task_index": self.task_index}

    def join(self, timeout_s: float | None = None) -> bool:
        """Block until the server was stopped; False if ``timeout_s`` seconds came first."""
        return self._ended.wait(timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Take no new work, wait for the steps that run, and stop; False if they did not end in time."""
        self._worker.is_draining = True
        end = time.monotonic() + timeout_s
        while self._worker.num_running and time.monotonic() < end:
            self._stopped.wait(0.01)
        is_idle = not self._worker.num_running
        self.stop()
        return is_idle

    def stop(self) -> None:
        """End all steps, connections and threads. Idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._listener is not None:
            _SERVERS.pop(self.target, None)
            self._listener.close()
        reason = f"{self.task} was stopped"
        with self._lock:
            running = self._worker.running()
        for step, rendezvous in running:
            self._end_step(w.EndStep(step, rendezvous, CancelledError(reason)))
        for peer in list(self._peers.values()):
            peer.close(reason)
        self._threads.close()
        if self._ticker is not None and self._ticker is not threading.current_thread():
            self._ticker.join(5.0)
        self._containers.clear(())
        for device in self.devices:
            device.close()
        self._ended.set()

    # --- peers

    def hello(self) -> Any:
        """See `flowrt.distribute.peer.Owner`."""
        return pb.Hello(
            protocol=PROTOCOL,
            version=flowrt.version.VERSION,
            task=self.task,
            incarnation=self.incarnation,
            cluster=fingerprint(self.cluster),
        )

    def _accept(self, connection: Connection) -> None:
        connection.start(Peer(connection, self))

    def greeted(self, peer: Peer, hello: Any) -> None:
        """See `flowrt.distribute.peer.Owner`."""
        if hello.task and hello.cluster != fingerprint(self.cluster):
            raise FailedPreconditionError(
                f"{self.task} and {hello.task} know different clusters. Start all tasks with one cluster spec"
            )
        if hello.task == self.task:
            raise AlreadyExistsError(f"two tasks call themselves {self.task}: expected one of each")
        with self._lock:
            peer.token = f"{hello.task or 'client'}#{next(self._serial)}"
            self._peers[peer.token] = peer
            if hello.task in self._addresses and self._links.get(hello.task) is None:
                self._links[hello.task] = peer

    def asked(self, peer: Peer, request_id: int, message: Message) -> None:
        """See `flowrt.distribute.peer.Owner`."""
        self._dispatch(peer.token, request_id, message)

    def lost(self, peer: Peer, error: OpError) -> None:
        """See `flowrt.distribute.peer.Owner`."""
        with self._lock:
            self._peers.pop(peer.token, None)
            if self._links.get(peer.name) is peer:
                del self._links[peer.name]
        peer.connection.close()
        event = w.PeerLost(peer.token, error)
        self._to_master(event)
        self._to_worker(event)
        if peer.token in self._masters:
            self._masters.discard(peer.token)
            if not self._masters and self.on_job_end is not None and not self._stopped.is_set():
                self.on_job_end(peer.name)

    def _link(self, task: str, connects: bool) -> Peer:
        """The peer to ask ``task`` by. Raises `UnavailableError`, and what it is refused with."""
        link = self._links.get(task)
        if link is not None:
            return link
        with self._dialing[task]:
            link = self._links.get(task)
            if link is None:
                link = self._dial(task, time.monotonic() + (CONNECT_S if connects else DIAL_S))
                with self._lock:
                    self._links[task] = link
        return link

    def _dial(self, task: str, end: float) -> Peer:
        address, report = self._addresses[task], time.monotonic() + REPORT_S
        while True:
            left = end - time.monotonic()
            try:
                peer = dial(self._transport, address, self, max(0.1, min(left, DIAL_S)))
            except (UnavailableError, DeadlineExceededError) as error:
                if end - time.monotonic() <= 0.2 or self._stopped.wait(0.2):
                    raise UnavailableError(f"{task} at {address} did not answer: {error.message}") from error
                if time.monotonic() > report:
                    report += REPORT_S
                    LOGGER.warning("still waiting for %s at %s: %s", task, address, error.message)
                continue
            if peer.name != task:
                peer.close("it is another task")
                raise FailedPreconditionError(f"expected {task} at {address}; got {peer.name}")
            return peer

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
        """For `ask_master`."""
        reply = Reply()
        reply.request_id = next(self._serial)
        return reply

    def _dispatch(self, peer: str, request_id: int, message: Message) -> None:
        event = w.Asked(peer, request_id, message)
        (self._to_master if m.Master.knows(message.body) else self._to_worker)(event)

    def _to_master(self, event: m.Event) -> None:
        with self._lock:
            actions = self._master.handle(event)
        for action in actions:
            self._perform(action)

    def _to_worker(self, event: w.Event) -> None:
        with self._lock:
            actions = self._worker.handle(event)
        for action in actions:
            self._perform(action)

    def _perform(self, action: m.Action | w.Action) -> None:
        match action:
            case w.Answer():
                self._answer(action)
            case m.Ask(task, token, message, connects):
                answered = functools.partial(self._answered, token)
                if task == self.task:
                    self._ask_self(message, answered)
                else:
                    self._ask(task, message, answered, connects)
            case m.Tell(task, message):
                if task == self.task:
                    self._ask_self(message, _ignore)
                elif (link := self._links.get(task)) is not None:
                    link.ask(message, _ignore)
            case m.CutGraph():
                self._work(functools.partial(self._cut, action))
            case w.CompileGraph():
                self._work(functools.partial(self._compile, action))
            case w.StartStep(step, timeout_ms=timeout_ms):
                self._controls[step] = StepControl(timeout_ms / 1000 if timeout_ms else None)
                self._work(functools.partial(self._run_step, action))
            case w.EndStep():
                self._end_step(action)
            case w.ServeTensors():
                self._serve(action)
            case w.OpenWorkerSession(session, is_isolated):
                self._containers.open(session, is_isolated)
            case w.CloseWorkerSession(session):
                self._containers.close(session)
            case w.ForgetParts(parts):
                for part in parts:
                    part.close()
            case w.ClearContainers(containers):
                self._containers.clear(containers)
            case w.StartDraining(timeout_ms):
                self._threads.submit(functools.partial(self.drain, timeout_ms / 1000))

    def _work(self, work: Callable[[], object]) -> None:
        """Do what takes time: here, if this thread may, else on one of its own."""
        if getattr(self._here, "may_run", False):
            work()
        else:
            self._threads.submit(work)

    def _answer(self, answer: w.Answer) -> None:
        peer, request_id, message, error = answer
        if peer in (LOCAL, self.task):
            done = self._own.pop(request_id, None)
            if done is not None:
                done(message, error)
        elif (found := self._peers.get(peer)) is not None:
            if message is not None and type(message.body) is pb.DeviceList:
                self._masters.add(peer)
            try:
                found.answer(request_id, message, error)
            except OpError as failure:
                found.answer(request_id, None, failure)

    def _answered(self, token: int, message: Message | None, error: OpError | None) -> None:
        self._to_master(m.Answered(token, message, error))

    def _ask_self(self, message: Message, done: Done) -> None:
        number = next(self._serial)
        self._own[number] = done
        self._to_worker(w.Asked(self.task, number, message))

    def _ask(self, task: str, message: Message, done: Done, connects: bool) -> None:
        link = self._links.get(task)
        if link is None:
            self._threads.submit(functools.partial(self._connect_and_ask, task, message, done, connects))
            return
        try:
            link.ask(message, done)
        except OpError as error:  # a part that cannot travel
            done(None, error)

    def _connect_and_ask(self, task: str, message: Message, done: Done, connects: bool) -> None:
        try:
            self._link(task, connects).ask(message, done)
        except OpError as error:
            done(None, error)

    # --- graphs

    def _cut(self, cut: m.CutGraph) -> None:
        options = cut.options
        parts: Mapping[str, m.Part] = {}
        placement: Mapping[str, str] = {}
        error: OpError | None = None
        try:
            devices = {d.name: d.incarnation for d in cut.devices}
            parts, placement = cut_by_task(
                cut.subgraph, devices, cut.placement, options.allow_soft_placement, options.optimises
            )
        except Exception as failure:  # noqa: BLE001 (it is the client's)
            error = _as_op_error(failure)
        self._to_master(m.GraphCut(cut.token, parts, placement, error))

    def _compile(self, action: w.CompileGraph) -> None:
        part, error = None, None
        try:
            resource = self._containers.of(action.session)
            part = CompiledPart(action.subgraph, self._by_name, resource, action.optimises)
        except Exception as failure:  # noqa: BLE001 (it is the master's)
            error = _as_op_error(failure)
        self._to_worker(w.GraphCompiled(action.graph, part, error))

    # --- steps

    def _new_rendezvous(self, step: int) -> RemoteRendezvous:
        return RemoteRendezvous(self.task, functools.partial(self._request_tensors, step))

    def _run_step(self, start: w.StartStep) -> None:
        step, rendezvous, control = start.step, start.rendezvous, self._controls[start.step]
        recorder = StepRecorder() if start.trace_level != RunOptions.NO_TRACE else None
        try:
            rendezvous.ask(start.part.keys)
            with deadline(control.remaining_s()):
                values = start.part.run(start.feeds, control, recorder, rendezvous)
            stats = b"" if recorder is None else _stats(recorder)
            rendezvous.end(functools.partial(self._step_ended, step, values, None, stats))
        except BaseException as failure:
            reason = control.cancelled
            error = failure if reason is None or not isinstance(failure, OpError) else reason
            self._step_ended(step, (), _as_op_error(error))
            if not isinstance(failure, Exception):
                raise

    def _step_ended(self, step: int, values: Sequence[Any], error: OpError | None, stats: bytes = b"") -> None:
        self._controls.pop(step, None)
        self._to_worker(w.StepEnded(step, values, error, stats))

    def _end_step(self, end: w.EndStep) -> None:
        control = self._controls.get(end.step)
        if control is not None:
            control.cancel(end.error)
        end.rendezvous.abort(end.error)

    def _serve(self, serve: w.ServeTensors) -> None:
        for i, key in enumerate(serve.keys):
            send = functools.partial(self._send_tensor, serve, serve.request_id + i)
            serve.rendezvous.serve(key, send)

    def _send_tensor(self, serve: w.ServeTensors, request_id: int, value: Any, error: OpError | None) -> None:
        peer = self._peers.get(serve.peer)
        if error is not None:
            if peer is not None:
                peer.answer(request_id, None, derived(error, self.task))
            return
        if peer is None:
            serve.rendezvous.delivered()
            return
        try:
            peer.answer(request_id, Message(pb.Done(), (value,)), None, serve.rendezvous.delivered)
        except OpError as failure:  # it cannot travel
            peer.answer(request_id, None, derived(failure, self.task))
            self._end_step(w.EndStep(serve.step, serve.rendezvous, failure))

    def _request_tensors(self, step: int, task: str, keys: Sequence[str]) -> None:
        rendezvous = self._worker.rendezvous(step)
        if rendezvous is None:
            return
        dones = [functools.partial(_arrived, rendezvous, key) for key in keys]
        message = Message(pb.RecvTensor(step=step, keys=keys))
        link = self._links.get(task)
        if link is not None:
            link.ask_all(message, dones)
        elif task not in self._addresses:
            rendezvous.abort(InvalidArgumentError(f"the step needs {task}, which the cluster does not have"))
        else:
            self._threads.submit(functools.partial(self._connect_and_request, task, message, dones, rendezvous))

    def _connect_and_request(
        self, task: str, message: Message, dones: Sequence[Done], rendezvous: RemoteRendezvous
    ) -> None:
        try:
            self._link(task, False).ask_all(message, dones)
        except OpError as error:
            rendezvous.abort(error)

    # --- time

    def _tick(self) -> None:
        next_beat = 0.0
        while not self._stopped.wait(TICK_S):
            now = time.monotonic()
            ticked = w.Ticked(now)
            self._to_master(ticked)
            self._to_worker(ticked)
            if now < next_beat:
                continue
            next_beat = now + HEARTBEAT_S
            for peer in list(self._peers.values()):
                if now - peer.heard_at > LOST_S:
                    peer.fail(f"nothing was heard of it for {LOST_S:.0f} s")
                else:
                    with suppress(OpError):
                        peer.ask(Message(pb.Heartbeat()), _ignore)


def _which(cluster: ClusterSpec, job: str | None, index: int | None) -> tuple[str, int]:
    """The task that is meant. Raises `InvalidArgumentError`."""
    if job is None:
        if len(cluster.jobs) != 1:
            raise InvalidArgumentError(f"Server: expected a job_name of {', '.join(cluster.jobs)}; got none")
        job = cluster.jobs[0]
    if index is None:
        if cluster.num_tasks(job) != 1:
            raise InvalidArgumentError(f"Server: expected a task_index of job {job!r}; got none")
        index = cluster.task_indices(job)[0]
    cluster.task_address(job, index)
    return job, index


def fingerprint(cluster: ClusterSpec) -> str:
    """Equal for equal jobs and numbers of tasks. Addresses are not a part of it: a task may be reached at
    different ones.
    """
    tasks = sorted(f"{job}:{index}" for job, index, _ in cluster.tasks())
    return hashlib.sha256(" ".join(tasks).encode()).hexdigest()[:16]


def _arrived(rendezvous: RemoteRendezvous, key: str, message: Message | None, error: OpError | None) -> None:
    if message is None or len(message.tensors) != 1:
        rendezvous.abort(error or InvalidArgumentError(f"{key}: expected one tensor as the answer"))
        return
    with suppress(OpError):  # the step has ended meanwhile
        rendezvous.arrived(key, message.tensors[0])


def _ignore(message: Message | None, error: OpError | None) -> None:
    """The answer that nobody needs."""


def _as_op_error(error: BaseException) -> OpError:
    if isinstance(error, OpError):
        return error
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return CancelledError(f"the step was interrupted by {type(error).__name__}")
    return UnknownError(f"{type(error).__name__}: {error}")


def _stats(recorder: StepRecorder) -> bytes:
    stats = StepStats()
    recorder.fill(stats)
    return stats.SerializeToString()
