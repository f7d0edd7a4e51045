"""How many bytes of tensors are alive on each device during a step."""

from __future__ import annotations

from collections import defaultdict

from flowrt.profiler.steps import Operation, Step


def live_bytes(step: Step) -> dict[str, list[tuple[int, int]]]:
    """For each device (time, bytes from then on), in order of time.

    A result lives from the beginning of its operation to the end of the last one that reads it; one that
    nobody reads, a fetch for instance, to the end of the step. By the shapes: what is computed in the place
    of its operand is counted beside it, and variables, constants and feeds, which were there, are not.
    """
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for operation, last_use in _last_uses(step):
        if operation.nbytes:
            changes[operation.device] += [
                (operation.start, operation.nbytes),
                (last_use, -operation.nbytes),
            ]
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
        read.add(newest.get((operation.device, operation.name), -1))  # what comes again is no fetch
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
