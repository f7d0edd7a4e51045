"""`play`: class programs on vectors, one number per device of a class: exact for 10,000 unequal devices.

Rules of this file:
  1. A device computes and communicates at the same time, and does each of the two in the program's order.
  2. A meeting begins when the last device along its axes has come, and takes as long for all of them.
  3. A message occupies its sender only. It is received when it has been sent, by the device with the same
     coordinates at the other position.
  4. A device that does not compute is *exposed* to communication while the links that it waits for are busy.
     Otherwise it waits for devices: for those of a meeting (*skew*), or for those of other positions and for
     the end of the step (*bubble*).

A step is max-plus arithmetic: a start is a maximum of ends, an end is a start plus seconds. So a class of
devices takes one operation on vectors for each of these, whether its devices are equal or not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from flowrt.errors import InvalidArgumentError
from flowrt.plan.replay.played import ClassProgram, Lane, Meeting, Message, Work
from flowrt.plan.replay.program_checks import Key, check_programs, is_received, key_of
from flowrt.plan.replay.step_times import MESSAGE, Played, PlayedClass, Vector


class LinkSeconds(Protocol):
    """Durations of communication. A result is a number, or an array that broadcasts to the mesh's shape."""

    def meeting(self, position: int, meeting: Meeting) -> float | npt.NDArray[Any]:
        """Seconds of ``meeting`` among devices at ``position``, equal along its axes."""

    def message(self, position: int, message: Message) -> float | npt.NDArray[Any]:
        """Seconds of ``message``, which the devices at ``position`` send."""


class Jitter(NamedTuple):
    """Random durations: each work's seconds are multiplied by a lognormal number of mean 1.

    ``spread`` is the standard deviation of its logarithm.
    """

    spread: float
    seed: int = 0


def play(
    programs: Sequence[ClassProgram],
    mesh_shape: Mapping[str, int],
    seconds: LinkSeconds,
    slowness: Mapping[int, npt.ArrayLike] | None = None,
    jitter: Jitter | None = None,
    is_detailed: bool = False,
) -> Played:
    """The step of ``programs``, one per position. Each is run by one device per coordinate of ``mesh_shape``,
    the sizes of the axes of a position by name, in the mesh's order.

    ``slowness`` has factors of the seconds of computing by position, an array that broadcasts to the mesh's
    shape: 2 is a device of half the speed. ``is_detailed`` keeps the times of all works.

    Raises `InvalidArgumentError` for programs that are wrong in themselves, and for works that wait for a
    message that nobody sends, or for each other.
    """
    shape = tuple(mesh_shape.values())
    check_programs(programs, mesh_shape)
    state = _Play(dict(mesh_shape), seconds)
    for program in programs:
        factors = _flat((slowness or {}).get(program.position, 1.0), shape)
        state.classes[program.position] = _Class(program, factors, jitter, is_detailed)
    state.run()
    return state.played()


def _flat(value: npt.ArrayLike, shape: tuple[int, ...]) -> Vector:
    return np.broadcast_to(np.asarray(value, np.float64), shape).reshape(-1)


class _End(NamedTuple):
    """The end of a work. Of communication also ``since``: from then until the end the link was busy."""

    time: Vector
    since: Vector | None = None
    kind: str = ""


class _Line:
    """The works of one lane of a class, by number, in order."""

    def __init__(self, place: _Class, numbers: list[int]) -> None:
        self.place, self.numbers, self.next = place, numbers, 0
        self.last = _End(np.zeros(len(place.slowness)))

    @property
    def is_over(self) -> bool:
        return self.next == len(self.numbers)


