"""Device names: ``/job:worker/replica:0/task:1/device:GPU:0`` and its parts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
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
                raise InvalidArgumentError(f"DeviceSpec {name}: expected a number of at least 0; got {value}")
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
        index = self.device_index
        if inner.device_index is not None:
            index = inner.device_index
        elif inner.device_type is not None and inner.device_type != self.device_type:
            index = None
        return DeviceSpec(
            self.job if inner.job is None else inner.job,
            self.replica if inner.replica is None else inner.replica,
            self.task if inner.task is None else inner.task,
            self.device_type if inner.device_type is None else inner.device_type,
            index,
        )

    def matches(self, device: DeviceSpec) -> bool:
        """Whether the fully named ``device`` is one of those that this spec leaves open."""
        return all(
            mine is None or mine == theirs
            for mine, theirs in (
                (self.job, device.job),
                (self.replica, device.replica),
                (self.task, device.task),
                (self.device_type, device.device_type),
                (self.device_index, device.device_index),
            )
        )

    def replace(self, **fields: Any) -> DeviceSpec:
        return replace(self, **fields)

    def __str__(self) -> str:
        return format_device(self)


@lru_cache(maxsize=4096)
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


@lru_cache(maxsize=4096)
def format_device(spec: DeviceSpec) -> str:
    """The canonical name of ``spec``; open fields are left out."""
    parts = []
    if spec.job is not None:
        parts.append(f"/job:{spec.job}")
    if spec.replica is not None:
        parts.append(f"/replica:{spec.replica}")
    if spec.task is not None:
        parts.append(f"/task:{spec.task}")
    if spec.device_type is not None:
        index = "*" if spec.device_index is None else spec.device_index
        parts.append(f"/device:{spec.device_type}:{index}")
    elif spec.device_index is not None:
        parts.append(f"/device:*:{spec.device_index}")
    return "".join(parts)


@lru_cache(maxsize=65536)
def merge_device_names(outer: str, inner: str) -> str:
    """`DeviceSpec.merge` on names."""
    return format_device(parse_device(outer).merge(parse_device(inner)))
