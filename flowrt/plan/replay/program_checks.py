"""`check_programs`: class programs fit together, so that each message that is waited for has a sender."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from flowrt.errors import InvalidArgumentError, nearest
from flowrt.plan.replay.played import ClassProgram, Meeting, Message, Work

Key: TypeAlias = tuple[int, int, str]
"""Sender, receiver and tag of a message."""


def is_received(work: Work) -> bool:
    return isinstance(work.meets, Message) and not work.meets.is_sent


def key_of(position: int, message: Message) -> Key:
    """The key of ``message``, which a work at ``position`` sends or receives."""
    if message.is_sent:
        return position, message.position, message.tag
    return message.position, position, message.tag


def check_programs(programs: Sequence[ClassProgram], mesh_shape: Mapping[str, int]) -> None:
    """Raises `InvalidArgumentError` for the first mistake: which work, what was expected, what came."""
    if not programs:
        raise InvalidArgumentError("play: expected at least one class program; got none")
    sent: set[Key] = set()
    received: dict[Key, Work] = {}
    positions: set[int] = set()
    for program in programs:
        if program.position in positions:
            raise InvalidArgumentError(
                f"play: expected one program per position; got two of position {program.position}"
            )
        positions.add(program.position)
        for number, work in enumerate(program.works):
            _check_work(program.position, number, work, mesh_shape)
            if isinstance(work.meets, Message):
                key = key_of(program.position, work.meets)
                if key in (sent if work.meets.is_sent else received):
                    raise InvalidArgumentError(
                        f"position {program.position}: work {work.name!r}: expected a tag that is not used "
                        f"twice between two positions; got {work.meets.tag!r} again"
                    )
                if work.meets.is_sent:
                    sent.add(key)
                else:
                    received[key] = work
    for key, work in received.items():
        if key not in sent:
            raise InvalidArgumentError(
                f"position {key[1]}: work {work.name!r} waits for the message {key[2]!r} from position "
                f"{key[0]}: expected a work there that sends it; there is none"
            )


def _check_work(position: int, number: int, work: Work, mesh_shape: Mapping[str, int]) -> None:
    where = f"position {position}: work {work.name!r}"
    late = [each for each in work.after if not 0 <= each < number]
    if late:
        raise InvalidArgumentError(f"{where}: expected earlier works in `after`; got number {late[0]}")
    if not 0 <= work.seconds < math.inf:
        raise InvalidArgumentError(f"{where}: expected finite seconds >= 0; got {work.seconds!r}")
    if isinstance(work.meets, Meeting):
        for name in work.meets.axes:
            if name not in mesh_shape:
                hint = nearest(name, mesh_shape)
                raise InvalidArgumentError(
                    f"{where}: expected axes of the mesh, {', '.join(mesh_shape)}; got {name!r}.{hint}"
                )
