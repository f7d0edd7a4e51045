"""The played form of a step: the work of each class of devices, in order, with seconds and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, final

from flowrt.graph.pipeline.actions import Action


class Lane(Enum):
    """The part of a device that is busy: it works in both at the same time, and in each of them in order."""

    COMPUTE = "compute"
    LINK = "link"


class Meeting(NamedTuple):
    """A collective: all devices that differ only along ``axes`` begin it together."""

    kind: str
    """``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``broadcast``."""
    axes: tuple[str, ...]
    nbytes: int
    """Bytes of the whole, as in `flowrt.graph.collectives.cost`."""


class Message(NamedTuple):
    """A tensor between two positions of a pipeline, between devices with equal coordinates there."""

    position: int
    """The other one, which receives or sends it."""
    tag: str
    """The same at both ends; distinct within a step."""
    nbytes: int
    is_sent: bool


@final
@dataclass(frozen=True)
class Work:
    """An entry in the program of a class. It starts when its lane is free and ``after`` have ended: earlier
    entries of the same program, by number.

    A `Meeting` or a received `Message` also waits for the others that take part. A received one takes no time
    and keeps no lane busy: it is there once it has been sent. ``seconds`` are those of computing; those of
    meetings and messages come from the links.
    """

    name: str
    seconds: float = 0.0
    after: tuple[int, ...] = ()
    meets: Meeting | Message | None = None
    action: Action | None = None

    @property
    def lane(self) -> Lane:
        return Lane.COMPUTE if self.meets is None else Lane.LINK


@final
@dataclass(frozen=True)
class ClassProgram:
    """The program of all devices at ``position`` of a pipeline, 0 without one."""

    position: int
    works: tuple[Work, ...]
    peak_bytes: int = 0
    """The largest number of bytes that a device holds at a time: variables and buffers."""
    held: Mapping[str, int] = field(default_factory=dict)
    """The parts of the peak, by name: ``states``, ``activations``, ``gathered``..."""
