"""Clients of the simulated cluster: what they compute, and one client's life as a script.

Every step has a slot of its own in ``tally``, a variable of the parameter server, and adds 1 there: the
variable says of each step how often it was applied.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

import flowrt as tf
from flowrt.distribute.machines.session_graph import SentGraph, callable_of, named, partial_run_of
from flowrt.distribute.wire.messages import PROTOCOL, Message, encode_status
from flowrt.distribute.wire.peer import Peer, dial
from flowrt.errors import (
    AbortedError,
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    Origin,
    UnavailableError,
)
from flowrt.graph.passes.prepare.prune import extract
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Transport

SLOTS = 48
"""Steps a simulation has at most."""

PAYLOAD = 17_000
"""Elements of the chain's tensor: 68,000 bytes, too many to be copied before they leave."""

TURNS = 3
"""Iterations of the loop."""


class Program(NamedTuple):
    """``expected(x)`` of what it fetches; ``hops`` are the tasks that check their input, in order. ``calls``:
    of a step in several calls, how many of the fetches each asks for, and how many of the feeds it gives.
    """

    graph: tf.Graph
    fetches: list[Any]
    feeds: dict[Any, tuple[int, ...]]
    size: int
    expected: Callable[[Any], Any] | None
    hops: tuple[str, ...]
    calls: tuple[tuple[int, int], ...] = ()


def _on(task: str, cpu: int = 0) -> str:
    return f"{task}/device:CPU:{cpu}"


@functools.cache
def programs_of(tasks: tuple[str, ...], home: str) -> dict[str, Program]:
    """What a client at ``home`` runs on ``tasks``, of which the first keeps the variable."""
    server = tasks[0]
    with tf.Graph().as_default() as graph:
        slot = tf.placeholder(tf.int64, [SLOTS], "slot")
        x = tf.placeholder(tf.float32, [None], "x")
        with tf.device(_on(server)):
            tally = tf.get_variable("tally", [SLOTS], tf.int64, initializer=tf.zeros_initializer())
            counted = tf.assign_add(tally, slot)

        with tf.control_dependencies([counted]), tf.device(_on(home)):
            seen = tally.read_value() * 1

        hops = tuple(tasks[i % len(tasks)] for i in range(1, 2 * len(tasks) + 1))
        faults = tf.placeholder(tf.float32, [len(hops)], "faults")
        chained = x
        for i, task in enumerate(hops):
            with tf.device(_on(task, i % 2)):
                chained = tf.check_numerics(chained + 1.0 + faults[i], "planted")

        def body(turn: Any, value: Any) -> Any:
            with tf.device(_on(server, 1)):
                doubled = value * 2.0
            with tf.device(_on(tasks[-1])):
                return turn + 1, doubled + 1.0

        with tf.device(_on(home)):
            _, looped = tf.while_loop(lambda turn, _: turn < TURNS, body, [0, x])
        with tf.control_dependencies([looped]), tf.device(_on(server)):
            counted_late = tf.assign_add(tally, slot)

        planted = tf.placeholder(tf.float32, [1], "planted")
        with tf.control_dependencies([counted]), tf.device(_on(tasks[-1])):
            kept = x + 1.0  # by the last task, until the second call
        with tf.device(_on(home)):
            begun = kept * 2.0
        with tf.device(_on(server, 1)):
            passed = tf.check_numerics(kept + planted, "planted")
        with tf.device(_on(tasks[-1])):
            ended = begun + passed  # of which the home keeps one

    one: dict[Any, tuple[int, ...]] = {slot: (SLOTS,)}
    return {
        "count": Program(graph, [seen], one, 0, None, ()),
        "chain": Program(
            graph,
            [chained, counted],
            one | {x: (PAYLOAD,), faults: (len(hops),)},
            PAYLOAD,
            lambda x: x + len(hops),
            hops,
        ),
        "loop": Program(
            graph, [looped, counted_late], one | {x: (2,)}, 2, lambda x: x * 2**TURNS + 2**TURNS - 1, ()
        ),
        "parts": Program(
            graph,
            [begun, ended, counted],
            one | {x: (PAYLOAD,), planted: (1,)},
            PAYLOAD,
            None,
            (server,),
            ((1, 2), (1, 1), (1, 0)),
        ),
    }


