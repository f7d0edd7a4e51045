"""The name of one tensor on one edge between devices, in one iteration of one frame, within a step.

    src_device;src_incarnation;dst_device;edge_name;frame_id:iter_id

    /job:worker/replica:0/task:1/device:GPU:0;00000000deadbeef;/job:worker/replica:0/task:0/device:CPU:0;w:0;0:0

The incarnation (16 lower-case hex digits) is random for each start of a task, so that a restarted task is not
confused with the previous one. The frame is the fingerprint of the loop's path, 0 outside of loops;
iterations count from 0.

A table matches keys as text, so a key has exactly one spelling: `create_key` writes it, and `parse_key` reads
no other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from flowrt.device.spec import format_device, parse_device
from flowrt.errors import InvalidArgumentError

FORMAT = "src_device;src_incarnation;dst_device;edge_name;frame_id:iter_id"

_INCARNATION = re.compile(r"[0-9a-f]{16}")
_FRAME = re.compile(r"([0-9]{1,20}):([0-9]{1,20})")  # 2**64 has 20 digits; int() refuses some thousands
_MAX_ID = 2**64 - 1


@final
@dataclass(frozen=True, slots=True)
class ParsedKey:
    """The parts of a key, and ``text``, the whole of it. Both devices are canonical full names."""

    src_device: str
    src_incarnation: int
    dst_device: str
    edge_name: str
    frame_id: int
    iteration: int
    text: str

    def __str__(self) -> str:
        return self.text


def create_key(
    src_device: str, src_incarnation: int, dst_device: str, edge_name: str, frame_id: int, iteration: int
) -> str:
    """The key's text. Devices may be in any spelling, the key has the canonical one.

    Raises `InvalidArgumentError` for a device that is not fully named, an edge name that is empty or has a
    ``;``, and a number outside [0, 2**64).
    """
    if not edge_name or ";" in edge_name:
        raise InvalidArgumentError(
            f"rendezvous key of {edge_name!r}: expected an edge name that is not empty and has no ';'"
        )
    for name, number in (
        ("src_incarnation", src_incarnation), ("frame_id", frame_id), ("iteration", iteration),
    ):  # fmt: skip
        if not 0 <= number <= _MAX_ID:
            raise InvalidArgumentError(
                f"rendezvous key of {edge_name!r}: expected {name} in [0, 2**64); got {number}"
            )
    src, dst = _full_name(src_device), _full_name(dst_device)
    return f"{src};{src_incarnation:016x};{dst};{edge_name};{frame_id}:{iteration}"


def parse_key(text: str) -> ParsedKey:
    """The parts of ``text``. Raises `InvalidArgumentError` for anything but a result of `create_key`."""
    where = f"rendezvous key {text!r}"
    parts = text.split(";")
    if len(parts) != 5 or not all(parts):
        raise InvalidArgumentError(f"{where}: expected 5 non-empty parts, {FORMAT}")
    src, incarnation, dst, edge_name, frame = parts
    if not _INCARNATION.fullmatch(incarnation):
        raise InvalidArgumentError(
            f"{where}: expected src_incarnation of 16 lower-case hex digits; got {incarnation!r}"
        )
    numbers = _FRAME.fullmatch(frame)
    if numbers is None:
        raise InvalidArgumentError(f"{where}: expected frame_id:iter_id, two decimal numbers; got {frame!r}")
    key = ParsedKey(src, int(incarnation, 16), dst, edge_name, int(numbers[1]), int(numbers[2]), text)
    canonical = create_key(src, key.src_incarnation, dst, edge_name, key.frame_id, key.iteration)
    if canonical != text:
        raise InvalidArgumentError(f"{where}: expected the canonical spelling {canonical!r}")
    return key


@lru_cache(maxsize=4096)
def _full_name(device: str) -> str:
    """The canonical name of ``device``, which must leave no field open."""
    spec = parse_device(device)
    if None in (spec.job, spec.replica, spec.task, spec.device_type, spec.device_index):
        raise InvalidArgumentError(
            "rendezvous key: expected a full device name, /job:NAME/replica:N/task:N/device:TYPE:N; "
            f"got {device!r}"
        )
    return format_device(spec)
