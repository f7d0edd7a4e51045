"""Steps with ranks of groups: a failing step aborts its groups, so that the other ranks are notified at once.

Otherwise the other ranks would wait in vain until their timeout.

The end of the data is not a failure. A rank that reaches it waits for the others there: if all arrive, their
groups continue with the next epoch; if one is in a collective instead, all end with the same error. The
step's deadline and cancellation also end this wait, and those groups that are still incomplete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, final

from flowrt.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    OpError,
    OutOfRangeError,
)
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.group_transfer import (
    GROUP_OPS,
    group_agree_op,
    group_start_op,
    group_wait_op,
)
from flowrt.graph.resources.groups import Member, joined_rank, member_of
from flowrt.graph.resources.step_context import StepEnd, step_scope
from flowrt.graph.resources.step_groups import PREFIX

Rank: TypeAlias = tuple[str, int]
"""The key of a joined group, and the rank in it."""


def ranks_in(subgraph: Subgraph) -> frozenset[Rank]:
    """The ranks with operations in ``subgraph``, including its functions; where ranks agree on their steps,
    all of this process.
    """
    return frozenset(
        joined_rank(node.attrs["group_key"], rank)
        for node in _group_nodes(subgraph)
        for rank in (node.attrs["ranks"] if node.op is group_agree_op else (node.attrs["rank"],))
    )


def gang_in(subgraph: Subgraph) -> frozenset[str]:
    """The devices on which ``subgraph``, placed, has collectives of joined groups; none if a group has ranks
    in other graphs: their sessions order their steps themselves, since each waits for the others.
    """
    nodes = [node for node in _group_nodes(subgraph) if not node.attrs["group_key"].startswith(PREFIX)]
    calls = [node for node in nodes if node.op is not group_wait_op]
    are_whole = all(node.op is group_start_op and node.attrs["is_whole"] for node in calls)
    return frozenset(node.device for node in calls) if are_whole else frozenset()


def _group_nodes(subgraph: Subgraph) -> Iterator[Node]:
    for node in subgraph:
        if node.op in GROUP_OPS:
            yield node
        elif node.op.effect is Effect.NESTED:
            for function in owned_subgraphs(node.attrs):
                yield from _group_nodes(function)


def end_groups(ranks: Iterable[Rank], error: BaseException, step: StepEnd) -> None:
    """Abort the groups of ``ranks`` with ``error``, since their ``step`` has failed, and return when they use
    its memory no more. Groups that were left before are kept, and at the end of the data those in which all
    ranks have arrived in time.
    """
    members = list(_joined(ranks))
    if isinstance(error, OutOfRangeError):
        with step_scope(_EndOfData(step)):
            _meet_at_end(members)
        return
    known = error if isinstance(error, OpError) else AbortedError(f"a rank's step failed: {error!r}")
    for member in members:
        member.abort(known)
    for member in members:
        member.settle()


@final
class _EndOfData:
    """The end of a ``step`` from outside. The end of the data, which its programs end each other with, is
    why the ranks meet.
    """

    def __init__(self, step: StepEnd) -> None:
        self._step = step
        self.number = step.number

    def check(self) -> None:
        try:
            self._step.check()
        except OutOfRangeError as error:
            if self.remaining_s() == 0:
                raise DeadlineExceededError("the step did not end before its deadline") from error

    def remaining_s(self) -> float | None:
        return self._step.remaining_s()


def _meet_at_end(members: Sequence[Member]) -> None:
    """Raises nothing: the next step gets the error that ended a group."""
    waits = [member.meet_at_end() for member in members]  # started together: ranks may have them in any order
    for member, wait in zip(members, waits, strict=True):
        try:
            wait()
        except OpError as error:  # the group's, which persists, or the error that ends the step
            member.abort(error)
            member.settle()


def _joined(ranks: Iterable[Rank]) -> Iterator[Member]:
    for group_key, rank in ranks:
        with contextlib.suppress(FailedPreconditionError):  # not joined, which may be why the step failed
            yield member_of(group_key, rank)
