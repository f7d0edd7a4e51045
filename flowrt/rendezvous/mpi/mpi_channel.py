"""MPI (the extra ``mpi``): messages between the ranks of a world, and its collectives. The only module that
imports mpi4py.

Nothing here blocks: operations return a `Transfer`, which is polled. Collectives use a separate communicator
(`MpiWorld.begin_group`). All messages are in ``COMM_WORLD``, with tags from the upper half of MPI's range: a
program that receives with ``ANY_TAG`` must use its own communicator (``COMM_WORLD.Dup()``).
"""

from __future__ import annotations

import os
import secrets
import threading
from typing import Any, final

from flowrt.errors import FailedPreconditionError, UnavailableError
from flowrt.rendezvous.channel.framing import Buffer

INIT_S = 60.0
"""Seconds for all ranks to reach MPI's initialisation, where each waits for the others."""
NAMESPACE = "PMIX_NAMESPACE"
"""Open MPI's variable with the name of a run."""


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
        """Receive into ``room``, which has the same size. Raises `OSError`."""
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
        """An unused tag: a random one of the upper half, which is 2**30 with Open MPI."""
        half = self.max_tag // 2
        return half + secrets.randbelow(half)

    def send(self, data: Buffer, rank: int, tag: int) -> Transfer:
        """Begin to send a message; those to one rank and tag stay in order. Raises `OSError`."""
        try:
            return Transfer(self._world.Isend([data, self._mpi.BYTE], rank, tag), self._mpi.Exception)
        except self._mpi.Exception as error:
            raise OSError(f"MPI: {error}") from error

    def begin_group(self) -> tuple[MpiGroup, Transfer]:
        """A communicator for collectives of all ranks, there when the transfer is done: all have begun it.
        Raises `OSError`.
        """
        try:
            communicator, request = self._world.Idup()
        except self._mpi.Exception as error:
            raise OSError(f"MPI: {error}") from error
        return MpiGroup(self._mpi, communicator), Transfer(request, self._mpi.Exception)

    def probe(self, rank: int, tag: int) -> Arrival | None:
        """The next message from ``rank`` under ``tag``, if it is there. Raises `OSError`."""
        status = self._mpi.Status()
        try:
            message = self._world.Improbe(rank, tag, status)
        except self._mpi.Exception as error:
            raise OSError(f"MPI: {error}") from error
        return None if message is None else Arrival(message, status.Get_count(self._mpi.BYTE), self._mpi)


@final
class MpiGroup:
    """Collectives of all ranks, which have to begin the same ones in the same order. Arrays are NumPy's,
    contiguous and flat; they are MPI's until the transfer is done. All raise `OSError`.
    """

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi, self._communicator = mpi, communicator
        self._joins = {"sum": mpi.SUM, "mean": mpi.SUM, "prod": mpi.PROD, "min": mpi.MIN, "max": mpi.MAX}

    def joins(self, dtype: Any) -> bool:
        """Whether MPI has arithmetic of ``dtype``."""
        return dtype.kind in "iuf" and dtype.itemsize >= 4 and dtype.char in "ilqILQfd"

    def all_reduce(self, array: Any, out: Any, reduction: str) -> Transfer:
        """``out`` may be ``array``. A mean is only summed up."""
        given = self._mpi.IN_PLACE if out.ctypes.data == array.ctypes.data else array
        return self._begin("Iallreduce", given, out, self._joins[reduction])

    def reduce(self, array: Any, out: Any | None, reduction: str, root: int) -> Transfer:
        """``out`` is the root's, and may be ``array``."""
        is_same = out is not None and out.ctypes.data == array.ctypes.data
        return self._begin(
            "Ireduce", self._mpi.IN_PLACE if is_same else array, out, self._joins[reduction], root
        )

    def reduce_scatter(self, array: Any, out: Any, reduction: str) -> Transfer:
        return self._begin("Ireduce_scatter_block", array, out, self._joins[reduction])

    def broadcast(self, array: Any, root: int) -> Transfer:
        return self._begin("Ibcast", self._bytes(array), root)

    def all_gather(self, array: Any, out: Any) -> Transfer:
        return self._begin("Iallgather", self._bytes(array), self._bytes(out))

    def gather(self, array: Any, out: Any | None, root: int) -> Transfer:
        return self._begin("Igather", self._bytes(array), self._bytes(out), root)

    def scatter(self, array: Any | None, out: Any, root: int) -> Transfer:
        return self._begin("Iscatter", self._bytes(array), self._bytes(out), root)

    def all_to_all(self, array: Any, given: Any, out: Any, taken: Any) -> Transfer:
        """``given[i]`` bytes to rank i, ``taken[i]`` from it."""
        sent, received = [array.view("u1"), given, self._mpi.BYTE], [out.view("u1"), taken, self._mpi.BYTE]
        return self._begin("Ialltoallv", sent, received)

    def barrier(self) -> Transfer:
        return self._begin("Ibarrier")

    def _bytes(self, array: Any | None) -> Any:
        return None if array is None else [array.view("u1"), self._mpi.BYTE]

    def _begin(self, name: str, *arguments: Any) -> Transfer:
        try:
            return Transfer(getattr(self._communicator, name)(*arguments), self._mpi.Exception)
        except self._mpi.Exception as error:
            raise OSError(f"MPI: {error}") from error


_lock = threading.Lock()
_worlds: list[MpiWorld] = []


def open_world() -> MpiWorld:
    """The world of this process; MPI is initialised on first use, and finalised at exit.

    Raises `FailedPreconditionError` if mpi4py or an MPI library is missing, or MPI supports only one thread,
    and `UnavailableError` if the other ranks do not initialise it too within `INIT_S` seconds.
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
            "transport mpi: expected MPI to be initialised for multiple threads (MPI_THREAD_MULTIPLE); got "
            f"level {MPI.Query_thread()} of {MPI.THREAD_MULTIPLE}"
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
