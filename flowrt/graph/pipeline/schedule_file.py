"""`parse_schedule` and `format_schedule`: a schedule as text, one line per device.

    # two devices with one stage each       # stages 0 and 3 on device 0, 1 and 2 on device 1
    F0 F1 B0 F2 B1 B2                        0F0 0F1 3F0 3I0 3W0 ...
    F0 B0 F1 B1 F2 B2                        1F0 2F0 1F1 2I0 ...

An action is ``2F0``: the stage, the kind, the micro-batch, as in the files of torch.distributed.pipelining.
The stage is left out where each device has one. A ``#`` begins a comment; empty lines are skipped.
"""

from __future__ import annotations

import re
from typing import NamedTuple, cast

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Action, Kind, Schedule, device_of
from flowrt.graph.pipeline.validate import find_fault

_ACTION = re.compile(r"(\d{1,6})?([FBIW])(\d{1,9})", re.ASCII)


class Cell(NamedTuple):
    """An action in a text: its line and columns, counted from 1, and whether its stage was written."""

    action: Action
    line: int
    column: int
    end: int
    has_stage: bool


def parse_schedule(text: str, name: str = "file") -> Schedule:
    """The schedule in ``text``, valid; ``name`` is its name, and that of the text in errors.

    The lines tell the number of devices, the actions that of stages and micro-batches. With several stages
    per device they tell, too, whether these go round or fold back: what most actions agree with counts.

    >>> parse_schedule("F0 F1 B0 B1\\nF0 B0 F1 B1").micro_batches
    2

    Raises `InvalidArgumentError` with line and column for a text that is no schedule, and for each fault that
    `validate` finds.
    """
    rows = _rows(text, name)
    if not rows:
        raise InvalidArgumentError(f"{name}: expected a line of actions per device, such as F0 B0; got none")
    _check_stages(rows, name)
    cells = [cell.action for row in rows for cell in row]
    chunks = max(action.stage for action in cells) // len(rows) + 1
    schedule = Schedule(
        name,
        micro_batches=1 + max(action.micro_batch for action in cells),
        chunks=chunks,
        vee=chunks > 1 and _number_at_home(rows, vee=True) > _number_at_home(rows, vee=False),
        split=any(action.kind in "IW" for action in cells),
        actions=tuple(tuple(cell.action for cell in row) for row in rows),
    )
    fault = find_fault(schedule)
    if fault:
        row = rows[fault.device]
        is_absent = fault.position == len(row)
        column = row[-1].end if is_absent else row[fault.position].column
        raise _error(name, row[0].line, column, f" (device {fault.device}), {fault.message}")
    return schedule


def format_schedule(schedule: Schedule) -> str:
    """The text of ``schedule``, which `parse_schedule` reads back.

    >>> print(format_schedule(order("1f1b", devices=2, micro_batches=2)), end="")
    F0 F1 B0 B1
    F0 B0 F1 B1
    """

    def text(action: Action) -> str:
        stage = action.stage if schedule.chunks > 1 else ""
        return f"{stage}{action.kind}{action.micro_batch}"

    return "".join(" ".join(map(text, line)) + "\n" for line in schedule.actions)


def _rows(text: str, name: str) -> list[list[Cell]]:
    """The actions of each line that has any; the device of a line is its number among these."""
    rows: list[list[Cell]] = []
    for line, words in enumerate(text.splitlines(), start=1):
        words = words.partition("#")[0]
        if words.strip():
            rows.append([_cell(word, len(rows), line, name) for word in re.finditer(r"\S+", words)])
    return rows


def _cell(word: re.Match[str], device: int, line: int, name: str) -> Cell:
    found = _ACTION.fullmatch(word[0])
    if found is None:
        raise _error(name, line, word.start() + 1, f": expected an action such as F0 or 2F0; got {word[0]!r}")
    stage, kind, micro_batch = found.groups()
    action = Action(cast(Kind, kind), int(stage or device), int(micro_batch))
    return Cell(action, line, word.start() + 1, word.end() + 1, stage is not None)


def _check_stages(rows: list[list[Cell]], name: str) -> None:
    """All actions of a text have their stages written, or none."""
    has_stages = rows[0][0].has_stage
    for row in rows:
        for action, line, column, _, has_stage in row:
            if has_stage != has_stages:
                wanted = "a stage before the kind" if has_stages else "no stage"
                raise _error(name, line, column, f", {action}: expected {wanted}, as in the first action")


def _number_at_home(rows: list[list[Cell]], vee: bool) -> int:
    """The number of actions on their stages' devices, if these fold back or not."""
    pairs = [(device, cell.action.stage) for device, row in enumerate(rows) for cell in row]
    return sum(device_of(stage, len(rows), vee) == device for device, stage in pairs)


def _error(name: str, line: int, column: int, message: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name}: line {line}, column {column}{message}")
