"""Membership of a group, and agreement between its ranks. Pure.

The ranks of a group make the same calls in the same order. Each call has a number and a text, which every
rank compares with those of the others before it uses their bytes: on a mismatch, all raise one error that
shows both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from flowrt.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    UnavailableError,
)
from flowrt.rendezvous.channel.lifeline import CLOSED

TIMEOUT_S = 60.0
"""Time that a rank waits for another live one. A dead one is detected at once."""

END_OF_DATA = ";end of data"
"""Name of the call of ranks that have reached the end of their data: no other has a semicolon."""

MAX_TEXT = 240
"""Bytes of a call's text: with its length it has 256 in shared memory."""


@final
@dataclass(frozen=True, slots=True)
class Membership:
    """One rank's place in the group ``key``: it is ``rank`` of ``size``.

    ``addresses`` are ``host:port`` of all ranks, by rank, where they are reached that way; ``timeout_s`` is
    for how long it waits for a rank that lives; ``names`` are those of all ranks in errors, by default their
    numbers. Raises `InvalidArgumentError`.
    """

    key: str
    rank: int
    size: int
    addresses: tuple[str, ...] = ()
    timeout_s: float = TIMEOUT_S
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise InvalidArgumentError(f"{self}: expected a rank of 0 to {self.size - 1}; got {self.rank}")
        if self.addresses and len(self.addresses) != self.size:
            raise InvalidArgumentError(
                f"{self}: expected an address for each of {self.size} ranks; got {len(self.addresses)}"
            )
        if not self.timeout_s > 0:
            raise InvalidArgumentError(f"{self}: expected timeout_s > 0; got {self.timeout_s}")

    def __str__(self) -> str:
        return f"group {self.key!r}"

    def name_of(self, rank: int) -> str:
        name = self.names[rank] if self.names else f"rank {rank}"
        return f"{name} ({self.addresses[rank]})" if self.addresses else name

    def of(self, label: str, ranks: Sequence[int]) -> Membership:
        """The membership of the group ``label`` of ``ranks``, one of which is this."""
        addresses = tuple(self.addresses[rank] for rank in ranks if self.addresses)
        names = tuple(self.names[rank] for rank in ranks if self.names)
        return Membership(label, ranks.index(self.rank), len(ranks), addresses, self.timeout_s, names)

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]


class Call(NamedTuple):
    """One collective, as all ranks have to call it: the same ``dtype`` and ``shape``, a rank's share."""

    op: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    reduction: str = ""
    root: int | None = None
    name: str = ""

    def __str__(self) -> str:
        parts = [self.op, repr(self.name) if self.name else "", self.reduction]
        parts.append(f"{self.dtype}{list(self.shape)}" if self.dtype else "")
        parts.append("" if self.root is None else f"with root {self.root}")
        return " ".join(filter(None, parts))

    def text(self, number: int) -> bytes:
        """The text to compare, with the ``number`` of the call in the group. At most `MAX_TEXT` bytes."""
        text = f"{number}: {self}".encode()
        if len(text) <= MAX_TEXT:
            return text
        digest = hashlib.sha256(text).hexdigest()[:16].encode()
        return text[: MAX_TEXT - 20] + b" ..." + digest


# --- errors


def disagree(membership: Membership, texts: Sequence[tuple[int, bytes]]) -> OpError:
    """The error for ranks that call different collectives: ``texts`` are some ranks with their calls. If one
    has reached the end of its data it is an `OutOfRangeError`, else an `InvalidArgumentError`.
    """
    calls = "; ".join(f"{membership.name_of(rank)} {text.decode(errors='replace')}" for rank, text in texts)
    if any(END_OF_DATA.encode() in text for _, text in texts):
        return OutOfRangeError(f"{membership}: expected data at all ranks, or at none; got {calls}")
    return InvalidArgumentError(
        f"{membership}: expected all ranks to make the same calls in the same order; got {calls}. Does one "
        "of them run, save or restore something alone?"
    )


def missing(membership: Membership, ranks: Collection[int], doing: str) -> DeadlineExceededError:
    """The error for ``ranks`` that did not arrive in time."""
    names = ", ".join(membership.name_of(rank) for rank in sorted(ranks))
    return DeadlineExceededError(
        f"{membership}: {membership.name_of(membership.rank)} in {doing}: expected all {membership.size} "
        f"ranks within {membership.timeout_s:g} s; {names} did not come"
    )


def lost_rank(membership: Membership, rank: int, why: OpError) -> UnavailableError:
    """The error for a ``rank`` with a dead process or network."""
    hint = "; it has ended; did it run fewer steps?" if why.message.endswith(CLOSED) else ""
    return UnavailableError(f"{membership}: {membership.name_of(rank)} was lost: {why.message}{hint}")
