"""The shard's state machine: rules stated one by one, then random workers against what must hold of every
run.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from flowrt.graph.resources.parameter_shard import (
    LEASE_S,
    RETURN_S,
    Answer,
    ApplyUpdate,
    GradientPushed,
    InstallState,
    ParameterShard,
    Policy,
    PromotionAsked,
    RequestLeft,
    Role,
    StateArrived,
    StateAsked,
    StateReplicated,
    StepBegun,
    Ticked,
    UpdateEnded,
    WorkerCame,
    WorkerLeft,
    WorkerLost,
    histogram,
)


def push(shard, request, worker, clock, tag, gradient=None):
    """The actions of a push, and of the end of the update that it may lead to."""
    actions = shard.handle(GradientPushed(request, worker, clock, tag, gradient))
    updates = [action for action in actions if isinstance(action, ApplyUpdate)]
    return actions + shard.handle(UpdateEnded()) if updates else actions


def sync(workers=2, **how):
    return ParameterShard("s", Policy(workers, workers, None, **how))


# --- updates


def test_an_update_is_made_of_one_gradient_of_each_in_the_order_of_the_workers():
    shard = sync(3)
    assert push(shard, 1, 2, 0, 0, "c") == []
    assert push(shard, 2, 0, 0, 0, "a") == []
    last = push(shard, 3, 1, 0, 0, "b")
    assert last == [ApplyUpdate(["a", "b", "c"]), Answer(2, 1), Answer(3, 1), Answer(1, 1)]
    assert (shard.version, shard.clocks) == (1, [1, 1, 1])


def test_a_late_gradient_is_dropped_by_its_tag_and_never_applied():
    shard = ParameterShard("s", Policy(3, 2, None))
    push(shard, 1, 0, 0, 0, "a")
    assert push(shard, 2, 1, 0, 0, "b")[0] == ApplyUpdate(["a", "b"])
    assert push(shard, 3, 2, 0, 0, "late") == [Answer(3, 1)]
    assert (shard.dropped, shard.clocks) == (1, [1, 1, 1])
    push(shard, 4, 0, 1, 1, "c")
    assert push(shard, 5, 1, 1, 1, "d")[0] == ApplyUpdate(["c", "d"])


def straggling(policy, steps):
    """A shard in which all workers but the last have made ``steps`` steps, and the last none."""
    shard = ParameterShard("s", policy)
    for clock in range(steps):
        for worker in range(policy.workers - 1):
            push(shard, 10 * clock + worker, worker, clock, clock, f"{worker}:{clock}")
    assert (shard.version, shard.clocks[-1]) == (steps, 0)
    return shard


def test_a_straggler_joins_those_who_wait_for_it_and_else_does_not_wait():
    shard = straggling(Policy(4, 3), 3)
    assert push(shard, 100, 3, 0, 3, "nobody waits") == [Answer(100, 3)]
    assert push(shard, 101, 0, 3, 3, "a") == push(shard, 102, 1, 3, 3, "b") == []
    assert push(shard, 103, 3, 1, 3, "c")[0] == ApplyUpdate(["a", "b", "c"])
    assert (shard.dropped, shard.clocks) == (1, [4, 4, 3, 2])


def test_all_but_one_may_be_backups():
    """The fastest makes each update, alone: it is no asynchronous job, where all gradients count."""
    shard = ParameterShard("s", Policy(3, 1, is_backup=True))
    assert push(shard, 1, 2, 0, 0, "first")[0] == ApplyUpdate(["first"])
    assert push(shard, 2, 0, 0, 0, "late") == [Answer(2, 1)]
    assert push(shard, 3, 0, 1, 1, "second")[0] == ApplyUpdate(["second"])
    assert push(shard, 4, 1, 0, 0, "later") == [Answer(4, 2)]
    assert (shard.version, shard.dropped, shard.clocks) == (2, 2, [2, 1, 1])


def test_what_a_straggler_has_left_when_the_others_are_done_is_no_update():
    """Worker 0 has made its steps and stays: it evaluates, or waits for the others."""
    shard = straggling(Policy(3, 2), 5)
    assert shard.handle(WorkerLeft(1)) == []
    for clock in range(5):
        assert push(shard, 100 + clock, 2, clock, 5) == [Answer(100 + clock, 5)]
    assert (shard.version, shard.dropped, shard.clocks) == (5, 5, [5, 5, 5])
    assert push(shard, 200, 2, 5, 5, "a step more than theirs")[0] == ApplyUpdate(["a step more than theirs"])


def test_the_number_of_spare_workers_stays_when_members_leave():
    shard = ParameterShard("s", Policy(4, 3))
    push(shard, 1, 0, 0, 0, "a")
    assert shard.handle(WorkerLeft(3)) == []
    assert push(shard, 2, 1, 0, 0, "b")[0] == ApplyUpdate(["a", "b"])
    assert shard.handle(WorkerLeft(2)) == []
    assert push(shard, 3, 1, 1, 1, "c")[0] == ApplyUpdate(["c"])


def test_a_gradient_from_a_version_that_was_lost_is_dropped_too():
    shard = sync(2)
    assert push(shard, 1, 0, 0, 3, "from the future") == [Answer(1, 0)]


def test_a_gradient_that_comes_again_is_used_once():
    shard = sync(2)
    push(shard, 1, 0, 0, 0, "first")
    push(shard, 2, 0, 0, 0, "again")
    assert push(shard, 3, 1, 0, 0, "b")[0] == ApplyUpdate(["again", "b"])
    assert push(shard, 4, 0, 0, 0, "and again") == [Answer(4, 1)]
    assert shard.version == 1


def test_an_update_that_fails_is_everybodys_error_and_leaves_the_version():
    shard = sync(2)
    shard.handle(GradientPushed(1, 0, 0, 0, "a"))
    shard.handle(GradientPushed(2, 1, 0, 0, "b"))
    error = UnavailableError("no")
    assert shard.handle(UpdateEnded(error)) == [Answer(1, None, error), Answer(2, None, error)]
    assert (shard.version, shard.clocks) == (0, [0, 0])
    push(shard, 3, 0, 0, 0, "a")
    assert push(shard, 4, 1, 0, 0, "b")[0] == ApplyUpdate(["a", "b"])


def test_each_gradient_is_an_update_and_its_staleness_is_counted():
    shard = ParameterShard("s", Policy(2))
    push(shard, 1, 0, 0, 0)
    push(shard, 2, 0, 1, 1)
    push(shard, 3, 1, 0, 0)
    assert shard.staleness == Counter({0: 2, 2: 1})
    assert histogram(shard.staleness) == [2, 0, 1]
    assert histogram({}) == []
    assert histogram({-1: 2}) == [2]


# --- steps begin


def test_who_is_too_far_ahead_waits_for_the_slowest():
    shard = ParameterShard("s", Policy(2, 1, 1))
    for clock in range(2):
        assert shard.handle(StepBegun(clock, 0, clock)) == [Answer(clock, clock)]
        push(shard, 10, 0, clock, clock)
    assert shard.handle(StepBegun(3, 0, 2)) == []
    assert (shard.waits, shard.awaited()) == (1, [1])
    assert push(shard, 4, 1, 0, 0)[1:] == [Answer(4, 3), Answer(3, 3)]


def test_who_has_left_is_not_waited_for_and_may_come_back():
    shard = ParameterShard("s", Policy(2, 1, 0))
    push(shard, 1, 0, 0, 0)
    assert shard.handle(StepBegun(2, 0, 1)) == []
    assert shard.handle(WorkerLeft(1)) == [Answer(2, 1)]
    shard.handle(StepBegun(3, 1, 0))
    assert shard.members == {0, 1}


def test_an_update_needs_nobody_who_has_left():
    shard = sync(3)
    push(shard, 1, 0, 0, 0, "a")
    push(shard, 2, 1, 0, 0, "b")
    assert shard.awaited() == [2]
    assert shard.handle(WorkerLeft(2)) == [ApplyUpdate(["a", "b"])]


def test_a_request_that_nobody_waits_for_gets_no_answer():
    shard = ParameterShard("s", Policy(2, 1, 0))
    push(shard, 1, 0, 0, 0)
    shard.handle(StepBegun(2, 0, 1))
    shard.handle(RequestLeft(2))
    assert push(shard, 3, 1, 0, 0)[1:] == [Answer(3, 2)]


# --- workers that are lost


def in_session(policy, session=7):
    """A shard whose workers have begun their first steps."""
    shard = ParameterShard("s", policy)
    for worker in range(policy.workers):
        shard.handle(StepBegun(100 + worker, worker, 0, session))
    return shard


def errors_of(actions):
    assert all(isinstance(action.error, DeadlineExceededError) for action in actions)
    return {action.request: action.error.message for action in actions}


def test_a_worker_that_is_lost_before_its_first_step_is_named():
    shard = ParameterShard("s", Policy(2, 2))
    assert shard.handle(WorkerCame(1, 8)) == []
    assert shard.role is Role.NEW
    shard.handle(StepBegun(1, 0, 0, 7))
    push(shard, 2, 0, 0, 0, "a")
    shard.handle(WorkerLost(1, 8, "no goodbye", 10.0))
    assert "lost worker 1 (at clock 0): no goodbye" in errors_of(shard.handle(Ticked(99.0)))[2]


def test_a_worker_that_is_lost_before_it_has_a_session_is_named():
    shard = ParameterShard("s", Policy(2, 2))
    shard.handle(WorkerLost(1, None, "no goodbye", 10.0))
    shard.handle(StepBegun(1, 0, 0, 7))
    push(shard, 2, 0, 0, 0, "a")
    shard.handle(WorkerLost(1, None, "told twice", 11.0))
    assert shard.handle(Ticked(10.0 + RETURN_S - 0.1)) == []
    errors = errors_of(shard.handle(Ticked(10.0 + RETURN_S)))
    assert "lost worker 1 (at clock 0): no goodbye" in errors[2]


def test_that_a_process_is_gone_says_nothing_of_a_worker_that_has_had_a_session():
    shard = in_session(Policy(2, 2))
    push(shard, 1, 0, 0, 0, "a")
    shard.handle(WorkerLost(1, None, "no goodbye", 10.0))
    assert shard.handle(Ticked(99.0)) == []


def test_those_who_need_a_lost_worker_are_told_its_name():
    shard = in_session(Policy(3, 3))
    push(shard, 1, 0, 0, 0, "a")
    push(shard, 2, 2, 0, 0, "c")
    shard.handle(WorkerLost(1, 7, "no goodbye", 10.0))
    assert shard.handle(Ticked(10.0 + RETURN_S - 0.1)) == []
    errors = errors_of(shard.handle(Ticked(10.0 + RETURN_S)))
    assert errors.keys() == {1, 2}
    assert "at version 0: expected steps of all workers; lost worker 1 (at clock 0): no goodbye" in errors[1]
    assert shard.handle(Ticked(99.0)) == []  # once


def test_a_lost_worker_that_has_given_its_gradient_is_not_missed():
    shard = in_session(Policy(2, 2))
    push(shard, 1, 1, 0, 0, "b")
    shard.handle(WorkerLost(1, 7, "no goodbye", 10.0))
    assert push(shard, 2, 0, 0, 0, "a")[0] == ApplyUpdate(["a", "b"])
    push(shard, 3, 0, 1, 1, "a")
    assert errors_of(shard.handle(Ticked(99.0))).keys() == {3}


def test_backup_workers_take_the_place_of_lost_ones_as_far_as_they_go():
    shard = in_session(Policy(4, 3))
    shard.handle(WorkerLost(1, 7, "no goodbye", 10.0))
    push(shard, 1, 0, 0, 0, "a")
    push(shard, 2, 2, 0, 0, "c")
    assert shard.handle(Ticked(99.0)) == []
    assert push(shard, 3, 3, 0, 0, "d")[0] == ApplyUpdate(["a", "c", "d"])
    shard.handle(WorkerLost(2, 7, "no goodbye", 99.0))
    push(shard, 4, 0, 1, 1, "a")
    assert errors_of(shard.handle(Ticked(199.0))).keys() == {4}


def test_a_step_that_is_too_far_ahead_of_a_lost_worker_is_told():
    shard = in_session(Policy(3, 1, 1))
    for worker in (0, 2):
        for clock in range(2):
            push(shard, 1, worker, clock, clock)
    assert shard.handle(StepBegun(2, 0, 2, 7)) == []
    shard.handle(WorkerLost(1, 7, "no goodbye", 10.0))
    assert "lost worker 1 (at clock 0)" in errors_of(shard.handle(Ticked(99.0)))[2]
    assert shard.handle(StepBegun(3, 2, 1, 7)) == [Answer(3, 4)]  # near enough still


def test_a_lost_worker_that_is_back_in_time_is_waited_for():
    shard = in_session(Policy(2, 2))
    push(shard, 1, 0, 0, 0, "a")
    shard.handle(WorkerLost(1, 7, "no goodbye", 10.0))
    shard.handle(StepBegun(2, 1, 0, 8))
    shard.handle(WorkerLost(1, 7, "again", 11.0))  # its old session: noticed late
    assert shard.handle(Ticked(99.0)) == []
    assert push(shard, 3, 1, 0, 0, "b")[0] == ApplyUpdate(["a", "b"])


def test_who_was_told_may_give_its_gradient_again():
    shard = in_session(Policy(2, 2))
    push(shard, 1, 0, 0, 0, "a")
    shard.handle(WorkerLost(1, 7, "no goodbye", 10.0))
    shard.handle(Ticked(99.0))
    push(shard, 2, 0, 0, 0, "a")
    shard.handle(StepBegun(3, 1, 0, 8))
    assert push(shard, 4, 1, 0, 0, "b")[0] == ApplyUpdate(["a", "b"])


# --- replicas


def replicated():
    shard = ParameterShard("s", Policy(3, 1, None, True))
    for worker in range(3):
        push(shard, worker, worker, 0, 0)
    return shard


def test_one_step_carries_the_state_and_what_others_did_goes_with_it():
    shard = replicated()
    assert shard.handle(StateAsked(1, 1, 0.0)) == [Answer(1, True)]
    assert shard.handle(StateAsked(2, 2, 0.0)) == []
    assert shard.handle(StateAsked(3, 3, 0.0)) == []
    assert shard.handle(StateReplicated(2)) == [Answer(2, False), Answer(3, True)]
    assert shard.handle(StateReplicated(3)) == []
    assert shard.handle(StateAsked(4, 3, 0.0)) == [Answer(4, False)]


def test_a_step_that_ends_before_it_has_carried_the_state_is_relieved():
    shard = replicated()
    shard.handle(StateAsked(1, 3, 0.0))
    assert shard.handle(StateAsked(2, 3, 1.0)) == []
    assert shard.handle(Ticked(LEASE_S)) == []
    assert shard.handle(Ticked(LEASE_S + 0.1)) == [Answer(2, True)]


def test_a_replica_takes_newer_states_only():
    shard = replicated()
    assert shard.handle(StateArrived(1, 5, [2, 2, 1], "five")) == []  # it is a primary of that generation
    copy = ParameterShard("s", Policy(3, 1, None, True))
    assert copy.handle(StateArrived(1, 5, [2, 2, 1], "five")) == [InstallState("five")]
    assert copy.handle(StateArrived(1, 4, [2, 1, 1], "four")) == []
    assert (copy.role, copy.version, copy.clocks) == (Role.SECONDARY, 5, [2, 2, 1])


def test_a_promoted_replica_goes_on_and_refuses_the_old_primary():
    copy = ParameterShard("s", Policy(2, 2, None, True))
    copy.handle(StateArrived(1, 5, [5, 4], "five"))
    with pytest.raises(FailedPreconditionError, match="was not promoted"):
        copy.handle(StepBegun(1, 0, 5))
    for _ in range(2):  # the second worker finds it promoted
        copy.handle(PromotionAsked())
        assert (copy.role, copy.generation) == (Role.PRIMARY, 2)
    with pytest.raises(AbortedError, match=r"generation 2.*got 1"):
        copy.handle(StateArrived(1, 6, [6, 6], "six"))
    assert push(copy, 2, 0, 4, 4) == [Answer(2, 5)]  # which it had: the step was in doubt
    assert copy.version == 5


def test_a_replica_without_a_state_is_not_promoted():
    with pytest.raises(FailedPreconditionError, match="before the first update"):
        ParameterShard("s", Policy(1)).handle(PromotionAsked())


# --- bad input


@pytest.mark.parametrize("quorum", [0, 3])
def test_a_quorum_that_cannot_be_is_refused(quorum):
    with pytest.raises(InvalidArgumentError, match="a quorum of 1 to 2 workers; got"):
        ParameterShard("s", Policy(2, quorum))


@pytest.mark.parametrize("event", [StepBegun(1, 2, 0), GradientPushed(1, -1, 0, 0, None)])
def test_a_worker_that_there_is_not_is_refused(event):
    with pytest.raises(InvalidArgumentError, match="a worker below 2"):
        ParameterShard("s", Policy(2)).handle(event)


# --- every run


class Run:
    """Workers that step, fail and try again, in an order that ``seed`` draws; what they know of the shard's
    answers. Those who have made their steps leave, unless they are in ``stays``.
    """

    def __init__(self, policy, steps, seed, stays=()):
        self.shard, self.steps, self.stays = ParameterShard("s", policy), steps, stays
        self.draw = random.Random(seed)
        self.clocks = [0] * policy.workers
        self.doing = [("begin", None)] * policy.workers
        self.requests = {}
        self.updates = []
        self.begun = Counter()
        self._next = 0

    def go(self):
        for _ in range(40 * self.steps * len(self.clocks)):
            able = [
                w
                for w in range(len(self.clocks))
                if self.doing[w][0] != "wait" and self.clocks[w] < self.steps
            ]
            if not able:
                break
            self.advance(self.draw.choice(able))
            self.shard.check()
        return self

    def advance(self, worker):
        what, tag = self.doing[worker]
        self._next += 1
        self.requests[self._next] = worker
        clock = self.clocks[worker]
        self.doing[worker] = ("wait", what)
        if what == "begin":
            self.perform(self.shard.handle(StepBegun(self._next, worker, clock)))
        else:
            self.perform(
                self.shard.handle(GradientPushed(self._next, worker, clock, tag, (worker, clock, tag)))
            )
            if self.draw.random() < 0.2 and self.clocks[worker] > clock:  # the answer was lost: once more
                again = self.shard.handle(GradientPushed(-1, worker, clock, tag, (worker, clock, tag)))
                assert again == [Answer(-1, self.shard.version)]
        self.leave_at_the_end(worker)

    def leave_at_the_end(self, worker):
        if self.clocks[worker] == self.steps and worker not in self.stays:
            self.perform(self.shard.handle(WorkerLeft(worker)))

    def perform(self, actions):
        for action in actions:
            if isinstance(action, ApplyUpdate):
                self.updates.append((self.shard.version, list(action.gradients)))
                self.perform(self.shard.handle(UpdateEnded()))
            else:
                self.answered(action)

    def answered(self, answer):
        worker = self.requests.pop(answer.request)
        _, what = self.doing[worker]
        if what == "begin":
            self.begun[worker] += 1
            self.doing[worker] = ("push", answer.value)
            ahead = self.clocks[worker] - min(self.clocks[w] for w in self.shard.members)
            if self.shard.policy.staleness is not None:
                assert ahead <= self.shard.policy.staleness
        else:
            self.clocks[worker] += 1
            self.doing[worker] = ("begin", None)
            self.leave_at_the_end(worker)
            members = [self.clocks[w] for w in self.shard.members]
            if members and self.shard.policy.staleness is not None:
                assert max(members) - min(members) <= self.shard.policy.staleness + 1


policies = st.integers(1, 4).flatmap(
    lambda workers: st.builds(
        Policy,
        st.just(workers),
        st.integers(1, workers),
        st.one_of(st.none(), st.integers(0, 3)),
        is_backup=st.booleans(),
    )
)


@given(policies, st.integers(1, 8), st.integers(0, 2**32))
def test_every_run_ends_and_uses_each_gradient_once_and_in_time(policy, steps, seed):
    if policy.drops_late:
        policy = policy._replace(staleness=None)
    run = Run(policy, steps, seed).go()
    shard = run.shard
    assert run.clocks == [steps] * policy.workers
    used = Counter((worker, clock) for _, gradients in run.updates for worker, clock, _ in gradients)
    assert all(count == 1 for count in used.values())
    assert sum(used.values()) + shard.dropped == steps * policy.workers
    assert [version for version, _ in run.updates] == list(range(shard.version))
    for version, gradients in run.updates:
        workers = [worker for worker, _, _ in gradients]
        assert workers == sorted(set(workers))
        if policy.drops_late:
            assert all(tag == version for _, _, tag in gradients)
    if policy.quorum == policy.workers or not policy.drops_late:
        assert shard.dropped == 0
    assert sum(shard.staleness.values()) == sum(used.values())


spares = st.integers(3, 5).flatmap(
    lambda workers: st.builds(
        Policy, st.just(workers), st.integers(1, workers - 1), st.none(), is_backup=st.just(True)
    )
)


@given(spares, st.integers(1, 8), st.integers(0, 2**32), st.sets(st.integers(0, 4)))
def test_with_spare_workers_a_job_makes_as_many_updates_as_steps(policy, steps, seed, stays):
    run = Run(policy, steps, seed, stays).go()
    assert run.clocks == [steps] * policy.workers
    assert run.shard.version == steps


def test_waits_are_fewer_with_more_staleness():
    waits = [Run(Policy(4, 1, s), 200, 7).go().shard.waits for s in (0, 1, 3, 10, 40)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > waits[-1]
    assert Run(Policy(4, 1, None), 200, 7).go().shard.waits == 0
