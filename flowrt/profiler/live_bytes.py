"""Bytes of tensors that are alive on each device during a step."""

from __future__ import annotations

from collections import defaultdict

from flowrt.profiler.steps import Operation, Step


def live_bytes(step: Step) -> dict[str, list[tuple[int, int]]]:
    """(time, bytes from then on) of each device, in order of time.

    A result is alive from the start of its operation to the end of its last reader; without a reader, such as
    a fetch, to the end of the step. Computed from shapes: a result computed in place is counted in addition
    to its operand; variables, constants and feeds, which existed before, are not counted.
    """
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for operation, last_use in _last_uses(step):
        if operation.nbytes:
            changes[operation.device] += [(operation.start, operation.nbytes), (last_use, -operation.nbytes)]
    return {device: _summed(sorted(each)) for device, each in changes.items()}


def _last_uses(step: Step) -> list[tuple[Operation, int]]:
    """Each operation with the end of its results. A loop makes a tensor of one name again and again: each but
    the last ends with its last reader in any case.
    """
    uses: list[tuple[Operation, int]] = []
    newest: dict[tuple[str, str], int] = {}
    read: set[int] = set()
    for operation in step.operations:
        for operand in operation.operands:
            number = newest.get((operation.device, operand.removeprefix("^")))
            if number is not None:
                read.add(number)
                uses[number] = (uses[number][0], max(uses[number][1], operation.end))
        read.add(newest.get((operation.device, operation.name), -1))  # executed again: no fetch
        newest[operation.device, operation.name] = len(uses)
        uses.append((operation, operation.end))
    return [
        (operation, end if number in read else max(end, step.end))
        for number, (operation, end) in enumerate(uses)
    ]


def _summed(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Running sums, one for each time."""
    totals: dict[int, int] = {}
    total = 0
    for time, change in changes:
        total += change
        totals[time] = total
    return list(totals.items())
