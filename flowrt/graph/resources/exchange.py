"""`exchange`: a text from every rank of a joined group to all, between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.graph.resources.groups import joined_member


def exchange(group_key: str, ranks: Sequence[int], text: str, name: str) -> list[str]:
    """The texts of all ranks of a group, by rank; this process has ``ranks`` of it, and gives each ``text``.

    All processes call it at the same time, under the same ``name``, and run no step of the group meanwhile.
    Blocks until all have come. Raises as `flowrt.graph.resources.groups.Member`.
    """
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = _gather(group_key, ranks, np.array([data.size], np.int64), f"{name}: sizes")
    rows = np.zeros([1, max(*sizes, 1)], np.uint8)
    rows[0, : data.size] = data
    found = _gather(group_key, ranks, rows, name)
    return [row[:size].tobytes().decode() for row, size in zip(found, sizes, strict=True)]


def _gather(group_key: str, ranks: Sequence[int], array: Any, edge: str) -> Any:
    members = [joined_member(group_key, rank) for rank in ranks]
    for member in members:
        member.start(edge, "AllGather", [array], {"axes": (0,), "plan": ""})
    (found,), *_ = [member.wait(edge) for member in members]  # of all: each has to take part to the end
    return found
