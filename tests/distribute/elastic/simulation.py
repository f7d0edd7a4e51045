"""An elastic job under a virtual clock: one seed decides everything that may happen in another order.

    python -m tests.distribute.elastic.simulation --seed 17        replays a seed and prints what happens

Real are the coordinator, its server, the clients of the members, and their messages; simulated are the
network, the time, and the training: in each step all members of an epoch exchange what they have, as an
all-reduce does, and it may end in some of them only. A seed draws the job and what goes wrong, then chooses
event after event: a message arrives, a member goes on, time passes, a member comes, is killed, cut off,
stopped or told to leave.

What must hold after every event:

  E1  the members of an epoch have different ranks and know the same group, of a size that the job may have;
  E2  an epoch begins with the newest commit that any of the living has;
  E3  the members that exchange a step have made the same steps, each once;
  E4  who makes a step in an epoch that is over is in the job no longer;
  E5  no member waits for ever, and the job ends;
  E6  the group changes only when a member has come or gone.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest import mock

from flowrt.distribute.cluster.timeouts import LOST_S
from flowrt.distribute.elastic.coordinator import NO_COMMIT
from flowrt.distribute.elastic.coordinator_client import CoordinatorClient, ElasticPlace
from flowrt.distribute.elastic.coordinator_server import CoordinatorServer
from flowrt.distribute.elastic.elastic_messages import Epoch
from flowrt.errors import UnavailableError
from tests.distribute.simulated_network import End, Network

COORDINATOR = "coordinator"
MAX_EVENTS = 20_000
"""A simulation takes some hundreds; one that takes so many does not end."""


class State(NamedTuple):
    """After ``step`` steps. ``trace``: a checksum of their numbers, in order."""

    step: int = 0
    trace: int = 0

    def after(self) -> State:
        return State(self.step + 1, zlib.crc32(b"%d" % self.step, self.trace))


@dataclass
class Group:
    """The members of an epoch, by their names; ``steps`` has what each brings to the step that it is in."""

    epoch: Epoch
    begin: State | None = None
    """Rank 0's, which it sends when all have come."""
    here: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    brought: dict[tuple[str, int], State] = field(default_factory=dict)
    """By member and step."""


class Event(NamedTuple):
    weight: float
    happen: Callable[[], object]


class Member:
    """A worker: what `flowrt.train.elastic.elastic_run` does with a `CoordinatorClient`, a wait at a time."""

    def __init__(self, job: Simulation, number: int, host: str) -> None:
        self.job, self.name = job, f"worker {number}"
        self.commit: State | None = None
        """The newest state in its memory."""
        self.state = State()
        """In the epoch: maybe some steps further. The last one is its result."""
        self.group: Group | None = None
        """Where it takes part now."""
        self.has_begun = self.is_leaving = self.is_interrupted = False
        self.asleep_until = 0.0
        transport = job.network.transport(self.name)
        end = transport.connect(COORDINATOR, 1.0)
        assert isinstance(end, End)
        end.has_greeted = end.other.has_greeted = True
        self.end = end
        place = ElasticPlace(COORDINATOR, self.name, host, f"{host}:{number}")
        self.client = CoordinatorClient(place, end, transport, self._interrupt, lambda: job.now)

    @property
    def step(self) -> int:
        """Of its commit."""
        return NO_COMMIT if self.commit is None else self.commit.step

    def _interrupt(self, why: str) -> None:
        self.is_interrupted = True

    # --- what it can do next

    @property
    def can_act(self) -> bool:
        if self.job.now < self.asleep_until:
            return False
        group = self.group
        if group is None:
            return self.client._has_news() or self.is_leaving
        return self.is_interrupted or bool(group.gone) or self._has_all(group)

    def _has_all(self, group: Group) -> bool:
        """Whether the exchange that it waits for can end here."""
        if not self.has_begun:
            return group.begin is not None
        return all((name, self.state.step) in group.brought for name in group.epoch.names)

    def act(self) -> None:
        group = self.group
        if group is None:
            self._wait_is_over()
        elif self._has_all(group) and not (self.is_interrupted and self.job.rng.random() < 0.5):
            self._exchanged(group)
        else:
            self._end_epoch(group, "a member is gone, or the epoch over")

    def _wait_is_over(self) -> None:
        if self.is_leaving:
            self._go()
            return
        epoch, failed = None, None
        try:
            epoch = self.client.next_epoch()
        except UnavailableError as error:
            failed = error.message
        if epoch is None:
            self.job.ended(self, failed)
            return
        self.is_interrupted = False
        self.group, self.has_begun = self.job.join(self, epoch), False
        if (why := self._over()) is not None:
            self._end_epoch(self.group, why)

    def _exchanged(self, group: Group) -> None:
        if not self.has_begun:
            assert group.begin is not None
            self.has_begun, self.state = True, group.begin
            self.commit = group.begin if group.begin.step else None
            self._bring(group)
            return
        brought = {group.brought[name, self.state.step] for name in group.epoch.names}
        assert brought == {self.state}, f"E3: {self.name} exchanged {brought}"
        self.state = self.state.after()
        self.job.made(self, group)
        if self.state.step % self.job.commit_every == 0:
            self.commit = self.state
            if (why := self._over()) is not None:
                self._end_epoch(group, why)
                return
        self._bring(group)

    def _bring(self, group: Group) -> None:
        """Begin the next step, or end."""
        if self.state.step < self.job.steps:
            group.brought[self.name, self.state.step] = self.state
            return
        self._leave_group(group)
        if self.is_leaving:
            self._go()
        else:
            self.client.is_done(self.step)

    def _over(self) -> str | None:
        if self.is_leaving:
            return "it was told to leave"
        try:
            return self.client.change
        except UnavailableError as error:
            return error.message

    def _end_epoch(self, group: Group, why: str) -> None:
        self._leave_group(group)
        if self.is_leaving:
            self._go()
        else:
            self.client.is_ready(self.step, why)

    def _go(self) -> None:
        self.client.has_left()
        self.job.remove(self)

    def _leave_group(self, group: Group) -> None:
        """Its links end: who waits for it fails, but nobody does who has made all steps."""
        if self.state.step < self.job.steps:
            group.gone.add(self.name)
        self.group = None


