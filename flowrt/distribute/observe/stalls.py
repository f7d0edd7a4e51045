"""Detection of stalled steps: the missing tensors, their producers, and the last sign of each.

`StallWatch` periodically gets the keys that the steps of a task wait for. A wait unchanged for a while is a
`Stall`, reported once, and again when it has lasted twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, final

from flowrt.rendezvous.matching.key import parse_key
from flowrt.rendezvous.remote import source_task

STALL_S = 30.0
MAX_REPORTED_KEYS = 5


class Stall(NamedTuple):
    """``step`` has waited ``waited_s`` seconds for the same ``keys``."""

    step: int
    waited_s: float
    keys: tuple[str, ...]


class _Wait(NamedTuple):
    keys: frozenset[str]
    since: float
    report_at: float


@final
class StallWatch:
    """Waits of the steps of one task; those below ``after_s`` seconds are ignored. No clock, no thread."""

    def __init__(self, after_s: float = STALL_S) -> None:
        self._after_s = after_s
        self._waits: dict[int, _Wait] = {}

    def observe(self, now: float, waiting: Mapping[int, Iterable[str]]) -> list[Stall]:
        """Record that at ``now``, in seconds of a monotonic clock, each step of ``waiting`` waits for its
        keys. Returns the stalls to report.
        """
        before, self._waits = self._waits, {}
        stalls = []
        for step, found in waiting.items():
            keys = frozenset(found)
            if not keys:
                continue
            wait = before.get(step)
            if wait is None or wait.keys != keys:  # it gets on
                wait = _Wait(keys, now, now + self._after_s)
            if now >= wait.report_at:
                waited_s = now - wait.since
                stalls.append(Stall(step, waited_s, tuple(sorted(keys))))
                wait = wait._replace(report_at=wait.since + 2 * waited_s)
            self._waits[step] = wait
        return stalls


def report_stall(stall: Stall, task: str, last_heard: Callable[[str], str | None]) -> str:
    """Log text of ``task``: the step, its keys, the producing tasks, and ``last_heard(task)`` of each."""
    lines = [
        f"step {stall.step:x} in {task} has waited {stall.waited_s:.0f} s for {len(stall.keys)} tensors:"
    ]
    for key in stall.keys[:MAX_REPORTED_KEYS]:
        producer = source_task(key)
        heard = last_heard(producer) or "no sign of life"
        lines.append(f"  {parse_key(key).edge_name!r} of {producer}; its last: {heard} (key {key})")
    if (left := len(stall.keys) - MAX_REPORTED_KEYS) > 0:
        lines.append(f"  and {left} more")
    return "\n".join(lines)
