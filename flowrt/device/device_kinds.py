"""Device kinds as data: what a type of device is called, where it ranks, and how its devices are made.

CPU, GPU and NULL are registered by `flowrt.device.local_devices`; a new kind is one more `register_kind`, and
a backend (`flowrt.executor.kernels.backend`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from flowrt.device.device import Device

UNRANKED = 1 << 30
"""Rank of kinds that operations are on only by request."""


class DeviceKind(NamedTuple):
    """``open(request, job, task)`` makes the devices of this kind that a `DeviceRequest` asks for."""

    name: str
    """Device type, in upper case."""
    open: Callable[[Any, str, int], list[Device]]
    rank: int = UNRANKED
    """Operations without a device are on the kind of the lowest rank that supports them."""
    is_made_by_count: bool = True
    """Whether there are as many as ``device_count`` says; otherwise at most as many as the machine has."""
    why_none: Callable[[], str | None] | None = None
    """Explains, in errors, why there is none; may take a second."""


_KINDS: dict[str, DeviceKind] = {}

KINDS: Mapping[str, DeviceKind] = MappingProxyType(_KINDS)
"""The registered kinds, by device type, in the order of a session's devices."""


def register_kind(kind: DeviceKind) -> None:
    """Add ``kind``, or replace the one of its name."""
    _KINDS[kind.name] = kind


def rank_of(device_type: str) -> int:
    """The rank of the kind; of an unknown one the last."""
    return KINDS[device_type].rank if device_type in KINDS else UNRANKED


def reasons() -> dict[str, Callable[[], str | None]]:
    """Functions that explain why there is no device of a type, by device type."""
    return {name: kind.why_none for name, kind in KINDS.items() if kind.why_none is not None}
