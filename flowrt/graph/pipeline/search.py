"""`best_schedule`: the fastest of the published schedules and of greedy ones, for given times and memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Schedule, check_sizes
from flowrt.graph.pipeline.greedy import greedy_schedule
from flowrt.graph.pipeline.replay import peaks, play
from flowrt.graph.pipeline.schedules import TABLE, order
from flowrt.graph.pipeline.times import EQUAL, AnyTimes, Number, Times, in_ticks

AUTO = "auto"
"""The name of a schedule that `best_schedule` finds."""


def best_schedule(
    devices: int,
    micro_batches: int,
    times: AnyTimes = EQUAL,
    chunks: int | None = None,
    hop: Number = 0,
    most_held: Number = math.inf,
) -> Schedule:
    """The schedule with the least makespan of those that hold at most ``most_held`` activations per device.

    ``most_held`` counts micro-batches, as `Replay.peaks` does. Candidates are all rows of `TABLE`, and greedy
    schedules with split backward passes, called "auto". So no row that fits is faster; of equally fast ones,
    the one that holds least is taken. ``chunks`` restricts the stages per device, which are otherwise 1 and
    2, or as many as ``times`` has. Results are equal in every process.

    >>> best_schedule(4, 16).name, best_schedule(4, 16, most_held=1).name
    ('zbv', 'auto')

    Raises `InvalidArgumentError` for sizes and times that are none, and for ``most_held`` below 1.
    """
    check_sizes(AUTO, devices, micro_batches, 1 if chunks is None else chunks)
    if not most_held >= 1:
        raise InvalidArgumentError(
            f"schedule {AUTO!r}: most_held: expected a number >= 1, for one micro-batch; got {most_held!r}"
        )
    candidates = (
        schedule
        for number in _numbers_of_chunks(devices, times, chunks)
        for schedule in _candidates(devices, micro_batches, number, times, hop, most_held)
    )

    def cost(schedule: Schedule) -> tuple[Fraction, Fraction]:
        ticks = in_ticks(times, schedule.stages, schedule.chunks, hop)
        return max(play(schedule, ticks).end.values()) * ticks.tick, max(peaks(schedule))

    return min(candidates, key=cost)


def _numbers_of_chunks(devices: int, times: AnyTimes, chunks: int | None) -> tuple[int, ...]:
    if chunks is not None:
        return (chunks,)
    return (1, 2) if isinstance(times, Times) else (max(1, len(times) // devices),)


def _candidates(
    devices: int, micro_batches: int, chunks: int, times: AnyTimes, hop: Number, most_held: Number
) -> Iterator[Schedule]:
    """Schedules with ``chunks``; those with a V only where it is another order than without."""
    for name, row in TABLE.items():
        if chunks in row.chunks:
            row_schedule = order(name, devices, micro_batches, chunks)
            if max(peaks(row_schedule)) <= most_held:
                yield row_schedule
    ticks = in_ticks(times, devices * chunks, chunks, hop)
    every = micro_batches * chunks
    limit = every if most_held * chunks >= every else int(most_held * chunks)
    # More room is not always faster: a forward pass that is taken early may be in the way of a backward pass.
    rooms = {min(limit, room) for room in (devices * chunks, 2 * devices * chunks, limit)}
    for vee in (False, True) if chunks > 1 and devices > 1 else (False,):
        outline = Schedule(AUTO, micro_batches, chunks, vee, split=True, actions=((),) * devices)
        for room in sorted(rooms):
            yield greedy_schedule(outline, ticks, room)
