"""`Mesh`: devices in a grid with named axes."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast, final
from weakref import WeakValueDictionary

from flowrt.base.in_notebook import InNotebook
from flowrt.device.spec import DeviceSpec, format_device, parse_device
from flowrt.errors import InvalidArgumentError, nearest
from flowrt.graph.source import user_line

Coordinate: TypeAlias = tuple[int, ...]
"""A position on each axis of a mesh, in the order of its axes."""


class Axis(NamedTuple):
    """``size`` coordinates. On an axis of time they are turns of the same devices; otherwise devices."""

    name: str
    size: int
    is_time: bool = False

    def __str__(self) -> str:
        return f"{'time ' if self.is_time else ''}{self.name}={self.size}"


_HOST = DeviceSpec(device_type="CPU", device_index=0)


@final
class Mesh(InNotebook):
    """A grid of devices: ``axes`` are pairs (name, size), or `Axis`.

    ``devices`` has a name for each coordinate of the axes of space, in row-major order: the last axis varies
    fastest. Without devices the mesh gets all devices of a session, in order. Each device may be there only
    once. Equal meshes are one object.

    With ``stages``, the axis of a pipeline, the mesh is there once for each *position* on it, on devices of
    its own: those of position 0 come first. Layouts are over the other axes; a tensor is at one position.

    >>> mesh = Mesh([("dp", 2), ("tp", 2)], ["/cpu:0", "/cpu:1", "/cpu:2", "/cpu:3"])
    >>> mesh.device((1, 0))
    '/device:CPU:2'
    >>> mesh.staged("dp").device((0,), position=1)
    '/device:CPU:2'

    Raises `InvalidArgumentError` for names that are not identifiers or not distinct, a size below 1, more
    than 65,536 coordinates, or 8,388,608 with the turns of a position, and a number of devices other than
    that of the coordinates.
    """

    __slots__ = ("__weakref__", "_numbers", "axes", "coordinates", "devices", "stages")

    axes: tuple[Axis, ...]
    devices: tuple[str, ...] | None
    stages: Axis | None
    coordinates: tuple[Coordinate, ...]
    """All of one position, in row-major order."""
    _numbers: dict[str, int]

    def __new__(
        cls,
        axes: Iterable[Axis | tuple[str, int]],
        devices: Iterable[str] | None = None,
        stages: Axis | tuple[str, int] | None = None,
    ) -> Mesh:
        found = tuple(_checked_axis(axis) for axis in _checked_list(axes, "axes", _as_pairs(axes)))
        positions = None if stages is None else _checked_axis(stages)
        every = found if positions is None else (positions, *found)
        _check_names([axis.name for axis in every])
        _check_size(found, positions)
        names = None if devices is None else tuple(map(_checked_device, _checked_list(devices, "devices")))
        _check_devices(every, names)
        return _meshes.get((found, names, positions)) or cls._made(found, names, positions)

    @classmethod
    def _made(cls, axes: tuple[Axis, ...], devices: tuple[str, ...] | None, stages: Axis | None) -> Mesh:
        mesh = object.__new__(cls)
        mesh.axes, mesh.devices, mesh.stages = axes, devices, stages
        mesh.coordinates = tuple(itertools.product(*[range(axis.size) for axis in axes]))
        mesh._numbers = {axis.name: number for number, axis in enumerate(axes)}
        return _meshes.setdefault((axes, devices, stages), mesh)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return len(self.coordinates)

    @property
    def positions(self) -> range:
        """The positions on the axis of stages; one without such an axis."""
        return range(1 if self.stages is None else self.stages.size)

    @property
    def device_axes(self) -> tuple[Axis, ...]:
        """The axes along which devices differ: that of stages, if there is one, and those of space."""
        first = () if self.stages is None else (self.stages,)
        return (*first, *[axis for axis in self.axes if not axis.is_time])

    @property
    def num_devices(self) -> int:
        return math.prod(axis.size for axis in self.device_axes)

    def device_indices(self) -> list[tuple[int, ...]]:
        """The indices of each device on the `device_axes`, in the order of `devices`."""
        return list(itertools.product(*[range(axis.size) for axis in self.device_axes]))

    def axis(self, name: str, where: str = "layout") -> int:
        """The number of the axis ``name``. Raises `InvalidArgumentError`, of the argument ``where``, if there
        is none.
        """
        found = self._numbers.get(name)
        if found is None:
            hint = nearest(str(name), self._numbers)
            raise InvalidArgumentError(
                f"{where}: expected an axis of the mesh {self}; got {name!r}.{hint}", source=user_line()
            )
        return found

    def device(self, coordinate: Coordinate, position: int = 0) -> str:
        """The device of ``coordinate``, of which all turns of time axes share one."""
        assert self.devices is not None, "the mesh has its devices from a session"
        return self.devices[self.place(coordinate, position)]

    def host(self, coordinate: Coordinate, position: int = 0) -> str:
        """The CPU of the task of the device of ``coordinate``, which has the host's memory."""
        return format_device(parse_device(self.device(coordinate, position)).merge(_HOST))

    def place(self, coordinate: Coordinate, position: int = 0) -> int:
        """The number of the device of ``coordinate``, in the order of `devices`."""
        number = position
        for axis, index in zip(self.axes, coordinate, strict=True):
            if not axis.is_time:
                number = number * axis.size + index
        return number

    def places(self) -> dict[int, tuple[Coordinate, int]]:
        """The first coordinate, and the position, of each device by its number."""
        firsts = list(itertools.product(*[range(1 if axis.is_time else axis.size) for axis in self.axes]))
        return {self.place(at, position): (at, position) for position in self.positions for at in firsts}

    def groups(self, axis: int) -> list[tuple[Coordinate, ...]]:
        """The coordinates that differ in ``axis`` only, as one group each, in order."""
        others = [range(1 if i == axis else each.size) for i, each in enumerate(self.axes)]
        return [
            tuple((*first[:axis], index, *first[axis + 1 :]) for index in range(self.axes[axis].size))
            for first in itertools.product(*others)
        ]

    def sub_mesh(self, **indices: int) -> Mesh:
        """The mesh of the coordinates with these indices, by axis, without these axes.

        Raises `InvalidArgumentError` for an unknown axis and an index out of range.
        """
        fixed = {self.axis(name): index for name, index in indices.items()}
        for number, index in fixed.items():
            if not 0 <= index < self.axes[number].size:
                raise InvalidArgumentError(
                    f"sub_mesh: expected an index from 0 to {self.axes[number].size - 1} of axis "
                    f"{self.axes[number].name!r}; got {index}",
                    source=user_line(),
                )
        rest = [axis for number, axis in enumerate(self.axes) if number not in fixed]
        if self.devices is None:
            return Mesh(rest)
        inside = [c for c in self.coordinates if all(c[number] == index for number, index in fixed.items())]
        return Mesh(rest, dict.fromkeys(map(self.device, inside)))

    def staged(self, axis: str) -> Mesh:
        """The same devices, with ``axis`` as the axis of stages. Raises `InvalidArgumentError` if there is
        none of that name, or it is one of time.
        """
        number = self.axis(axis)
        if self.axes[number].is_time:
            raise InvalidArgumentError(
                f"mesh: expected an axis of devices as the axis of stages; got {axis!r}, an axis of time of "
                f"the mesh {self}",
                source=user_line(),
            )
        rest = [each for each in self.axes if each.name != axis]
        if self.devices is None:
            return Mesh(rest, None, self.axes[number])
        parts = [self.sub_mesh(**{axis: i}).devices or () for i in range(self.axes[number].size)]
        return Mesh(rest, [device for part in parts for device in part], self.axes[number])

    def with_turns(self, axis: Axis) -> Mesh:
        """The same mesh with ``axis``, of time, before the others: each turn's part is cut by them."""
        return Mesh([axis, *self.axes], self.devices, self.stages)

    def with_devices(self, names: Sequence[str]) -> Mesh:
        """The same axes, on the first of ``names``. Raises `InvalidArgumentError` if they are too few."""
        if len(names) < self.num_devices:
            raise InvalidArgumentError(
                f"mesh {self}: expected {self.num_devices} devices; got {len(names)}: {', '.join(names)}. "
                "Set device_count in the session's ConfigProto, start the script in several processes with "
                "flowrt-run, or use a smaller mesh"
            )
        return Mesh(self.axes, names[: self.num_devices], self.stages)

    def __reduce__(self) -> tuple[type[Mesh], _Key]:
        return Mesh, (self.axes, self.devices, self.stages)

    def __str__(self) -> str:
        first = [] if self.stages is None else [f"stages {self.stages}"]
        return f"[{', '.join([*first, *map(str, self.axes)])}]"

    def __repr__(self) -> str:
        return f"<Mesh {format_mesh(self)}>"


