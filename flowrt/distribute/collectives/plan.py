"""The plan of a step: the collectives between graphs that it has, a line each, in their order.

Ranks that run one script have one plan. Its digest is compared once, before the first collective: where
graphs differ, no rank begins, and the error shows the first line that does, of two ranks. The plan of a step
with layouts is its whole global graph.
"""

from __future__ import annotations

import hashlib
from itertools import zip_longest

import numpy as np

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.errors import InvalidArgumentError


def check_plan(
    communicator: Communicator, plan: str, rule: str = "begin with the same collectives", name: str = "plan"
) -> None:
    """Called by all ranks at the same time. Raises `InvalidArgumentError`, with the broken ``rule``, on all
    unless all plans are one. ``name`` is what a rank does, for the error if others make another call.
    """
    digest = hashlib.sha256(plan.encode()).digest()
    digests = communicator.all_gather(np.frombuffer(digest, np.uint8)[None], name=name)
    others = np.flatnonzero((digests != digests[0]).any(axis=1))
    if not len(others):
        return
    plans, other = _gathered(communicator, plan.encode()), int(others[0])
    pairs = enumerate(zip_longest(*[plans[rank].splitlines() for rank in (0, other)], fillvalue="none"), 1)
    number, (first, second) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    name_of = communicator.membership.name_of
    raise InvalidArgumentError(
        f"{communicator.membership}: expected all ranks to {rule}; got, as number "
        f"{number}, {first} at {name_of(0)} and {second} at {name_of(other)}"
    )


def _gathered(communicator: Communicator, text: bytes) -> list[str]:
    """All ranks' texts."""
    sizes = communicator.all_gather(np.array([len(text)]), name="sizes of plans")
    padded = np.frombuffer(text.ljust(int(sizes.max())), np.uint8)
    rows = communicator.all_gather(padded[None], name="plans")
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]