class _Class:
    """The devices at one position: how far they are, and their times."""

    def __init__(
        self, program: ClassProgram, slowness: Vector, jitter: Jitter | None, is_detailed: bool
    ) -> None:
        self.program, self.slowness = program, slowness
        works = program.works
        self.compute = _Line(self, [i for i, work in enumerate(works) if work.lane is Lane.COMPUTE])
        self.link = _Line(
            self, [i for i, work in enumerate(works) if work.lane is Lane.LINK and not is_received(work)]
        )
        zeros = np.zeros(len(slowness))
        self.ends: dict[int, _End] = {}
        """Ends that are still read, by the number of the work."""
        self.readers = [0] * len(works)
        for work in works:
            for number in work.after:
                self.readers[number] += 1
        self.planned = 0.0
        self.busy, self.skew = zeros.copy(), zeros.copy()
        self.exposed: dict[str, Vector] = {}
        self._jitter = jitter
        self._rng = np.random.default_rng((jitter.seed if jitter else 0, program.position))
        self.times = np.zeros((2, len(works), len(slowness))) if is_detailed else None

    def took(self, work: Work) -> Vector:
        """Seconds of computing."""
        seconds = work.seconds * self.slowness
        if self._jitter is not None:
            spread = self._jitter.spread
            seconds = seconds * np.exp(self._rng.normal(-spread * spread / 2, spread, len(seconds)))
        return seconds

    def wait(self, start: Vector, end: _End) -> Vector:
        """The later of ``start`` and ``end``, where the devices do not compute until then."""
        later = np.maximum(start, end.time)
        if end.since is None:
            return later
        busy_since = np.minimum(np.maximum(start, end.since), later)
        if end.kind in self.exposed:
            self.exposed[end.kind] += later - busy_since
        else:
            self.exposed[end.kind] = later - busy_since
        if end.kind != MESSAGE:
            self.skew += busy_since - start
        return later

    def ended(self, number: int, start: Vector, end: _End) -> None:
        if self.readers[number]:
            self.ends[number] = end
        if self.times is not None:
            self.times[:, number] = start, end.time

    def forget(self, work: Work) -> None:
        """Drop the ends that ``work`` was the last to read."""
        for number in work.after:
            self.readers[number] -= 1
            if not self.readers[number]:
                del self.ends[number]


_Need: TypeAlias = Key | tuple[int, int]
"""A message, or a work by its position and number."""


