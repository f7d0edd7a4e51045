"""A cluster under a virtual clock, in which one seed decides everything that may happen in another order.

    python -m tests.distribute.simulation --seed 17        replays a seed and prints what happens

Real are the machines, the codec, the links, the steps and the compiled programs; simulated are the network,
the threads and the time. A seed draws the tasks, the clients and what goes wrong, then chooses event after
event: a frame arrives, a program goes on, a graph is compiled, a client asks, time passes, a connection or a
task is lost, a task drains. In some simulations frames are also lost, repeated or overtaken, which no real
connection does.

What must hold after every event (numbers as in the reliability programme):

  I1  no value is delivered to a program twice;
  I2  every receive, and every request of a client, ends by its deadline, and ends;
  I3  what an ended step leaves in a rendezvous is nothing, and an ended partial run in its tasks;
  I4  a step that succeeded was applied once, every other at most once;
  I5  who fails names a cause that there was, and with one cause all name that one;
  I6  no task starts a step that has ended there, nor one of which the client was told the end.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from flowrt.distribute import connection_manager
from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.launch.drain import Operator
from flowrt.distribute.master.pending_replies import GRACE_S, LATE_S
from flowrt.distribute.wire import messages
from flowrt.distribute.wire.messages import Message
from flowrt.distribute.wire.peer import MAX_REPEATED, NUMBER_BITS, dial
from flowrt.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.resources.variables import VariableResource
from flowrt.graph.text.graph_text import parse_subgraph
from flowrt.protos import cluster_pb2 as pb
from tests.distribute.simulated_client import SLOTS, Client, Step, programs_of
from tests.distribute.simulated_network import End, Frame, Network
from tests.distribute.simulated_task import Task

MAX_EVENTS = 20_000
"""A simulation takes some hundreds; one that takes so many does not end."""

SLACK_S = 3.0
"""A virtual second is some tens of events, and a frame may be chosen late."""

STEP_FRAMES = {"run_graph", "recv_tensor", "cleanup_graph", "step_result"}
"""What may be lost however large it is, because steps have deadlines. The rest has none, but what is small is
sent again.
"""


PARSED: dict[tuple[str, ...], Subgraph] = {}


def parse_once(text: str, known: Mapping[str, Node]) -> Subgraph:
    """A quarter of the time would go into the texts of the same few graphs."""
    key = (text, *known)
    if key not in PARSED:
        PARSED[key] = parse_subgraph(text, known)
    return PARSED[key]


class Fault(NamedTuple):
    """``tasks`` are those that may be named as the cause; of some faults it may be anybody."""

    kind: str
    tasks: tuple[str, ...] = ()


class Event(NamedTuple):
    weight: float
    happen: Callable[[], object]


class Simulation:
    """``say(text)`` takes the log."""

    def __init__(self, seed: int, say: Callable[[str], object] | None = None) -> None:
        self.rng, self._say = random.Random(seed), say
        self.now = 0.0
        self.network = Network()
        rng = self.rng
        num_tasks = rng.choice([2, 2, 3, 3, 4])
        self._mode = rng.choices(["calm", "faults", "frames"], [1, 4, 2])[0]
        self._relays = rng.random() < 0.5
        self._faults_left = 0 if self._mode == "calm" else rng.randint(1, 3)
        self.names = ["/job:ps/replica:0/task:0"]
        self.names += [f"/job:worker/replica:0/task:{i}" for i in range(num_tasks - 1)]
        addresses = {name: f"host{i}:1" for i, name in enumerate(self.names)}
        workers = [addresses[name] for name in self.names[1:]]
        self._cluster = ClusterSpec({"ps": [addresses[self.names[0]]], "worker": workers})
        self._lives = dict.fromkeys(self.names, 0)
        self.tasks: dict[str, Task] = {}
        """Those that are alive."""
        self._all: list[Task] = []
        self._slots = itertools.count()
        self.steps: dict[int, Step] = {}
        self._slot_of: dict[int, int] = {}
        """By the step's number, which the master draws."""
        self.faults: list[Fault] = []
        self._delayed: list[tuple[End, Frame]] = []
        for name in self.names:
            self._start(name)
        self.clients = [self._new_client(i) for i in range(rng.choice([1, 2, 2, 3]))]
        self.report("simulation", f"{self._mode}, {num_tasks} tasks, {len(self.clients)} clients")

    def report(self, who: str, what: str) -> None:
        if self._say is not None:
            self._say(f"{self.now:8.3f}  {who:<28} {what}")

    # --- who takes part

    def _start(self, name: str) -> None:
        life = self._lives[name] = self._lives[name] + 1
        incarnation = (self.names.index(name) + 1) << 8 | life
        job, index = name.split("/")[1][4:], int(name.rsplit(":", 1)[1])
        task = Task(
            self._cluster,
            name,
            (job, index),
            incarnation,
            self.network,
            lambda: self.now,
            self.report,
            self._relays,
        )
        task.slot_of = self._slot_of
        self.tasks[name] = task
        self._all.append(task)
        self.report(name, f"starts, life {incarnation:x}")

    def _new_client(self, number: int) -> Client:
        master = self.rng.choice(self.names)
        home = master if master != self.names[0] else self.names[1]
        programs, filters = programs_of(tuple(self.names), home), []
        if self.rng.random() < 0.2:  # between-graph: sees the server and its own task, no other
            programs = {"count": programs["count"]}
            filters = ["/job:ps", home.replace("/replica:0", "")]
        return Client(
            f"client {number}",
            master,
            f"host{self.names.index(master)}:1",
            self.network.transport(f"client {number}"),
            programs,
            filters,
            self.rng.randint(2, SLOTS // 8),
            random.Random(self.rng.random()),
            self._mode == "frames",
            self,
        )

    def new_slot(self) -> int:
        return next(self._slots)

    # --- what may happen next

    def run(self) -> None:
        """The whole of it. Raises `AssertionError` for an invariant that does not hold."""
        with (
            mock.patch.object(
                connection_manager, "RETRY_S", math.inf
            ),  # no virtual second is spent in a dial
            mock.patch.object(messages, "parse_subgraph", parse_once),
        ):
            for number in itertools.count():
                events = self._events()
                if not events:
                    if not self._has_more():
                        break
                    events = [Event(1, self._let_time_pass)]
                assert number < MAX_EVENTS, f"it does not end: {self._left_over()}"
                self.rng.choices(events, [event.weight for event in events])[0].happen()
                self._check()
        self._check_end()

    def _events(self) -> list[Event]:
        events = [Event(8, lambda end=end: self._deliver(end)) for end in self.network.ends if end.inbox]
        for task in self.tasks.values():
            events += [Event(8, lambda t=task, w=work: (t.work.remove(w), w())) for work in task.work[:3]]
            for run in task.runs:
                events += [Event(8, lambda r=run, n=number: r.advance(n)) for number in run.movable]
        events += [
            Event(4, client.act) for client in self.clients if not client.is_waiting and not client.is_over
        ]
        events += [Event(0.1, lambda late=late: self._bring(late)) for late in self._delayed]
        if not events:
            return []
        events += [Event(1, client.run_beside) for client in self.clients if client.may_run_beside]
        events.append(Event(0.5, self._let_time_pass))
        if self._faults_left:
            events += self._possible_faults()
        events += [
            Event(0.3, lambda t=task: self._stop(t)) for task in self.tasks.values() if task.has_drained
        ]
        dead = [name for name in self.names if name not in self.tasks]
        events += [Event(0.3, lambda name=name: self._start(name)) for name in dead]
        return events

    def _possible_faults(self) -> list[Event]:
        events = [Event(0.05, self._kill), Event(0.05, self._cut), Event(0.05, self._give_up)]
        events.append(Event(0.05, self._drain))
        if self._mode == "frames":
            events.append(Event(1.0, self._disturb))
        return events

    def _has_more(self) -> bool:
        """Whether something will happen when time has passed."""
        return not all(client.is_over for client in self.clients) or self._left_over() != ""

    def _deliver(self, end: End) -> None:
        frame = end.inbox.popleft()
        if self._say is not None:
            self.report(end.owner, _text(end, frame))
        end.take(frame)

    def _let_time_pass(self) -> None:
        self.now += self.rng.uniform(0.05, 0.5)
        for task in list(self.tasks.values()):
            task.tick(self.now)
        for client in self.clients:
            client.repeat()
        self._check_deadlines()

    # --- what goes wrong

    def _fault(self, fault: Fault) -> None:
        self._faults_left -= 1
        self.faults.append(fault)
        self.report("FAULT", f"{fault.kind} {' and '.join(fault.tasks)}")

    def _kill(self) -> None:
        if not self.tasks:
            return
        name = self.rng.choice(list(self.tasks))
        task = self.tasks.pop(name)
        self._fault(Fault("kill", (name,)))
        task.die()
        self.network.kill(task.address, self.rng)

    def _drain(self) -> None:
        """An operator tells a task to end; what it runs then may, and does if nothing else is wrong."""
        if not self.tasks:
            return
        name = self.rng.choice(list(self.tasks))
        task = self.tasks[name]
        self._fault(Fault("drain", (name,)))
        peer = dial(self.network.transport("operator"), task.address, Operator(), 1.0)
        peer.ask(Message(pb.Drain()), connection_manager.ignore)

    def _stop(self, task: Task) -> None:
        """A task that has drained ends."""
        self.report(task.name, "has drained and ends")
        del self.tasks[task.name]
        task.die()
        self.network.kill(task.address, self.rng)

    def _cut(self) -> None:
        open_ends = [end for end in self.network.ends if not end.is_cut]
        if not open_ends:
            return
        end = self.rng.choice(open_ends)
        ends = {f"host{i}:1": name for i, name in enumerate(self.names)}
        self._fault(Fault("cut", tuple(ends.get(owner, owner) for owner in (end.owner, end.peer))))
        self.network.cut(end, self.rng)

    def _give_up(self) -> None:
        client = self.rng.choice(self.clients)
        if client.step is None or not client.is_asking:
            return
        self._fault(Fault("client"))
        if self.rng.random() < 0.6:
            client.cancel()
        else:
            client.leave()

    def _disturb(self) -> None:
        """Lose, repeat or move a frame between two tasks."""
        places = [
            (end, position)
            for end in self.network.ends
            if end.owner.startswith("host") and end.peer.startswith("host")
            for position, frame in enumerate(end.inbox)
            if frame is not None and (_kind(frame) in STEP_FRAMES or _is_repeated(frame))
        ]
        if not places:
            return
        end, position = self.rng.choice(places)
        frame = end.inbox[position]
        assert frame is not None
        what = self.rng.choice(["lose", "repeat", "delay"])
        self._fault(Fault(f"{what} {_kind(frame)} to {end.owner}"))
        if what == "lose":
            self.network.lose(end, position)
            return
        if what == "delay":
            del end.inbox[position]
        else:
            frame = Frame(frame.header, frame.copies, frame.copies, lambda: None)
        self._delayed.append((end, frame))

    def _bring(self, late: tuple[End, Frame]) -> None:
        """A frame that others have overtaken arrives, if its connection is still there."""
        self._delayed = [other for other in self._delayed if other is not late]  # frames hold arrays
        end, frame = late
        if end.is_cut or end not in self.network.ends:
            frame.sent()
            return
        self.report(end.owner, _text(end, frame))
        end.take(frame)

    # --- what must hold

    def _check(self) -> None:
        for task in self.tasks.values():
            for (number, key), times in task.delivered.items():
                assert times == 1, f"I1: {task.name} got {key} of step {number:x} {times} times"
            task.delivered.clear()
            for rendezvous in task.ended:
                rendezvous.check_empty()
            task.ended = [rendezvous for rendezvous in task.ended if not rendezvous._table.is_empty]
            for number in task.started:
                self._check_start(self.steps[self._slot_of[number]], task.name)
            task.started.clear()
            for number in task.asked_to_run:
                step = self.steps[self._slot_of[number]]
                step.began = min(step.began, self.now)
            task.asked_to_run.clear()
            for number, error in task.failures:
                step = self.steps[self._slot_of[number]]
                if not step.is_done:
                    self._check_cause(step, error, task.name)
            task.failures.clear()
        self._check_kept()
        applied = self._applied()
        assert applied.max() <= 1, f"I4: step {applied.argmax()} was applied {applied.max()} times"
        assert not applied[len(self.steps) :].any(), "I4: a step was applied and never asked for"

    def _applied(self) -> np.ndarray[Any, Any]:
        """How often each step was, in all lives of the server together."""
        return sum((tally.array for tally in self._tallies()), np.zeros(SLOTS, np.int64))

    def _tallies(self) -> list[VariableResource]:
        return [variable for task in self._all for variable in task.variables.values()]

    def _check_start(self, step: Step, whose: str) -> None:
        """I6. A task may that does not hear of the end: its `CleanupGraph` was lost, or its connection."""
        hears = not any("lose cleanup_graph" in fault.kind or whose in fault.tasks for fault in self.faults)
        assert not (step.was_told and hears), f"I6: {whose} starts step {step.slot}, which has ended"

    def step_is_over(self, step: Step) -> None:
        """A client has its answer."""
        self.report("client", f"step {step.slot} ({step.program}) is over: {step.error!r}")
        if step.error is None:
            assert self._applied()[step.slot] == 1, f"I4: step {step.slot} succeeded and was not applied"
        else:
            self._check_cause(step, step.error, "its client")

    def _check_cause(self, step: Step, error: OpError, whose: str) -> None:
        """I5."""
        earlier = [fault for fault in self.faults[: step.since] if fault.kind == "drain"]  # heard of later
        faults = earlier + self.faults[step.since :]
        told = f"I5: {whose} was told of step {step.slot} {error!r} of {error.origin}; causes: {faults}"
        origin = error.origin.task if error.origin is not None else ""
        match error:
            case InvalidArgumentError():
                assert origin == step.planted, told
            case DeadlineExceededError():
                assert step.timeout_s, told
            case CancelledError():
                assert any(fault.kind in ("client", "kill", "cut", "drain") for fault in faults), told
            case UnavailableError() | AbortedError():
                blamed = {name for fault in faults for name in fault.tasks}
                frames = any(not fault.tasks for fault in faults)
                assert origin in blamed or frames, told
            case _:
                raise AssertionError(told)

    def _check_kept(self) -> None:
        """I3, when nothing is on its way: tasks keep tensors only of partial runs that go on."""
        is_busy = any(end.inbox for end in self.network.ends) or any(t.work for t in self.tasks.values())
        if self._mode == "frames" or is_busy:  # what was lost is sent again when time has passed
            return
        sessions = {name: s for task in self.tasks.values() for name, s in task.master._sessions.items()}
        for task in self.tasks.values():
            for name, session in task.worker._sessions.items():
                for number in session.kept:
                    run = name in sessions and sessions[name].partial_runs.runs.get(number)
                    goes_on = run and run.failure is None and not run.stage.step.is_over
                    assert goes_on, f"I3: {task.name} keeps tensors of partial run {number}, which is over"

    def _check_deadlines(self) -> None:
        """I2."""
        for task in self.tasks.values():
            for run in task.runs:
                late = run.until is not None and self.now > run.until + SLACK_S
                assert not (late and run.asked_for), f"I2: {task.name} still waits for {run.asked_for}"
        for client in self.clients:
            for step in client.running:
                end = step.began + step.timeout_s + LATE_S + GRACE_S + SLACK_S
                assert not step.timeout_s or self.now < end, f"I2: {client.name} waits for step {step.slot}"

    def _left_over(self) -> str:
        """What is not finished, in words."""
        found = [f"{end.owner} has {len(end.inbox)} frames" for end in self.network.ends if end.inbox]
        for name, task in self.tasks.items():
            found += [f"{name}: {what}" for what in task.left_over()]
        return "; ".join(found)

    def _check_end(self) -> None:
        assert not self._left_over()
        applied = self._applied()
        for slot, step in self.steps.items():
            assert step.is_done, f"I2: step {slot} has no end"
            assert step.error is not None or applied[slot] == 1, f"I4: step {slot}"


def _kind(frame: Frame) -> str:
    return pb.Envelope.FromString(frame.header).WhichOneof("body") or "error"


def _is_repeated(frame: Frame) -> bool:
    return not frame.payload and len(frame.header) <= MAX_REPEATED


def _text(end: End, frame: Frame | None) -> str:
    if frame is None:
        return f"loses its connection to {end.peer}"
    envelope = pb.Envelope.FromString(frame.header)
    in_connection = envelope.request_id % (1 << NUMBER_BITS)  # the rest is random
    number = f"{in_connection}{' answer' if envelope.is_answer else ''}"
    return f"<- {end.peer:<9} {number:>10} {_kind(frame)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="replay one seed of the simulated cluster")
    parser.add_argument("--seed", type=int, required=True)
    Simulation(parser.parse_args().seed, print).run()


if __name__ == "__main__":
    main()
