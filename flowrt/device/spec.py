"""Device names: ``/job:worker/replica:0/task:1/device:GPU:0`` and its parts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, final

from flowrt.errors import InvalidArgumentError

_PART = re.compile(
    r"/(?:job:(?P<job>[A-Za-z][A-Za-z0-9_]*|\*)|replica:(?P<replica>\d+|\*)|task:(?P<task>\d+|\*)"
    r"|device:(?P<type>[A-Za-z][A-Za-z0-9_]*|\*)(?::(?P<index>\d+|\*))?"
    r"|(?P<old_type>[cC][pP][uU]|[gG][pP][uU])(?::(?P<old_index>\d+|\*))?)"
)


@final
@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device, wholly or partly named; a field that is None is left open.

    ``device_type`` is kept in upper case. Raises `InvalidArgumentError` for a negative number.
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    def __post_init__(self) -> None:
        for name in ("replica", "task", "device_index"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidArgumentError(f"DeviceSpec {name}: expected a number >= 0; got {value}")
        if self.device_type is not None:
            object.__setattr__(self, "device_type", self.device_type.upper())

    @staticmethod
    def from_string(text: str) -> DeviceSpec:
        """Parse ``text``; the old spellings ``/cpu:0`` and ``/gpu:0`` are read too, also without the slash.

        Raises `InvalidArgumentError`.
        """
        return parse_device(text)

    def to_string(self) -> str:
        """The canonical text; ``DeviceSpec.from_string`` reads it back."""
        return format_device(self)

    def merge(self, inner: DeviceSpec) -> DeviceSpec:
        """This spec with each field that ``inner`` sets taken from it (TensorFlow's rule: inner wins).

        An inner type without an index clears the outer index, which counted devices of the outer type.
        """
        is_of_type = inner.device_type in (None, self.device_type)
        outer = self if is_of_type else replace(self, device_index=None)
        fields = zip(_values(outer), _values(inner), strict=True)
        return DeviceSpec(*[mine if theirs is None else theirs for mine, theirs in fields])

    def matches(self, device: DeviceSpec) -> bool:
        """Whether the fully named ``device`` is one of those that this spec leaves open."""
        fields = zip(_values(self), _values(device), strict=True)
        return all(mine is None or mine == theirs for mine, theirs in fields)

    def replace(self, **fields: Any) -> DeviceSpec:
        return replace(self, **fields)

    def __str__(self) -> str:
        return format_device(self)


_values: Any = attrgetter("job", "replica", "task", "device_type", "device_index")


@lru_cache(maxsize=65536)
def parse_device(text: str) -> DeviceSpec:
    """Parse a device name. Raises `InvalidArgumentError`, which shows the first part that does not fit."""
    fields: dict[str, Any] = {}
    path = f"/{text}" if text and text[0] != "/" else text
    position = 0
    while position < len(path):
        match = _PART.match(path, position)
        if match is None or (match.end() < len(path) and path[match.end()] != "/"):
            raise InvalidArgumentError(
                f"device {text!r}: expected parts of the form /job:NAME, /replica:N, /task:N, /device:TYPE:N,"
                f" /cpu:N or /gpu:N; got {path[position:]!r}"
            )
        position = match.end()
        for group, field in _FIELDS:
            value = match[group]
            if value is not None and value != "*":
                if field in fields:
                    raise InvalidArgumentError(f"device {text!r}: expected each part once; got {field} twice")
                fields[field] = int(value) if field in ("replica", "task", "device_index") else value
    return DeviceSpec(**fields)


_FIELDS = (
    ("job", "job"), ("replica", "replica"), ("task", "task"),
    ("type", "device_type"), ("index", "device_index"),
    ("old_type", "device_type"), ("old_index", "device_index"),
)  # fmt: skip


@lru_cache(maxsize=65536)
def format_device(spec: DeviceSpec) -> str:
    """The canonical name of ``spec``; open fields are left out."""
    *task, type_, index = ["*" if value is None else value for value in _values(spec)]
    parts = [*zip(("job", "replica", "task"), task, strict=True), ("device", f"{type_}:{index}")]
    return "".join([f"/{name}:{value}" for name, value in parts if value not in ("*", "*:*")])


@lru_cache(maxsize=65536)
def merge_device_names(outer: str, inner: str) -> str:
    """`DeviceSpec.merge` on names."""
    return format_device(parse_device(outer).merge(parse_device(inner)))