class _Play:
    """All classes, what has been sent, and the lines that wait for something."""

    def __init__(self, mesh_shape: dict[str, int], seconds: LinkSeconds) -> None:
        self.classes: dict[int, _Class] = {}
        self._shape = tuple(mesh_shape.values())
        self._axes = {name: number for number, name in enumerate(mesh_shape)}
        self._seconds = seconds
        self._known: dict[tuple[Any, ...], Vector] = {}
        self._sent: dict[Key, _End] = {}
        self._waiting: dict[_Need, list[_Line]] = {}
        self._ready: deque[_Line] = deque()
        self._nbytes: dict[str, int] = {}

    def run(self) -> None:
        self._ready.extend(line for each in self.classes.values() for line in (each.compute, each.link))
        while self._ready:
            self._advance(self._ready.popleft())
        for each in self.classes.values():
            for line in (each.compute, each.link):
                if not line.is_over:
                    raise InvalidArgumentError(self._why_not(line))
            self._receive_unread(each)

    def _advance(self, line: _Line) -> None:
        """Play the works of ``line`` until one waits for what has not been played."""
        place, works, numbers = line.place, line.place.program.works, line.numbers
        position = place.program.position
        while line.next < len(numbers):
            number = numbers[line.next]
            work = works[number]
            missing = self._missing(place, work)
            if missing is not None:
                self._waiting.setdefault(missing, []).append(line)
                return
            if work.meets is None:
                start, end = self._compute(place, work)
            else:
                start, end = self._communicate(place, work, work.meets)
            line.last = end
            line.next += 1
            place.ended(number, start, end)
            place.forget(work)
            self._ready.extend(self._waiting.pop((position, number), ()))

    def _missing(self, place: _Class, work: Work) -> _Need | None:
        """The first thing that ``work`` waits for and that has not been played."""
        for number in work.after:
            if number in place.ends:
                continue
            needed = place.program.works[number]
            if not is_received(needed):
                return place.program.position, number
            missing = self._receive(place, number, needed)
            if missing is not None:
                return missing
        return None

    def _receive(self, place: _Class, number: int, work: Work) -> _Need | None:
        """Receive the message of ``work``, unless something is missing."""
        assert isinstance(work.meets, Message)
        key = key_of(place.program.position, work.meets)
        missing = key if key not in self._sent else self._missing(place, work)
        if missing is None:
            end = self._sent.pop(key)
            for before in work.after:
                end = end._replace(time=np.maximum(end.time, place.ends[before].time))
            place.ended(number, end.time, end)
            place.forget(work)
        return missing

    def _receive_unread(self, place: _Class) -> None:
        """Receive the messages that no work waits for: only their times are of interest."""
        for number, work in enumerate(place.program.works):
            if is_received(work) and not place.readers[number]:
                self._receive(place, number, work)

    def _compute(self, place: _Class, work: Work) -> tuple[Vector, _End]:
        start = place.compute.last.time
        for number in work.after:
            start = place.wait(start, place.ends[number])
        took = place.took(work)
        place.planned += work.seconds
        place.busy += took
        return start, _End(start + took)

    def _communicate(self, place: _Class, work: Work, meets: Meeting | Message) -> tuple[Vector, _End]:
        free, since, _ = place.link.last
        since = free if since is None else since  # the first that the link has
        start = free
        for number in work.after:
            start = np.maximum(start, place.ends[number].time)
        if isinstance(meets, Meeting):
            start = self._met(start, meets.axes)
        position, kind = place.program.position, meets.kind if isinstance(meets, Meeting) else MESSAGE
        end = _End(start + self._took(position, meets), np.where(start > free, start, since), kind)
        self._count(kind, meets)
        if isinstance(meets, Message):
            key = key_of(position, meets)
            self._sent[key] = end
            self._ready.extend(self._waiting.pop(key, ()))
        return start, end

    def _met(self, start: Vector, axes: tuple[str, ...]) -> Vector:
        """The time at which the last device along ``axes`` has come."""
        met = np.empty(self._shape)
        numbers = tuple(self._axes[name] for name in axes)
        met[...] = np.maximum.reduce(start.reshape(self._shape), axis=numbers, keepdims=True)
        return met.reshape(-1)

    def _took(self, position: int, meets: Meeting | Message) -> Vector:
        """Seconds of communication; asked for once per kind and size."""
        key = position, meets if isinstance(meets, Meeting) else (meets.position, meets.nbytes)
        found = self._known.get(key)
        if found is None:
            if isinstance(meets, Meeting):
                seconds = self._seconds.meeting(position, meets)
            else:
                seconds = self._seconds.message(position, meets)
            found = self._known[key] = _flat(seconds, self._shape)
        return found

    def _count(self, kind: str, meets: Meeting | Message) -> None:
        times = math.prod(self._shape)
        if isinstance(meets, Meeting):
            times //= math.prod(self._shape[self._axes[name]] for name in meets.axes)
        self._nbytes[kind] = self._nbytes.get(kind, 0) + times * meets.nbytes

    def _why_not(self, line: _Line) -> str:
        """The reason why ``line`` cannot go on."""
        position = line.place.program.position
        work = line.place.program.works[line.numbers[line.next]]
        missing = self._missing(line.place, work)
        assert missing is not None
        if len(missing) == 3:
            awaited = f"the message {missing[2]!r} from position {missing[0]}"
        else:
            awaited = f"{self.classes[missing[0]].program.works[missing[1]].name!r} at its own position"
        return (
            f"position {position}: work {work.name!r} waits for {awaited}: expected it to come; works wait "
            "for each other"
        )

    def played(self) -> Played:
        ends = [each.wait(each.compute.last.time, each.link.last) for each in self.classes.values()]
        classes = [
            PlayedClass(
                position,
                each.planned,
                each.busy,
                each.exposed,
                each.skew,
                *(each.times if each.times is not None else (None, None)),
            )
            for position, each in self.classes.items()
        ]
        return Played(max((float(end.max()) for end in ends), default=0.0), tuple(classes), self._nbytes)