class Simulation:
    """``say(text)`` takes the log."""

    def __init__(self, seed: int, say: Callable[[str], object] | None = None) -> None:
        self.rng, self._say, self.now = random.Random(seed), say, 0.0
        rng = self.rng
        self.network = Network()
        self._most = rng.randint(1, 6)
        self._least = rng.randint(1, self._most)
        self.steps, self.commit_every = rng.randint(1, 60), rng.choice([1, 1, 1, 3])
        self._spares, self._hosts = rng.choice([0, 0, 1, 2]), rng.choice(["a", "ab", "abc"])
        self._faults_left, self._comers_left = rng.randint(0, 8), rng.randint(self._least, 12)
        self._changes = 0
        """Members that have come, and faults."""
        self.members: list[Member] = []
        """Processes that live."""
        self.ends: list[str | None] = []
        """Reasons with which members ended; None: the job was done."""
        self.group: Group | None = None
        self.num_epochs = 0
        self.server = CoordinatorServer(
            COORDINATOR,
            self.network.transport(COORDINATOR),
            self._least,
            self._most,
            self.report,
            lambda: self.now,
        )

    def report(self, what: str) -> None:
        if self._say is not None:
            self._say(f"{self.now:8.2f}  {what}")

    def run(self) -> None:
        """The whole of it. Raises `AssertionError` for a rule that does not hold."""
        try:
            for number in itertools.count():
                events = self._events()
                if not events:
                    break
                assert number < MAX_EVENTS, f"E5: it does not end: {self._waiting()}"
                self.rng.choices(events, [event.weight for event in events])[0].happen()
            self._check_end()
        finally:
            for member in self.members:
                member.client.close()
            self.server.close()

    # --- what may happen next

    def _events(self) -> list[Event]:
        awake = {each.name for each in self.members if self.now >= each.asleep_until} | {COORDINATOR}
        events = [
            Event(6, functools.partial(_deliver, end))
            for end in self.network.ends
            if end.inbox and end.owner in awake
        ]
        events += [Event(6, member.act) for member in self.members if member.can_act]
        if self._comers_left and len(self.members) < self._most + self._spares and not self.server.is_over:
            events.append(Event(1.0, self._come))
        if not events and not self.members and self.server.is_over:
            return []
        events.append(Event(1.0, self._pass_time))
        if self._faults_left and self.members:
            faults = (self._kill, self._cut, self._stop, self._tell_to_leave)
            events += [Event(0.15 if self.num_epochs else 0.02, fault) for fault in faults]
        return events

    def _pass_time(self) -> None:
        self.now += self.rng.uniform(0.1, 1.5)
        self.server.tick()
        for member in self.members:
            if self.now >= member.asleep_until:
                member.client.beat()

    def _come(self) -> None:
        self._comers_left -= 1
        self._changes += 1
        member = Member(self, self._changes, self.rng.choice(self._hosts))
        self.members.append(member)
        self.report(f"{member.name} comes")

    # --- what goes wrong

    def _any(self, what: str) -> Member:
        self._faults_left -= 1
        self._changes += 1
        member = self.rng.choice(self.members)
        self.report(f"FAULT: {member.name} {what}")
        return member

    def _kill(self) -> None:
        """What it brought to a step may have arrived, at some."""
        member = self._any("is killed")
        if member.group is not None and self.rng.random() < 0.5:
            member.group.brought.pop((member.name, member.state.step), None)
        self.network.kill(member.name, self.rng)
        self.remove(member)

    def _cut(self) -> None:
        self.network.cut(self._any("loses the coordinator").end, self.rng)

    def _stop(self) -> None:
        self._any("is stopped").asleep_until = self.now + self.rng.uniform(1.0, 3 * LOST_S)

    def _tell_to_leave(self) -> None:
        self._any("is told to leave").is_leaving = True

    # --- what members do

    def join(self, member: Member, epoch: Epoch) -> Group:
        """Its group in ``epoch``."""
        if self.group is None or self.group.epoch.number < epoch.number:
            self.num_epochs += 1
            assert self.num_epochs <= self._changes, f"E6: {epoch} after {self._changes} changes"
            assert self._least <= len(epoch.names) <= self._most, f"E1: {epoch}"
            newest = max((each.step for each in self._known()), default=NO_COMMIT)
            assert epoch.commit >= newest, f"E2: {epoch} with a commit of step {newest}"
            self.group = Group(epoch)
        group = self.group
        if group.epoch.number > epoch.number:  # it was asleep
            group = Group(epoch, gone={member.name})
        assert epoch._replace(rank=0) == group.epoch._replace(rank=0), f"E1: {epoch}"
        assert epoch.names[epoch.rank] == member.name, f"E1: {epoch} in {member.name}"
        group.here.add(member.name)
        if epoch.rank == 0:
            assert member.step == epoch.commit, (
                f"E2: {member.name} has {member.step}, expected {epoch.commit}"
            )
        if group.here == set(epoch.names):
            for first in [each for each in self.members if each.name == epoch.names[0]]:
                group.begin = first.commit or State()
        return group

    def _known(self) -> list[Member]:
        """The members that the coordinator believes to live, which wait for an epoch."""
        names = {each.joined.name for each in self.server._connected.values() if each.joined is not None}
        return [each for each in self.members if each.name in names]

    def made(self, member: Member, group: Group) -> None:
        """``member`` has made a step."""
        is_over = self.group is not group
        assert not is_over or member not in self._known(), f"E4: {member.name} in {group.epoch.number}"

    def remove(self, member: Member) -> None:
        """Its process ends."""
        if member.group is not None:
            member.group.gone.add(member.name)
        self.members.remove(member)
        member.client.close()
        if not self.members and not self._comers_left:
            self.server.own_ended()  # as the flowrt-run of the first host does

    def ended(self, member: Member, why: str | None) -> None:
        self.report(f"{member.name} ends: {why or 'all is done'}")
        if why is None and member.has_begun:
            assert member.state == done(self.steps), f"E3: {member.name} ended with {member.state}"
        self.ends.append(why)
        self.remove(member)

    # --- the end

    def _waiting(self) -> list[str]:
        return [f"{each.name} in {each.group and each.group.epoch}" for each in self.members]

    def _check_end(self) -> None:
        assert not self.members, f"E5: {self._waiting()}"
        assert self.server.is_over, "E5: the job has not ended"


def _deliver(end: End) -> None:
    end.take(end.inbox.popleft())


def done(steps: int) -> State:
    """After all steps, undisturbed."""
    state = State()
    for _ in range(steps):
        state = state.after()
    return state


def simulate(seed: int, say: Callable[[str], object] | None = None) -> Simulation:
    """Run it. The threads in which time passes end at once."""
    with mock.patch.object(CoordinatorServer, "_tick"), mock.patch.object(CoordinatorClient, "_beat"):
        simulation = Simulation(seed, say)
        simulation.run()
        return simulation


def main() -> None:
    parser = argparse.ArgumentParser(description="replay one seed of the simulated elastic job")
    parser.add_argument("--seed", type=int, required=True)
    simulate(parser.parse_args().seed, print)


if __name__ == "__main__":
    main()