_Key: TypeAlias = tuple[tuple[Axis, ...], tuple[str, ...] | None, Axis | None]

_meshes: WeakValueDictionary[_Key, Mesh] = WeakValueDictionary()


MAX_COORDINATES = 65_536
"""A step is compiled for each: this many take hours. Turns do not count: a plan has thousands of devices with
hundreds of turns.
"""
MAX_WITH_TURNS = 1 << 23
"""The coordinates of a position are listed."""


def _checked_list(values: Any, what: str, instead: str = "") -> Iterable[Any]:
    if instead or isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidArgumentError(
            f"mesh: expected a list of {what}; got {values!r}{instead}", source=user_line()
        )
    return values


def _as_pairs(axes: Any) -> str:
    """A hint for a mapping, or one pair alone, that was meant as axes; nothing for others."""
    if isinstance(axes, Mapping):
        return f". Write {list(axes.items())!r}"
    is_pair = isinstance(axes, list | tuple) and len(axes) == 2 and isinstance(axes[0], str)
    return f". Write {[tuple(axes)]!r}" if is_pair and isinstance(axes[1], int) else ""


def _checked_device(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"mesh: expected names of devices; got {name!r}", source=user_line())
    return format_device(parse_device(name))


def _check_size(axes: Sequence[Axis], stages: Axis | None) -> None:
    every = axes if stages is None else (stages, *axes)
    for what, counted, most in (
        ("coordinates", [axis for axis in every if not axis.is_time], MAX_COORDINATES),
        ("coordinates with turns", axes, MAX_WITH_TURNS),
    ):
        count = math.prod(axis.size for axis in counted)
        if count > most:
            raise InvalidArgumentError(
                f"mesh [{', '.join(map(str, every))}]: expected at most {most:,} {what}; got {count:,}",
                source=user_line(),
            )


