"""MPI (the extra ``mpi``): messages between the ranks of a world. The one module that imports mpi4py.

Nothing here is collective, so no rank waits for another that is elsewhere in its program. All messages are in
``COMM_WORLD``, under tags from the upper half of what MPI has: a program that receives with ``ANY_TAG`` does
that in a communicator of its own (``COMM_WORLD.Dup()``).
"""

from __future__ import annotations

import os
import secrets
import threading
from typing import Any, final

from flowrt.errors import FailedPreconditionError, UnavailableError
from flowrt.rendezvous.framing import Buffer

INIT_S = 60.0
"""Seconds for all ranks to come to MPI's initialisation, where each waits for the others."""
NAMESPACE = "PMIX_NAMESPACE"
"""What Open MPI calls a run."""


@final
class Transfer:
    """A message that MPI is sending or receiving. Its memory stays alive as long as this does."""

    def __init__(self, request: Any, error: type[Exception]) -> None:
        self._request = request
        self._error = error

    def is_done(self) -> bool:
        """Raises `OSError` where MPI failed."""
        try:
            return bool(self._request.Test())
        except self._error as error:
            raise OSError(f"MPI: {error}") from error


@final
class Arrival:
    """A message that is there, of ``nbytes`` bytes, to be received once."""

    def __init__(self, message: Any, nbytes: int, mpi: Any) -> None:
        self._message = message
        self.nbytes = nbytes
        self._mpi = mpi

    def receive(self, room: memoryview | bytearray) -> Transfer:
        """Into ``room``, which has as many bytes. Raises `OSError`."""
        try:
            return Transfer(self._message.Irecv([room, self._mpi.BYTE]), self._mpi.Exception)
        except self._mpi.Exception as error:
            raise OSError(f"MPI: {error}") from error


@final
class MpiWorld:
    """The ranks that were started together, of which this process is number ``rank``. Any thread may call
    anything.

    ``name`` is a hint: two processes with different ones are not in one world.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        self.name = f"{os.environ.get(NAMESPACE, '')}/{self.size}"
        self.max_tag: int = self._world.Get_attr(mpi.TAG_UB)

    def new_tag(self) -> int:
        """One that nobody uses: a random one of the upper half, which is 2**30 with Open MPI."""
        half = self.max_tag // 2
        return half + secrets.randbelow(half)

    def send(self, data: Buffer, rank: int, tag: int) -> Transfer:
        """Begin to send a message; those to one rank and tag stay in order. Raises `OSError`."""
        try:
            return Transfer(self._world.Isend([data, self._mpi.BYTE], rank, tag), self._mpi.Exception)
        except self._mpi.Exception as error:
            raise OSError(f"MPI: {error}") from error

    def probe(self, rank: int, tag: int) -> Arrival | None:
        """The next message from ``rank`` under ``tag``, if it is there. Raises `OSError`."""
        status = self._mpi.Status()
        try:
            message = self._world.Improbe(rank, tag, status)
        except self._mpi.Exception as error:
            raise OSError(f"MPI: {error}") from error
        return None if message is None else Arrival(message, status.Get_count(self._mpi.BYTE), self._mpi)


_lock = threading.Lock()
_worlds: list[MpiWorld] = []


def open_world() -> MpiWorld:
    """The world of this process; MPI is initialised by the first who asks, and finalised at the exit.

    Raises `FailedPreconditionError` where mpi4py or an MPI library is missing, or MPI lets only one thread
    in, and `UnavailableError` where the other ranks do not initialise it too within `INIT_S` seconds.
    """
    with _lock:
        if not _worlds:
            _worlds.append(MpiWorld(_load_mpi()))
        return _worlds[0]


def _load_mpi() -> Any:
    """The module, initialised."""
    try:
        import mpi4py

        # Importing it would initialise MPI, which has no deadline.
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: a wheel that finds no library
        raise FailedPreconditionError(
            f"transport mpi: expected mpi4py and an MPI library; got {error}. Install them with:"
            " pip install flowrt[mpi], apt-get install openmpi-bin"
        ) from None
    if not MPI.Is_initialized():
        _initialise(MPI)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise FailedPreconditionError(
            "transport mpi: expected MPI to be initialised for several threads (MPI_THREAD_MULTIPLE); got"
            f" level {MPI.Query_thread()} of {MPI.THREAD_MULTIPLE}"
        )
    return MPI


def _initialise(mpi: Any) -> None:
    errors: list[Exception] = []

    def run() -> None:
        try:
            mpi.Init_thread(mpi.THREAD_MULTIPLE)
        except mpi.Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="flowrt mpi init", daemon=True)
    thread.start()
    thread.join(INIT_S)
    if thread.is_alive():
        raise UnavailableError(
            f"transport mpi: expected all ranks to initialise MPI within {INIT_S:g} s; some did not. Start"
            " all of them with FLOWRT_TRANSPORT=mpi"
        )
    if errors:
        raise FailedPreconditionError(f"transport mpi: MPI could not be initialised: {errors[0]}")
