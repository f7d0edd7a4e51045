"""Consistency modes of training with parameter servers: staleness of workers, and gradients per update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from flowrt.errors import InvalidArgumentError
from flowrt.graph.resources.parameter_shard import Policy


@final
@dataclass(frozen=True)
class Sync:
    """An update is the mean of one gradient of each worker: as on one machine with all their batches."""


@final
@dataclass(frozen=True)
class Async:
    """Each gradient is an immediate update; no worker waits."""


@final
@dataclass(frozen=True)
class StaleSynchronous:
    """Each gradient is an immediate update, but a worker more than ``staleness`` steps ahead of the slowest
    waits for it. With a staleness of 0 all are in the same step, which is `Sync`.
    """

    staleness: int


@final
@dataclass(frozen=True)
class Backup:
    """An update is the mean of the first gradients of all but ``workers`` workers; others' are dropped."""

    workers: int


Mode: TypeAlias = Sync | Async | StaleSynchronous | Backup

_NAMES: dict[str, type[Any]] = {"sync": Sync, "async": Async, "ssp": StaleSynchronous, "backup": Backup}


def as_mode(value: Any) -> Mode:
    """A mode, from itself or from ``"sync"``, ``"async"``, ``("ssp", s)``, ``("backup", k)``. Raises
    `InvalidArgumentError`.
    """
    if isinstance(value, Mode):
        return value
    name, numbers = (value, ()) if isinstance(value, str) else _split(value)
    kind = _NAMES.get(name) if isinstance(name, str) else None
    is_counted = kind in (StaleSynchronous, Backup)
    are_counts = all(isinstance(number, int) and number >= 0 for number in numbers)
    if kind is None or len(numbers) != is_counted or not are_counts:
        raise InvalidArgumentError(
            "mode: expected 'sync', 'async', ('ssp', staleness) or ('backup', workers), with an integer of "
            f"at least 0; got {value!r}"
        )
    return kind(*numbers)


def _split(value: Any) -> tuple[Any, Sequence[Any]]:
    if isinstance(value, tuple | list) and value:
        return value[0], tuple(value[1:])
    return None, ()


def policy_of(mode: Mode, workers: int, is_replicated: bool) -> Policy:
    """The policy of a shard of ``workers`` workers. Raises `InvalidArgumentError` for too many backups."""
    match mode:
        case Sync() | StaleSynchronous(0):
            return Policy(workers, workers, None, is_replicated)
        case Async():
            return Policy(workers, 1, None, is_replicated)
        case StaleSynchronous(staleness):
            return Policy(workers, 1, staleness, is_replicated)
        case Backup(spare):
            if not 0 <= spare < workers:
                raise InvalidArgumentError(
                    f"Backup: expected 0 to {workers - 1} of {workers} workers; got {spare}"
                )
            return Policy(workers, workers - spare, None, is_replicated, is_backup=spare > 0)
