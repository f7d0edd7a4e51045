"""One life of a task in the simulated cluster: its real machines, connections and programs, without threads.

What a `Server` does at once, this does too. What a server gives to a thread waits here until the simulation
chooses it: cutting and compiling graphs, dialling (`Task.work`), and each segment of each program (`Run`).
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.device.device import Device
from flowrt.device.local_devices import local_devices
from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.cluster.containers import Containers
from flowrt.distribute.connection_manager import ConnectionManager, ignore
from flowrt.distribute.machines import events as ev
from flowrt.distribute.master import master as m
from flowrt.distribute.observe.observer import Observer
from flowrt.distribute.wire.messages import Message, read_graph
from flowrt.distribute.wire.peer import Done
from flowrt.distribute.worker import worker as w
from flowrt.distribute.worker.part import CompiledPart, cut_by_task
from flowrt.distribute.worker.steps import Steps, as_op_error
from flowrt.errors import OpError
from flowrt.executor.ends.config import ConfigProto, device_request
from flowrt.graph.construction.detached import attach_constants
from flowrt.graph.node import Subgraph
from flowrt.graph.resources.variables import VariableResource
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.remote import RemoteRendezvous
from tests.distribute.simulated_network import Network
from tests.distribute.simulated_run import Run, late


@functools.cache
def devices_of(job: str, index: int) -> list[Device]:
    """Two CPUs, the same ones in all lives and simulations: nothing of a step stays on them."""
    return local_devices(device_request(ConfigProto(device_count={"CPU": 2})), job, index)


cut_once = functools.lru_cache(1024)(
    lambda nodes, ends, devices, placement: cut_by_task(
        Subgraph({node.name: node for node in nodes}, *ends),
        dict(devices),
        dict(placement),
        soft_placement=False,
        optimises=False,
        logs_placement=False,
    )
)
"""Simulations have graphs in common; what a seed shows does not depend on who cut them first."""


REPEAT_S = 0.5
"""Between two looks for what has no answer: some steps end before, some after."""


class Task:
    """``incarnation`` is of this life; ``now()`` the virtual time; ``report(task, text)`` the log.
    ``relays``: short parts are run as a server runs them, by who brings their tensors; else the simulation
    chooses when they go on, which knows more orders, and counts what they are given.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        name: str,
        index: tuple[str, int],
        incarnation: int,
        network: Network,
        now: Callable[[], float],
        report: Callable[[str, str], None],
        relays: bool,
    ) -> None:
        self.name, self.incarnation, self.now, self._report = name, incarnation, now, report
        self._relays, self._relayed = relays, dict[int, tuple[float, RemoteRendezvous]]()
        """The steps that are relayed and have a deadline, with that."""
        self.is_dead = False
        self._next_repeat = 0.0
        self.slot_of: dict[int, int] = {}
        """The slot of each step that is asked for here, by its number."""
        self._slot = 0
        self._partial_slots: dict[int, int] = {}
        """By the number of a partial run."""
        self.asked_to_run: list[int] = []
        """The steps of this master that have begun."""
        self._unanswered: dict[tuple[str, int], str] = {}
        """Requests that wait for their one answer; those for tensors are counted by their programs."""
        self.work: list[Callable[[], object]] = []
        self.runs: list[Run] = []
        self.delivered: Counter[tuple[int, str]] = Counter()
        self.ended: list[RemoteRendezvous] = []
        """The rendezvous of steps that were ended, until they are seen to be empty."""
        self.started: list[int] = []
        self._over: set[int] = set()
        """Steps that this task was told the end of, or has ended."""
        self.failures: list[tuple[int, OpError]] = []
        """What this task has answered of its parts of steps."""
        self.parts: list[CompiledPart] = []
        self.sessions: list[str] = []
        self.variables: dict[str, VariableResource] = {}
        addresses = {f"/job:{j}/replica:0/task:{i}": address for j, i, address in cluster.tasks()}
        self.address = addresses[name]
        self._transport = network.transport(self.address)
        self.connections = ConnectionManager(
            name, incarnation, cluster, addresses, self._transport, self, self
        )
        self.steps = Steps(name, self.connections, self._ended, Observer(name, 0))
        self.devices = {device.name: device for device in devices_of(*index)}
        described = [
            pb.DeviceAttributes(name=device, device_type="CPU", incarnation=incarnation)
            for device in self.devices
        ]
        self.master = m.Master(name, list(addresses), random.Random(incarnation))
        self.worker = w.Worker(name, incarnation, "1", described, self.steps.new_rendezvous)
        self._containers = Containers()
        self._own: dict[int, Done] = {}
        self._serial = itertools.count(1)
        self._listener = self._transport.listen(self.address, self.connections.accept)

    def die(self) -> None:
        self.is_dead = True
        self._listener.close()
        self.work.clear()
        self.runs.clear()

    # --- what the connections ask of their owner

    def submit(self, work: Callable[[], object]) -> None:
        """What a server does on another thread."""
        self.work.append(work)

    def came(self, name: str) -> None:
        """It may have come before."""

    def asked(self, token: str, request_id: int, message: Message) -> None:
        self._dispatch(token, request_id, message)

    def lost(self, token: str, name: str, error: OpError) -> None:
        self._report(self.name, f"lost {name}")
        event = ev.PeerLost(token, error)
        for key in [key for key in self._unanswered if key[0] == token]:
            del self._unanswered[key]
        self._to_master(event)
        self._to_worker(event)

    @property
    def has_drained(self) -> bool:
        return self.worker.is_draining and not self.worker.num_running

    # --- the machines

    def tick(self, now: float) -> None:
        for run in self.runs:
            if run.until is not None and now > run.until:
                run.be_late()
        for step, (until, rendezvous) in list(self._relayed.items()):
            if now > until:
                self.steps.end(ev.EndStep(step, rendezvous, late()))
        if now > self._next_repeat:
            self._next_repeat = now + REPEAT_S
            self.connections.repeat()
        self._to_master(ev.Ticked(now))
        self._to_worker(ev.Ticked(now))

    def _dispatch(self, peer: str, request_id: int, message: Message) -> None:
        event = ev.Asked(peer, request_id, message)
        kind = type(message.body)
        if kind is not pb.RecvTensor:
            self._unanswered[peer, request_id] = kind.__name__
        if kind is pb.CleanupGraph:
            self._over.add(message.body.step)
        if kind is pb.RunStep:
            self._slot = int(message.tensors[0].argmax())
        if kind is pb.PartialRun:
            self._note_slot(message)
        (self._to_master if m.Master.knows(message.body) else self._to_worker)(event)

    def _note_slot(self, call: Message) -> None:
        is_first = "slot" in [fed.op for fed in call.body.fed]
        if is_first and call.body.session in self.master._sessions:
            self._partial_slots[call.body.partial_run] = int(call.tensors[0].argmax())

    def _to_master(self, event: ev.MasterEvent) -> None:
        if not self.is_dead:
            for action in self.master.handle(event):
                _PERFORM[type(action)](self, action)

    def _to_worker(self, event: ev.WorkerEvent) -> None:
        if not self.is_dead:
            for action in self.worker.handle(event):
                _PERFORM[type(action)](self, action)

    def _ended(self, ended: ev.StepEnded) -> None:
        what = "well" if ended.error is None else f"with {ended.error!r}"
        self._report(self.name, f"step {ended.step:x} ends {what}")
        self._over.add(ended.step)
        self._relayed.pop(ended.step, None)
        self._to_worker(ended)

    def _answer(self, answer: ev.Answer) -> None:
        peer, request_id, message, error = answer
        if peer.startswith("client") and self.connections.find(peer) is not None:
            assert (peer, request_id) in self._unanswered, f"{self.name} answered {peer} twice"
        self._unanswered.pop((peer, request_id), None)
        if peer == self.name:
            self._own.pop(request_id)(message, error)
        elif (found := self.connections.find(peer)) is not None:
            found.answer(request_id, message, error)

    def _ask(self, ask: ev.Ask) -> None:
        done = functools.partial(self._answered, ask.token)
        if type(ask.message.body) is pb.RunGraph:
            body = ask.message.body
            self.slot_of[body.step] = self._partial_slots.get(body.partial_run, self._slot)
            self.asked_to_run.append(body.step)
        if ask.task == self.name:
            self._ask_itself(ask.message, done)
        else:
            self.connections.ask(ask.task, ask.message, (done,), ask.wait_s)

    def _tell(self, tell: ev.Tell) -> None:
        if tell.task == self.name:
            self._ask_itself(tell.message, ignore)
        else:
            self.connections.tell(tell.task, tell.message)

    def _ask_itself(self, message: Message, done: Done) -> None:
        number = next(self._serial)
        self._own[number] = done
        self._to_worker(ev.Asked(self.name, number, message))

    def _answered(self, token: int, message: Message | None, error: OpError | None) -> None:
        self._to_master(ev.Answered(token, message, error))

    def left_over(self) -> list[str]:
        """What is not finished here, or was not let go of."""
        worker, master = self.worker, self.master
        kept = {
            "work": self.work,
            "runs": self.runs,
            "sessions": self.sessions,
            "parts": self.parts,
            "worker sessions": worker._sessions,
            "graphs": worker._graphs,
            "steps": worker._steps,
            "master sessions": master._sessions,
            "rounds": master._pending,
            "controls": self.steps._controls,
            "values that leave": self.ended,
            "requests without an answer": self._unanswered,
        }
        return [f"{len(what)} {name}" for name, what in kept.items() if what]

    # --- what takes time

    def _extend(self, extend: ev.ExtendGraph) -> None:
        graph = extend.graph.extended(extend.message)
        self._to_master(ev.GraphExtended(extend.token, graph, None))

    def _cut(self, cut: ev.CutGraph) -> None:
        devices = tuple((d.name, d.incarnation) for d in cut.devices)
        try:
            step = cut.graph.step(cut.message)
            ends = step.feeds, step.fetches, step.targets
            parts, placement = cut_once(tuple(step), ends, devices, tuple(cut.placement.items()))
        except OpError as error:
            self._to_master(ev.GraphCut(cut.token, {}, {}, as_op_error(error)))
        else:
            self._to_master(ev.GraphCut(cut.token, parts, placement, None))

    def _compile(self, action: ev.CompileGraph) -> None:
        resource = self._containers.of(action.session)

        def initialised(device: Device, node: Any) -> Any:
            found = resource(device, node)
            if isinstance(found, VariableResource) and not found.is_initialized:
                found.assign(np, np.zeros(found.shape or (), found.dtype.np))
                self.variables[found.name] = found
            return found

        subgraph = attach_constants(read_graph(action.message), action.constants)
        part = CompiledPart(subgraph, self.devices, initialised, False)
        self.parts.append(part)
        self._to_worker(ev.GraphCompiled(action.graph, part, None))

    def _start(self, start: ev.StartStep) -> None:
        self._report(self.name, f"step {start.step:x} starts")
        assert start.step not in self._over, f"I6: {self.name} starts step {start.step:x} after its end"
        self.started.append(start.step)
        if self._relays and start.part.is_short:
            if start.timeout_ms:
                self._relayed[start.step] = self.now() + start.timeout_ms / 1000, start.rendezvous
            self.steps.run_async(start)
        else:
            self.runs.append(Run(start, self.steps, self.now, self._count, self.runs.remove))

    def _count(self, step: int, key: str) -> None:
        self.delivered[step, key] += 1

    def _end(self, end: ev.EndStep) -> None:
        self.failures.append((end.step, end.error))
        self.ended.append(end.rendezvous)
        self.steps.end(end)

    def _forget(self, parts: Sequence[CompiledPart]) -> None:
        for part in parts:
            self.parts.remove(part)
            part.close()

    def _open(self, opened: ev.OpenWorkerSession) -> None:
        self.sessions.append(opened.session)
        self._containers.open(*opened)

    def _close(self, closed: ev.CloseWorkerSession) -> None:
        self.sessions.remove(closed.session)
        self._containers.close(*closed)


_PERFORM: dict[type, Callable[[Task, Any], object]] = {
    ev.Answer: Task._answer,
    ev.Ask: Task._ask,
    ev.Tell: Task._tell,
    ev.ExtendGraph: lambda task, extend: task.submit(lambda: task._extend(extend)),
    ev.CutGraph: lambda task, cut: task.submit(lambda: task._cut(cut)),
    ev.CompileGraph: lambda task, graph: task.submit(lambda: task._compile(graph)),
    ev.StartStep: Task._start,
    ev.EndStep: Task._end,
    ev.ServeTensors: lambda task, serve: task.steps.serve(serve),
    ev.OpenWorkerSession: Task._open,
    ev.CloseWorkerSession: Task._close,
    ev.ForgetParts: lambda task, forgotten: task._forget(forgotten.parts),
    ev.StartDraining: lambda task, _: None,  # the simulation ends it when it `has_drained`
}
