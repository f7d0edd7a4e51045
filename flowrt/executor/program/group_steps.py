"""Steps with ranks of groups: a failing step aborts its groups, so that the other ranks are notified at once.

Otherwise the other ranks would wait in vain until their timeout.

The end of the data is not a failure. A rank that reaches it waits for the others there: if all arrive, their
groups continue with the next epoch; if one is in a collective instead, all end with the same error. The
step's deadline and cancellation also end this wait, and those groups that are still incomplete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from flowrt.errors import AbortedError, FailedPreconditionError, OpError, OutOfRangeError
from flowrt.graph.node import Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.group_transfer import GROUP_OPS
from flowrt.graph.resources.groups import Member, joined_rank, member_of
from flowrt.graph.resources.step_context import StepEnd, step_scope

Rank: TypeAlias = tuple[str, int]
"""The key of a joined group, and the rank in it."""


def ranks_in(subgraph: Subgraph) -> frozenset[Rank]:
    """The ranks with operations in ``subgraph``, including its functions."""
    found: set[Rank] = set()
    for node in subgraph:
        if node.op in GROUP_OPS:
            found.add(joined_rank(node.attrs["group_key"], node.attrs["rank"]))
        elif node.op.effect is Effect.NESTED:
            found |= frozenset().union(*map(ranks_in, owned_subgraphs(node.attrs)))
    return frozenset(found)


def end_groups(ranks: Iterable[Rank], error: BaseException, step: StepEnd) -> None:
    """Abort the groups of ``ranks`` with ``error``, since their ``step`` has failed. Groups that were left
    before are kept, and at the end of the data those in which all ranks have arrived in time.
    """
    members = list(_joined(ranks))
    if isinstance(error, OutOfRangeError):
        with step_scope(step):
            _meet_at_end(members)
        return
    known = error if isinstance(error, OpError) else AbortedError(f"a rank's step failed: {error!r}")
    for member in members:
        member.abort(known)


def _meet_at_end(members: Sequence[Member]) -> None:
    """Raises nothing: the next step gets the error that ended a group."""
    waits = [member.meet_at_end() for member in members]  # started together: ranks may have them in any order
    for member, wait in zip(members, waits, strict=True):
        try:
            wait()
        except OpError as error:  # the group's, which persists, or the error that ends the step
            member.abort(error)


def _joined(ranks: Iterable[Rank]) -> Iterator[Member]:
    for group_key, rank in ranks:
        with contextlib.suppress(FailedPreconditionError):  # not joined, which may be why the step failed
            yield member_of(group_key, rank)