def _checked_axis(axis: Any) -> Axis:
    try:
        found = Axis(*(() if isinstance(axis, str) else axis))
        name, size = cast(Any, found[:2])
    except TypeError:
        raise InvalidArgumentError(
            f"mesh: expected axes that are pairs (name, size); got {axis!r}", source=user_line()
        ) from None
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidArgumentError(
            f"mesh: expected a name of letters, digits and underscores for an axis; got {name!r}",
            source=user_line(),
        )
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidArgumentError(
            f"mesh: expected a size of at least 1 for axis {name!r}; got {size!r}", source=user_line()
        )
    if not isinstance(found.is_time, bool):
        raise InvalidArgumentError(
            f"mesh: expected True or False as is_time of axis {name!r}; got {found.is_time!r}",
            source=user_line(),
        )
    return found


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"mesh: expected axes with different names; got {', '.join(names)}", source=user_line()
        )


def _check_devices(axes: Sequence[Axis], devices: Sequence[str] | None) -> None:
    if devices is None:
        return
    count = math.prod(axis.size for axis in axes if not axis.is_time)
    if len(devices) != count or len(set(devices)) < count:
        raise InvalidArgumentError(
            f"mesh [{', '.join(map(str, axes))}]: expected {count} different devices; got {len(devices)}: "
            f"{', '.join(devices)}",
            source=user_line(),
        )


# --- as text


_TEXT = re.compile(r"\[(?P<axes>[^\]]*)\](?: on (?P<devices>.+))?", re.DOTALL)
_AXIS = re.compile(r"(?P<kind>time |stages )?(?P<name>\w+)=(?P<size>\d{1,9})")


def format_mesh(mesh: Mesh) -> str:
    """The text that `parse_mesh` reads: ``[dp=2, time turn=4] on /device:CPU:0, /device:CPU:1``."""
    return str(mesh) if mesh.devices is None else f"{mesh} on {', '.join(mesh.devices)}"


@functools.lru_cache(64)
def parse_mesh(text: str) -> Mesh:
    """The mesh that ``text`` names, see `format_mesh`. Raises `InvalidArgumentError`."""
    found = _TEXT.fullmatch(text)
    matches = [] if found is None else [_AXIS.fullmatch(each) for each in found["axes"].split(", ") if each]
    axes = [(m["kind"], Axis(m["name"], int(m["size"]), m["kind"] == "time ")) for m in matches if m]
    stages = [axis for kind, axis in axes if kind == "stages "]
    if found is None or None in matches or len(stages) > 1:
        raise InvalidArgumentError(f"mesh: expected a text like '[dp=2, tp=4]'; got {text[:200]!r}")
    devices = None if found["devices"] is None else found["devices"].split(", ")
    return Mesh([axis for _, axis in axes if axis not in stages], devices, *stages)