class Step:
    """One step as its client knows it. ``since``: how many faults there had been when its session began."""

    def __init__(self, slot: int, program: str, planted: str, timeout_s: float, began: float, since: int):
        self.slot, self.program, self.planted = slot, program, planted
        self.timeout_s, self.began, self.since = timeout_s, began, since
        """``began`` is math.inf as long as its graph is compiled: no deadline counts that."""
        self.is_done = self.was_told = False
        """Whether it has ended for its client, and whether the master has said so."""
        self.error: OpError | None = None


Script = Generator[Message, tuple[Message | None, OpError | None], None]


Request = Generator[Message, tuple[Message | None, OpError | None], bool]


class PartialCall(NamedTuple):
    """Call ``number`` of ``program``, a step with ``values`` for all of its feeds."""

    program: Program
    session: str
    partial_run: int
    values: list[Any]
    number: int
    timeout_ms: int

    def message(self) -> Message:
        before = self.program.calls[: self.number]
        fetched, fed = (sum(counts) for counts in zip(*before, strict=True)) if before else (0, 0)
        num_fetches, num_feeds = self.program.calls[self.number]
        body = pb.PartialRun(
            session=self.session,
            partial_run=self.partial_run,
            fed=[named(x.ref) for x in list(self.program.feeds)[fed : fed + num_feeds]],
            fetches=[named(t.ref) for t in self.program.fetches[fetched : fetched + num_fetches]],
            timeout_ms=self.timeout_ms,
        )
        return Message(body, self.values[fed : fed + num_feeds])

    def without_feeds(self) -> Message:
        """What it asks for, before that can be had."""
        body = self.message().body
        del body.fed[:]
        return Message(body)

    def before(self) -> Message:
        """The call before this one, again."""
        return self._replace(number=self.number - 1).message()


def check_parts(step: Step, values: list[Any], answers: list[Any]) -> None:
    """What the calls of "parts" must have fetched, as far as they were made."""
    kept = values[1] + 1.0
    for got, expected in zip(answers, (kept * 2.0, kept * 3.0), strict=False):
        np.testing.assert_array_equal(got, expected)
    assert len(answers) < 3 or answers[2][step.slot] == 1, f"step {step.slot} does not see its own update"
    assert len(answers) == 1 or not step.planted, f"step {step.slot} succeeded, with a fault planted"


