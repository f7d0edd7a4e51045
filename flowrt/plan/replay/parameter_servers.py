"""`train`: training with parameter servers under a virtual clock, in each mode of consistency.

The servers are flowrt's own: each is a `ParameterShard`, which decides which workers may begin, and which
gradients make an update or are dropped. Simulated are the workers' computing and the network. A step:

    begin     ask each server, and wait until all have answered
    pull      the parameters from all servers at once
    compute   for seconds that are drawn
    push      the gradients to all servers at once; the step ends when each has answered
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from flowrt.distribute.parameter_server.consistency import Mode, policy_of
from flowrt.errors import InvalidArgumentError
from flowrt.graph.resources.parameter_shard import (
    Action,
    Answer,
    ApplyUpdate,
    GradientPushed,
    ParameterShard,
    StepBegun,
    UpdateEnded,
)
from flowrt.plan.replay.events import Events, Transfer
from flowrt.plan.replay.network import Fabric, Flow, Network


@final
@dataclass(frozen=True)
class Job:
    """A model on servers, and its workers."""

    workers: int
    pulled: Sequence[float]
    """Bytes of parameters on each server, which a worker reads in each step."""
    pushed: Sequence[float]
    """Bytes of gradients that a worker sends to each server."""
    seconds: Callable[[random.Random, int], float]
    """A draw of the seconds that the worker with that number computes in a step."""
    mode: Mode
    abandons: bool = False
    """Whether a worker stops computing a gradient that can no longer be used. flowrt's own workers do not:
    they finish it, push it, and it is dropped.
    """


@final
@dataclass(frozen=True)
class Trained:
    """``updates`` are the times of each server's updates, in order."""

    updates: tuple[tuple[float, ...], ...]
    used: int
    """Gradients in updates, of all servers together."""
    dropped: int
    """Gradients that came too late."""
    staleness: Counter[int]
    """Number of used gradients by age: updates between the read and the use."""

    @property
    def seconds(self) -> float:
        """Mean seconds between two updates of a server, of the one that takes longest."""
        return max(times[-1] / len(times) for times in self.updates)


def train(job: Job, fabric: Fabric, updates: int, seed: int = 0) -> Trained:
    """``job`` until each server has made ``updates``. The servers are the first hosts of ``fabric``, the
    workers the next; ``seed`` decides what is drawn.

    Raises `InvalidArgumentError` if ``fabric`` has fewer hosts, or sizes are missing or below 1.
    """
    servers = len(job.pulled)
    if not servers or len(job.pushed) != servers or job.workers < 1 or updates < 1:
        raise InvalidArgumentError(
            "train: expected bytes pulled and pushed for each server, and at least a server, a worker and an "
            f"update; got {servers} and {len(job.pushed)} sizes, {job.workers} workers, {updates} updates"
        )
    if fabric.hosts < servers + job.workers:
        raise InvalidArgumentError(
            f"train: expected a fabric of at least {servers + job.workers} hosts, for {servers} servers and "
            f"{job.workers} workers; got {fabric.hosts}"
        )
    run = _Run(job, fabric, random.Random(seed))
    for worker in run.workers:
        worker.begin()
    run.events.run(lambda: all(len(server.updates) >= updates for server in run.servers))
    shards = [server.shard for server in run.servers]
    staleness: Counter[int] = sum((shard.staleness for shard in shards), Counter())
    return Trained(
        tuple(tuple(server.updates[:updates]) for server in run.servers),
        sum(staleness.values()),
        sum(shard.dropped for shard in shards),
        staleness,
    )


class _Run:
    """The clock, the servers and the workers."""

    def __init__(self, job: Job, fabric: Fabric, rng: random.Random) -> None:
        self.job, self.fabric, self.rng = job, fabric, rng
        self.events = Events(Network(fabric.capacities))
        self.servers = [_Server(number, self) for number in range(len(job.pulled))]
        self.workers = [_Worker(number, self) for number in range(job.workers)]

    def send(self, route: tuple[int, int], nbytes: float, then: Callable[[], object]) -> None:
        flows = [Flow(self.fabric.route(*route), nbytes)] if nbytes else []
        self.events.transfer(Transfer(self.fabric.latency_s, flows), then)


class _Server:
    """A shard, and the times of its updates."""

    def __init__(self, number: int, run: _Run) -> None:
        self.number, self._run = number, run
        self.shard = ParameterShard(f"server {number}", policy_of(run.job.mode, run.job.workers, False))
        self.updates: list[float] = []
        self._answers: dict[int, tuple[int, Callable[[Any], object]]] = {}

    def handle(self, event: StepBegun | GradientPushed, answer: Callable[[Any], object]) -> None:
        """``answer(value)`` happens at the worker, when the answer has reached it."""
        self._answers[event.request] = len(self._run.servers) + event.worker, answer
        self._perform(self.shard.handle(event))

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, ApplyUpdate):
                after = self.shard.handle(UpdateEnded())
                self.updates.append(self._run.events.now)
                self._perform(after)
                if self._run.job.abandons:
                    for worker in self._run.workers:
                        worker.abandon()
            elif isinstance(action, Answer):
                host, answer = self._answers.pop(action.request)
                self._run.send((self.number, host), 0, partial(answer, action.value))


class _Worker:
    """One worker, which makes step after step. It has one request at each server at a time."""

    def __init__(self, number: int, run: _Run) -> None:
        self.number, self._run = number, run
        self._host = len(run.servers) + number
        self._clock = 0
        self._tags: dict[int, int] = {}
        """The version that it reads on each server."""
        self._left = 0
        self._computing = 0
        """The number of the computation that goes on; 0 if there is none."""
        self._computations = 0

    def begin(self) -> None:
        self._left = len(self._run.servers)
        for server in self._run.servers:
            event = StepBegun(self.number, self.number, self._clock)
            self._run.send(
                (self._host, server.number), 0, partial(server.handle, event, partial(self._begun, server))
            )

    def abandon(self) -> None:
        """Give this step up for the next one if all servers have gone on since this worker read."""
        if self._computing and all(s.shard.version > self._tags[s.number] for s in self._run.servers):
            self._computing = 0
            self._clock += 1
            self.begin()

    def _begun(self, server: _Server, version: int) -> None:
        self._tags[server.number] = version
        if self._is_last():
            self._left = len(self._run.servers)
            for each in self._run.servers:
                nbytes = self._run.job.pulled[each.number]
                self._run.send((each.number, self._host), nbytes, self._pulled)

    def _pulled(self) -> None:
        if self._is_last():
            self._computations += 1
            self._computing = self._computations
            seconds = self._run.job.seconds(self._run.rng, self.number)
            self._run.events.after(seconds, partial(self._computed, self._computing))

    def _computed(self, computation: int) -> None:
        if computation != self._computing:
            return  # abandoned
        self._computing = 0
        self._left = len(self._run.servers)
        for server in self._run.servers:
            tag = self._tags[server.number]
            event = GradientPushed(self.number, self.number, self._clock, tag, None)
            nbytes = self._run.job.pushed[server.number]
            self._run.send(
                (self._host, server.number), nbytes, partial(server.handle, event, self._acknowledged)
            )

    def _acknowledged(self, version: int) -> None:
        if self._is_last():
            self._clock += 1
            self.begin()

    def _is_last(self) -> bool:
        self._left -= 1
        return not self._left
