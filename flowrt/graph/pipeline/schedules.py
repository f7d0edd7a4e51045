"""`order`: the published schedules, as rows of one table, merged into lines of actions by one generator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from flowrt.errors import InvalidArgumentError, nearest
from flowrt.graph.pipeline.actions import Action, Schedule, check_sizes, stages_of

Pass: TypeAlias = tuple[int, int]
"""A stage and a micro-batch."""


class Device(NamedTuple):
    """Device ``i`` of a pipeline of ``p`` devices, with ``m`` micro-batches and ``v`` chunks per device."""

    i: int
    p: int
    m: int
    v: int


class Row(NamedTuple):
    """The rules of one schedule.

    A device runs ``ahead`` forward passes, then in turn a backward pass and a forward pass. If ``split``, the
    backward pass is I, and W comes after it, at most ``behind`` passes late: ``behind(device, k)`` is the
    number of W's still to do after the k-th I. ``passes`` are the order of the forward passes and that of
    the backward passes; an item without a pass is a turn that is skipped.
    """

    passes: Callable[[Device], tuple[Sequence[Pass | None], Sequence[Pass | None]]]
    ahead: Callable[[Device], int]
    behind: Callable[[Device, int], int] = lambda device, k: 0
    split: bool = False
    vee: bool = False
    chunks: range = range(1, 2)
    """Numbers of chunks that it may have; the first is the default."""


def in_groups(device: Device) -> tuple[list[Pass | None], list[Pass | None]]:
    """Passes by groups of micro-batches: a group goes through all chunks before the next one begins."""
    stages = stages_of(device.i, device.p, device.v, vee=False)
    forwards: list[Pass | None] = []
    backwards: list[Pass | None] = []
    first = 0
    for size in group_sizes(device):
        group = range(first, first + size)
        forwards += [(stage, k) for stage in stages for k in group]
        backwards += [(stage, k) for stage in reversed(stages) for k in group]
        first += size
    return forwards, backwards


def group_sizes(device: Device) -> list[int]:
    """Sizes of the groups, as equal as possible, and not below p unless m is.

    A smaller group would reach the last stage before its turn there, and every device would wait for it.
    """
    number = max(1, device.m // device.p)
    size, larger = divmod(device.m, number)
    return [size + 1] * larger + [size] * (number - larger)


def along_the_vee(device: Device) -> tuple[list[Pass | None], list[Pass | None]]:
    """Passes of a V: chunk 0 goes down the devices, chunk 1 comes back up, so device 0 also has the loss.

    The first forward passes of a device fill the time until chunk 1 arrives; then chunk 1 alternates with
    chunk 0. Fewer than 2p - 1 micro-batches do not fill the V: their order is that of 2p - 1, and the turns
    of the absent ones are skipped.
    """
    i, p, m, _ = device
    steady = max(m, 2 * p - 1) - p
    forwards = [0] * (2 * (p - i) - 1) + [1, 0] * i + [1] * (p - i) + [0, 1] * steady
    backwards = [1] * (p - i) + [0, 1] * (steady + i) + [0] * (p - i)
    return _numbered(forwards, device), _numbered(backwards, device)


def _numbered(chunks: Iterable[int], device: Device) -> list[Pass | None]:
    """The passes of a sequence of chunks: the k-th time that a chunk comes, it is for micro-batch k."""
    stages = stages_of(device.i, device.p, device.v, vee=True)
    count = [0] * device.v
    passes: list[Pass | None] = []
    for chunk in chunks:
        passes.append((stages[chunk], count[chunk]) if count[chunk] < device.m else None)
        count[chunk] += 1
    return passes


def _behind_in_the_vee(device: Device, k: int) -> int:
    """None, until I's alone keep the devices before this one busy at the end: 2i of them."""
    i, p, m, _ = device
    at_once = 2 * (max(m, 2 * p - 1) - p) + p - i
    return min(max(0, k + 1 - at_once), 2 * i)


TABLE: dict[str, Row] = {
    "naive": Row(in_groups, ahead=lambda d: 1),
    "gpipe": Row(in_groups, ahead=lambda d: d.m),
    "1f1b": Row(in_groups, ahead=lambda d: d.p - d.i),
    "interleaved": Row(
        in_groups,
        ahead=lambda d: 2 * (d.p - d.i - 1) + (d.v - 1) * max(group_sizes(d)) + 1,
        chunks=range(2, 1 << 16),
    ),
    "zb_h1": Row(in_groups, ahead=lambda d: d.p - d.i, behind=lambda d, k: d.i, split=True),
    "zb_h2": Row(in_groups, ahead=lambda d: 2 * (d.p - d.i) - 1, behind=lambda d, k: 2 * d.i, split=True),
    "zbv": Row(
        along_the_vee, ahead=lambda d: 2 * d.p, behind=_behind_in_the_vee, split=True, vee=True,
        chunks=range(2, 3),
    ),
}  # fmt: skip
"""GPipe (Huang et al., 2019), 1F1B and interleaved 1F1B (Narayanan et al., 2021), ZB-H1, ZB-H2 and ZB-V (Qi
et al., 2024). Naive runs each micro-batch alone."""


def order(name: str, devices: int, micro_batches: int, chunks: int | None = None) -> Schedule:
    """The schedule ``name`` of `TABLE`, for ``devices`` with ``chunks`` stages each.

    The order does not depend on times, and any number of micro-batches has one. Interleaved keeps its bubble
    with at least ``devices`` of them, zb_h2 and zbv with at least 2 * ``devices`` - 1.

    >>> [str(action) for action in order("1f1b", devices=2, micro_batches=2).actions[1]]
    ['F(1,0)', 'B(1,0)', 'F(1,1)', 'B(1,1)']

    Raises `InvalidArgumentError` for another name, numbers below 1, and ``chunks`` that the schedule cannot
    have.
    """
    row = TABLE.get(name)
    if row is None:
        hint = nearest(name, TABLE)
        raise InvalidArgumentError(f"schedule: expected one of {', '.join(TABLE)}; got {name!r}.{hint}")
    chunks = row.chunks[0] if chunks is None else chunks
    check_sizes(name, devices, micro_batches, chunks)
    if chunks not in row.chunks:
        wanted = str(row.chunks[0]) if len(row.chunks) == 1 else f"at least {row.chunks[0]}"
        raise InvalidArgumentError(f"schedule {name!r}: chunks: expected {wanted}; got {chunks}")
    each = [Device(i, devices, micro_batches, chunks) for i in range(devices)]
    lines = tuple(tuple(_line(row, device)) for device in each)
    return Schedule(name, micro_batches, chunks, row.vee, row.split, lines)


def _line(row: Row, device: Device) -> Iterator[Action]:
    forwards, backwards = row.passes(device)
    ahead = row.ahead(device)
    yield from (Action("F", *each) for each in forwards[:ahead] if each)
    late: deque[Pass] = deque()
    for k, backward in enumerate(backwards):
        if backward:
            yield Action("I" if row.split else "B", *backward)
            if row.split:
                late.append(backward)
        while len(late) > row.behind(device, k):
            yield Action("W", *late.popleft())
        forward = forwards[ahead + k] if ahead + k < len(forwards) else None
        if forward:
            yield Action("F", *forward)
    yield from (Action("W", *each) for each in late)