class Client:
    """Runs ``num_steps`` steps by the master at ``address``; with a new session, and a new connection, when
    the old one is of no use any more.
    """

    def __init__(
        self,
        name: str,
        master: str,
        address: str,
        transport: Transport,
        programs: dict[str, Program],
        filters: list[str],
        num_steps: int,
        rng: random.Random,
        is_timed: bool,
        world: Any,
    ) -> None:
        self.name, self.step, self.is_over = name, None, False
        self._master, self._address, self._transport, self._programs = (master, address, transport, programs)
        self._filters, self._left, self._rng, self._is_timed = filters, num_steps, rng, is_timed
        self._world = world
        self._peer: Peer | None = None
        self._request_id = 0
        self.step: Step | None
        self.beside: Step | None = None
        """A second step, which it runs at the same time."""
        self.is_asking = False
        self._again: tuple[Any, ...] = ()
        self._given_up: list[int] = []
        """Steps in several calls of which it has let go, until the master is told."""
        self._script = self._live()
        self._reply: Any = None

    @property
    def is_waiting(self) -> bool:
        return self.is_asking or self.beside is not None

    # --- what the simulation decides

    def act(self) -> None:
        """Make the next request."""
        try:
            message = self._script.send(self._reply)
        except StopIteration:
            self.is_over = True
            return
        peer = self._connect() if type(message.body) is pb.CreateSession else self._peer
        if peer is None:
            error = UnavailableError("no master")
            error.origin = Origin(self._master, False)
            self._reply = None, error
            return
        self.is_asking = True
        self._request_id = peer.next_id()
        peer.ask(message, functools.partial(self._settle, self._request_id), self._request_id)

    @property
    def running(self) -> list[Step]:
        """The steps that it waits for."""
        return [step for step in (self.step if self.is_asking else None, self.beside) if step is not None]

    @property
    def may_run_beside(self) -> bool:
        runs = self.step is not None and self.is_asking and self._again != ()
        return runs and self.beside is None and self._left > 0

    def run_beside(self) -> None:
        """Run a step of the callable whose step runs, as another thread of the client would."""
        assert self._peer is not None
        self._left -= 1
        self.beside, body, feeds = self._next_step(*self._again)
        self._peer.ask(Message(body, feeds), functools.partial(self._settle_beside, feeds))

    def _settle_beside(self, feeds: list[Any], answer: Message | None, error: OpError | None) -> None:
        step, self.beside = self.beside, None
        assert step is not None
        self._finish(step, feeds, answer, error)

    def cancel(self) -> None:
        """Give up the step that runs."""
        assert self.step is not None
        assert self._peer is not None
        status = encode_status(CancelledError("the client gave up"), "the client")
        self._peer.ask(Message(pb.CancelStep(request_id=self._request_id, status=status)), _ignore)

    def leave(self) -> None:
        """Go without a word; it may come back."""
        if self._peer is not None:
            self._peer.close("the client went")

    # --- the script

    def _live(self) -> Script:
        while self._left > 0:
            since = len(self._world.faults)
            body = pb.CreateSession(device_filters=self._filters)
            created, _ = yield Message(body)
            if created is None:
                self._left -= 1  # or a client of a dead master would never end
                continue
            yield from self._session(created.body.session, since)
            yield Message(pb.CloseSession(session=created.body.session))
        self.leave()

    def _session(self, session: str, since: int) -> Script:
        handles: dict[str, int] = {}
        sent = SentGraph()
        while self._left > 0:
            self._left -= 1
            name = self._rng.choice(list(self._programs))
            if self._programs[name].calls:
                if not (yield from self._run_in_parts(session, name, sent, since)):
                    return
                continue
            if name not in handles:
                program = self._programs[name]
                if not (yield from self._extend(session, program, sent)):
                    return
                made, _ = yield callable_of(session, program.fetches, [], program.feeds)
                if made is None:
                    return
                handles[name] = made.body.callable
            self._again = session, name, handles[name], since
            self.step, body, feeds = self._next_step(*self._again)
            answer, error = yield Message(body, feeds)
            step, self.step = self.step, None
            self._finish(step, feeds, answer, error)
            if isinstance(error, UnavailableError | AbortedError):
                return
            if self._rng.random() < 0.2:
                yield Message(pb.ReleaseCallable(session=session, callable=handles.pop(name)))

    def _extend(self, session: str, program: Program, sent: SentGraph) -> Request:
        """Whether the master has what ``program`` needs."""
        step = extract(program.graph, program.fetches, [], program.feeds, [])
        extension = sent.extension(program.graph, step, program.feeds)
        if extension is not None:
            extended, _ = yield extension.message(session)
            if extended is None:
                return False
            sent.extended(extension, extended.body.version)
        return True

    def _run_in_parts(self, session: str, name: str, sent: SentGraph, since: int) -> Request:
        """One step in several calls. Whether the session is of use afterwards."""
        program, rng = self._programs[name], self._rng
        if not (yield from self._extend(session, program, sent)):
            return False
        released, self._given_up = self._given_up, []
        set_up = partial_run_of(session, program.fetches, [], list(program.feeds), released)
        handle, _ = yield set_up
        if handle is None:
            return False
        number = handle.body.partial_run
        self._again = ()
        step, options, values = self._next_step(session, name, 0, since)
        self.step, error = step, None
        answers: list[Any] = []
        num_calls = len(program.calls) if rng.random() < 0.8 else 1
        for part in range(num_calls):
            call = PartialCall(program, session, number, values, part, options.timeout_ms)
            if part and rng.random() < 0.3:
                refused = yield call.without_feeds() if part == 1 else call.before()
                assert refused[0] is None, f"step {step.slot}: a call that is wrong was answered"
                if not isinstance(refused[1], InvalidArgumentError):
                    error = refused[1]
                    break
            step.began = math.inf
            answer, error = yield call.message()
            if answer is None:
                break
            answers += answer.tensors
        self.step = None
        if error is None and len(answers) < len(program.fetches):
            self._given_up.append(number)
        self._finish(step, values, None, error)
        if error is None:
            check_parts(step, values, answers)
        elif not isinstance(error, UnavailableError | AbortedError):
            again, failure = yield PartialCall(program, session, number, values, 0, 0).message()
            assert again is None, f"step {step.slot}: a call after one that failed was answered"
            return isinstance(failure, FailedPreconditionError)
        return error is None

    def _finish(self, step: Step, feeds: list[Any], answer: Message | None, error: OpError | None) -> None:
        step.error, step.is_done = error, True
        step.was_told = self._peer is not None and not self._peer.is_lost
        self._world.step_is_over(step)
        if answer is not None:
            self._check(step, feeds, answer)

    def _next_step(self, session: str, name: str, handle: int, since: int) -> tuple[Step, Any, list[Any]]:
        program, rng = self._programs[name], self._rng
        slot = self._world.new_slot()
        one = np.zeros(SLOTS, np.int64)
        one[slot] = 1
        feeds = [one]
        planted = ""
        if program.size:
            feeds.append(np.full(program.size, slot, np.float32))
        if program.hops:
            faults = np.zeros(len(program.hops), np.float32)
            if rng.random() < 0.2:
                at = rng.randrange(len(program.hops))
                faults[at], planted = np.nan, program.hops[at]
            feeds.append(faults)
        timeout_s = rng.choice([1.0, 4.0]) if self._is_timed or rng.random() < 0.3 else 0.0
        step = Step(slot, name, planted, timeout_s, self._world.now, since)
        self._world.steps[slot] = step
        body = pb.RunStep(session=session, callable=handle, timeout_ms=round(timeout_s * 1000))
        return step, body, feeds

    def _check(self, step: Step, feeds: list[Any], answer: Message) -> None:
        expected = self._programs[step.program].expected
        if expected is None:
            assert answer.tensors[0][step.slot] == 1, f"step {step.slot} does not see its own update"
        else:
            np.testing.assert_array_equal(answer.tensors[0], expected(feeds[1]))
        assert not step.planted, f"step {step.slot} succeeded, with a fault planted in {step.planted}"

    def repeat(self) -> None:
        """Send again what has no answer."""
        if self._peer is not None:
            self._peer.repeat()

    # --- the connection

    def _connect(self) -> Peer | None:
        """A session ends with its connection: only a new one dials."""
        if self._peer is None or self._peer.is_lost:
            try:
                self._peer = dial(self._transport, self._address, self, 1.0)
            except UnavailableError:
                self._peer = None
        return self._peer

    def _settle(self, request_id: int, message: Message | None, error: OpError | None) -> None:
        assert self.is_asking, f"{self.name}: the request was answered twice"
        assert request_id == self._request_id
        self.is_asking = False
        self._reply = message, error

    def hello(self) -> Any:
        return pb.Hello(protocol=PROTOCOL, version="1")

    def greeted(self, peer: Peer, hello: Any) -> None:
        """It is the master, whoever says so."""

    def asked(self, peer: Peer, request_id: int, message: Message) -> None:
        peer.answer(request_id, Message(pb.Done()), None)

    def lost(self, peer: Peer, error: OpError) -> None:
        self._world.report(self.name, f"lost its master: {error.message}")


def _ignore(message: Message | None, error: OpError | None) -> None:
    """Nobody waits for the answer to a cancellation."""
