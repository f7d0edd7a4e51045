"""Ending all groups of this process at once, those that are being formed too: their members have changed.

A process of an elastic job has groups of one membership epoch at a time. When the coordinator says that the
epoch is over, waits in its groups end; groups that are formed later, until `admit_groups`, end at once.
"""

from __future__ import annotations

import threading
from typing import final
from weakref import WeakSet

from flowrt.distribute.collectives.mesh import Mesh
from flowrt.errors import OpError


@final
class _Interruption:
    """The meshes of a process, and the error that ends them all. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._meshes: WeakSet[Mesh] = WeakSet()
        self._error: OpError | None = None

    def watch(self, mesh: Mesh) -> None:
        with self._lock:
            self._meshes.add(mesh)
            error = self._error
        if error is not None:
            mesh.abort(error)

    def begin(self, error: OpError) -> None:
        with self._lock:
            self._error = error
            meshes = list(self._meshes)
        for mesh in meshes:
            mesh.abort(error)

    def end(self) -> None:
        with self._lock:
            self._error = None


_interruption = _Interruption()


def watch_mesh(mesh: Mesh) -> None:
    """Let `interrupt_groups` end ``mesh``."""
    _interruption.watch(mesh)


def interrupt_groups(error: OpError) -> None:
    """End all groups of this process with ``error``, and those that it begins to form from now on."""
    _interruption.begin(error)


def admit_groups() -> None:
    """Groups may be formed again."""
    _interruption.end()
