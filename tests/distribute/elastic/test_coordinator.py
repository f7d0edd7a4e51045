"""`Coordinator`: changes one by one. Thousands of random ones are in `test_simulated_job`."""

from __future__ import annotations

from flowrt.distribute.elastic.coordinator import (
    NO_COMMIT,
    Action,
    Announce,
    Coordinator,
    End,
    Event,
    Finished,
    Form,
    Joined,
    Left,
    Lost,
    OwnEnded,
    Ready,
    Refuse,
    Ticked,
)

LAST_CALL_S, TIMEOUT_S = 5.0, 60.0
LOST_2 = Announce((), "worker 2 was lost: killed", at_once=True)


def coordinator(least: int, most: int) -> Coordinator:
    return Coordinator(least, most, LAST_CALL_S, TIMEOUT_S)


def came(*members: int, host: str = "a") -> list[Event]:
    return [Joined(member, f"worker {member}", host) for member in members]


def outcome(machine: Coordinator, *events: Event) -> list[Action]:
    actions: list[Action] = []
    for event in events:
        actions += machine.handle(event)
        machine.check()
    return actions


def test_all_that_may_come_form_a_group() -> None:
    assert outcome(coordinator(2, 3), *came(1, 2, 3)) == [Form((1, 2, 3), 1, NO_COMMIT)]


def test_a_group_that_is_large_enough_forms_after_a_last_call() -> None:
    machine = coordinator(2, 4)
    assert outcome(machine, *came(1, 2), Ticked(LAST_CALL_S - 1)) == []
    assert outcome(machine, *came(3), Ticked(2 * LAST_CALL_S - 2)) == []
    assert outcome(machine, Ticked(2 * LAST_CALL_S)) == [Form((1, 2, 3), 1, NO_COMMIT)]


def test_survivors_form_a_group_that_begins_with_the_highest_commit() -> None:
    machine = coordinator(2, 4)
    outcome(machine, *came(1, 2, 3, 4))
    assert outcome(machine, Lost(2, "killed")) == [
        Announce((1, 3, 4), "worker 2 was lost: killed", at_once=True)
    ]
    assert outcome(machine, Ready(1, 1, 9, "x"), Ready(4, 1, 10, "x")) == []
    assert outcome(machine, Ready(3, 1, 10, "x")) == [Form((3, 4, 1), 2, 10)]


def test_a_member_that_failed_on_its_own_ends_the_epoch_of_all() -> None:
    """The link between two members broke: both live, and both can reach the coordinator."""
    machine = coordinator(1, 3)
    outcome(machine, *came(1, 2, 3))
    assert outcome(machine, Ready(2, 1, 4, "a link")) == [Announce((1, 3), "worker 2: a link", at_once=True)]


def test_who_comes_is_taken_in_at_the_next_commit() -> None:
    machine = coordinator(1, 3)
    outcome(machine, *came(1, 2), Ticked(LAST_CALL_S))
    assert outcome(machine, *came(3)) == [Announce((1, 2), "worker 3 came", at_once=False)]
    assert outcome(machine, Ready(2, 1, 7, "c")) == [Announce((1,), "worker 2: c", at_once=True)]
    assert outcome(machine, Ready(1, 1, 7, "c")) == [Form((1, 2, 3), 2, 7)]


def test_a_spare_takes_the_place_of_a_lost_member_in_the_same_change() -> None:
    machine = coordinator(2, 2)
    outcome(machine, *came(1, 2))
    assert outcome(machine, *came(3)) == []
    outcome(machine, Lost(1, "killed"))
    assert outcome(machine, Ready(2, 1, 5, "x")) == [Form((2, 3), 2, 5)]


def test_who_leaves_in_order_is_no_failure_of_its_host() -> None:
    machine = coordinator(1, 4)
    outcome(machine, *came(1, host="a"), *came(2, 3, host="b"), Ticked(LAST_CALL_S))
    for number in range(4, 10):
        outcome(machine, *came(number, host="a"), Left(number))
    assert not any(isinstance(action, Refuse) for action in outcome(machine, *came(10, host="a")))


def test_a_host_that_fails_three_times_is_left_out_if_the_others_are_enough() -> None:
    machine = coordinator(2, 4)
    outcome(machine, *came(1, 2, host="good"), *came(3, 4, host="bad"))
    for epoch, (lost, new) in enumerate([(3, 5), (5, 6)], 1):
        outcome(machine, Lost(lost, "killed"), *came(new, host="bad"))
        ready = [Ready(each, epoch, epoch, "x") for each in (1, 2, 4)]
        assert outcome(machine, *ready) == [Form((1, 2, 4, new), epoch + 1, epoch)]
    why = "host bad is left out, since workers failed there in 3 epochs"
    assert outcome(machine, Lost(6, "killed"))[-1] == Refuse((4,), why)
    assert outcome(machine, *came(9, host="bad")) == [Refuse((9,), why)]
    assert outcome(machine, Ready(1, 3, 5, "x"), Ready(2, 3, 5, "x")) == [Form((1, 2), 4, 5)]


