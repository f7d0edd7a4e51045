"""`greedy_schedule`: list scheduling: a device that is free starts the most urgent action that is ready."""

from __future__ import annotations

import dataclasses
import heapq
from collections import deque
from collections.abc import Iterator

from flowrt.graph.pipeline.actions import Action, Schedule, dependencies
from flowrt.graph.pipeline.times import Ticks


def greedy_schedule(outline: Schedule, ticks: Ticks, most_held: int) -> Schedule:
    """``outline``, a schedule with empty lines, filled with all actions in the order in which they start.

    A free device takes a backward pass (or I) if one is ready, that of the oldest micro-batch; else a forward
    pass, if its activations fit, that of its latest chunk; else W. A device holds the activations of at most
    ``most_held`` passes, a number >= ``outline.chunks``.

    It always ends. A forward pass is taken only if the later chunks of one micro-batch still fit after it. So
    if nothing else can run, the ready forward pass of the latest stage fits: on its device only earlier
    chunks hold activations, and the last of them to start left room for it.
    """
    assert most_held >= outline.chunks, f"{most_held} activations do not fit a micro-batch's {outline.chunks}"
    devices = [_Device(outline, most_held) for _ in range(outline.devices)]
    home = [outline.device_of(stage) for stage in range(outline.stages)]
    arrivals: dict[Action, list[int]] = {}  # of an action that still waits: when results reached it
    # (time, device, actions that are ready then: one, or none if the device is free again)
    events: list[tuple[int, int, tuple[Action, ...]]] = [
        (0, home[0], (Action("F", 0, k),)) for k in range(outline.micro_batches)
    ]
    while events:
        now = events[0][0]
        touched: set[int] = set()
        while events and events[0][0] == now:
            _, device, ready = heapq.heappop(events)
            touched.add(device)
            for action in ready:
                devices[device].add(action)
        for device in sorted(touched):
            started = devices[device].start(now, ticks)
            if started is None:
                continue
            end = devices[device].free
            heapq.heappush(events, (end, device, ()))
            for reader in _readers(started, outline):
                known = arrivals.setdefault(reader, [])
                known.append(end if home[reader.stage] == device else end + ticks.hop)
                if len(known) == len(dependencies(reader, outline.stages)):
                    heapq.heappush(events, (max(arrivals.pop(reader)), home[reader.stage], (reader,)))
    return dataclasses.replace(outline, actions=tuple(tuple(device.line) for device in devices))


class _Device:
    """One device: its line so far, when it is free, its ready actions, the activations that it holds."""

    def __init__(self, outline: Schedule, most_held: int) -> None:
        self.line: list[Action] = []
        self.free = 0
        self._outline, self._most_held, self._held = outline, most_held, 0
        self._backwards: list[tuple[int, int]] = []  # a heap of (micro-batch, -stage)
        self._forwards: list[tuple[int, int]] = []  # a heap of (-stage, micro-batch)
        self._weights: deque[Action] = deque()

    def add(self, ready: Action) -> None:
        kind, stage, micro_batch = ready
        if kind == "F":
            heapq.heappush(self._forwards, (-stage, micro_batch))
        elif kind == "W":
            self._weights.append(ready)
        else:
            heapq.heappush(self._backwards, (micro_batch, -stage))

    def start(self, now: int, ticks: Ticks) -> Action | None:
        """The action that the device starts at ``now``; None if it is busy, or none can start."""
        action = self._next() if self.free <= now else None
        if action is not None:
            self.line.append(action)
            self.free = now + ticks.of[action.stage][action.kind]
            self._held += {"F": 1, "I": 0, "B": -1, "W": -1}[action.kind]
        return action

    def _next(self) -> Action | None:
        if self._backwards:
            micro_batch, stage = heapq.heappop(self._backwards)
            return Action(self._outline.kinds[1], -stage, micro_batch)
        if self._forwards and self._fits(-self._forwards[0][0]):
            stage, micro_batch = heapq.heappop(self._forwards)
            return Action("F", -stage, micro_batch)
        return self._weights.popleft() if self._weights else None

    def _fits(self, stage: int) -> bool:
        """Whether a forward pass leaves room for those of the chunks after it."""
        later = self._outline.chunks - 1 - stage // self._outline.devices
        return self._held + 1 + later <= self._most_held


def _readers(action: Action, outline: Schedule) -> Iterator[Action]:
    """The actions that wait for ``action``: the inverse of `dependencies`."""
    kind, stage, micro_batch = action
    if kind == "F":
        yield Action(outline.kinds[1], stage, micro_batch)
        if stage + 1 < outline.stages:
            yield Action("F", stage + 1, micro_batch)
    elif kind != "W":
        if kind == "I":
            yield Action("W", stage, micro_batch)
        if stage:
            yield Action(kind, stage - 1, micro_batch)
