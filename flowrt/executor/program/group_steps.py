"""Steps with ranks of groups: one that fails ends its groups, so that the other ranks hear of it at once.

What the other ranks wait for would never come; they would only hear of it when their patience is over.

The end of the data is no failure. A rank whose step has come to it waits for the others there: if all come,
their groups go on, with the next epoch; where one is in a collective instead, all end with the same error.
The wait is the step's own: its deadline and its cancellation end it, and those of its groups that are still
incomplete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from flowrt.errors import AbortedError, FailedPreconditionError, OpError, OutOfRangeError
from flowrt.graph.node import Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.group_transfer import GROUP_OPS
from flowrt.graph.resources.groups import Member, member_of
from flowrt.graph.resources.step_context import StepEnd, step_scope

Rank: TypeAlias = tuple[str, int]
"""The key of a group, and the rank in it."""


def ranks_in(subgraph: Subgraph) -> frozenset[Rank]:
    """The ranks whose operations ``subgraph`` has, in its functions too."""
    found: set[Rank] = set()
    for node in subgraph:
        if node.op in GROUP_OPS:
            found.add((node.attrs["group_key"], node.attrs["rank"]))
        elif node.op.effect is Effect.NESTED:
            found |= frozenset().union(*map(ranks_in, owned_subgraphs(node.attrs)))
    return frozenset(found)


def end_groups(ranks: Iterable[Rank], error: BaseException, step: StepEnd) -> None:
    """The groups of ``ranks`` end with ``error``: their ``step`` has failed. Those that were left before
    stay, and at the end of the data those of which all ranks have come to it before the step must end.
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
    """Raises nothing: the next step hears what has ended a group."""
    waits = [member.meet_at_end() for member in members]  # at once: ranks may have them in any order
    for member, wait in zip(members, waits, strict=True):
        try:
            wait()
        except OpError as error:  # the group's, which stays, or what ends the step
            member.abort(error)


def _joined(ranks: Iterable[Rank]) -> Iterator[Member]:
    for group_key, rank in ranks:
        with contextlib.suppress(FailedPreconditionError):  # not joined, which may be why the step failed
            yield member_of(group_key, rank)