def test_workers_of_a_host_that_fail_together_are_one_failure() -> None:
    machine = coordinator(1, 4)
    outcome(machine, *came(1, host="good"), *came(2, 3, 4, host="bad"))
    outcome(machine, *[Lost(number, "killed") for number in (2, 3, 4)])
    assert outcome(machine, Ready(1, 1, 0, "x"), *came(5, host="bad"))[0] == Form((1,), 2, 0)


def test_the_only_host_is_never_left_out() -> None:
    machine = coordinator(1, 2)
    outcome(machine, *came(1, 2))
    for epoch in range(1, 10):
        outcome(machine, Lost(epoch + 1, "killed"), *came(epoch + 2))
        assert outcome(machine, Ready(1, epoch, epoch, "x")) == [Form((1, epoch + 2), epoch + 1, epoch)]


def test_the_job_ends_when_all_are_done() -> None:
    machine = coordinator(1, 2)
    outcome(machine, *came(1, 2, 3))
    assert outcome(machine, Finished(1, 1, 9)) == []
    assert outcome(machine, Finished(2, 1, 9)) == [End((1, 2, 3), None)]
    assert outcome(machine, *came(4)) == []


def test_who_was_done_helps_the_others_again() -> None:
    """A member is lost in the last step, which another has not done."""
    machine = coordinator(1, 3)
    outcome(machine, *came(1, 2, 3), Finished(1, 1, 9))
    assert outcome(machine, Lost(2, "killed")) == [Announce((3,), "worker 2 was lost: killed", at_once=True)]
    assert outcome(machine, Ready(3, 1, 8, "x")) == [Form((1, 3), 2, 9)]


def test_the_loss_of_a_member_when_all_others_are_done_ends_the_job() -> None:
    machine = coordinator(1, 2)
    outcome(machine, *came(1, 2), Finished(1, 1, 9))
    assert outcome(machine, Lost(2, "killed")) == [LOST_2, End((1,), None)]


def test_a_loss_that_a_member_reports_first_is_named_all_the_same() -> None:
    """Its connection to the lost one may break before the coordinator's."""
    machine = coordinator(1, 2)
    outcome(machine, *came(1, 2))
    assert outcome(machine, Ready(1, 1, 4, "a link")) == [Announce((2,), "worker 1: a link", at_once=True)]
    assert outcome(machine, Lost(2, "killed")) == [LOST_2, Form((1,), 2, 4)]


def test_too_few_workers_fail_after_a_time() -> None:
    machine = coordinator(2, 3)
    outcome(machine, *came(1, 2, 3), Lost(2, "killed"), Lost(3, "killed"), Ready(1, 1, 3, "x"))
    assert outcome(machine, Ticked(TIMEOUT_S - 1)) == []
    (end,) = outcome(machine, Ticked(TIMEOUT_S))
    assert end == End((1,), "expected at least 2 workers within 60 s; got 1; worker 2 was lost: killed")


def test_nobody_is_waited_for_without_end_when_the_first_hosts_workers_have_ended() -> None:
    machine, end_s = coordinator(1, 2), 5.0 + TIMEOUT_S
    assert outcome(machine, Ticked(5.0), OwnEnded(), Ticked(end_s - 1)) == []
    assert outcome(machine, Ticked(end_s)) == [End((), "expected at least 1 workers within 60 s; got 0")]
    others = coordinator(1, 2)
    assert outcome(others, Ticked(5.0), OwnEnded(), *came(1, 2)) == [Form((1, 2), 1, NO_COMMIT)]
    assert outcome(others, OwnEnded(), Ticked(2 * end_s)) == []


def test_who_does_not_end_its_epoch_in_time_is_left_behind() -> None:
    machine = coordinator(1, 3)
    outcome(machine, *came(1, 2, 3), Lost(2, "killed"), Ready(1, 1, 3, "x"))
    refused, formed = outcome(machine, Ticked(TIMEOUT_S))
    assert refused == Refuse((3,), "it did not end its epoch within 60 s")
    assert formed == Form((1,), 2, 3)


def test_a_group_that_never_commits_ends_the_job() -> None:
    machine = coordinator(2, 2)
    outcome(machine, *came(1, 2))
    for epoch in (1, 2):
        actions = outcome(machine, Ready(1, epoch, NO_COMMIT, "a link"), Ready(2, epoch, NO_COMMIT, "x"))
        assert actions[-1] == Form((1, 2), epoch + 1, NO_COMMIT)
    actions = outcome(machine, Ready(1, 3, NO_COMMIT, "a link"), Ready(2, 3, NO_COMMIT, "x"))
    assert actions[-1] == End((1, 2), "3 epochs of the same workers without a commit: worker 1: a link")


def test_messages_of_an_earlier_epoch_are_ignored() -> None:
    machine = coordinator(1, 2)
    outcome(machine, *came(1, 2), Lost(2, "killed"), Ready(1, 1, 3, "x"))
    assert outcome(machine, Ready(1, 1, 3, "x"), Finished(1, 1, 3), Ready(7, 2, 1, "?")) == []
