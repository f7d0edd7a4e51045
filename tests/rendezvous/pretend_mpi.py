"""An mpi4py whose world is one process: for the code above it, where there is no MPI.

It is as late as MPI may be: a message of more than `EAGER_BYTES` lies where the sender has it until it is
received, and a receive is done when it was asked about `ASKED_TIMES` times.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import Any

BYTE = "byte"
TAG_UB = 7
THREAD_MULTIPLE = 3
EAGER_BYTES = 4096
ASKED_TIMES = 3
MAX_TAG = 32767  # the least that MPI promises


class Exception(RuntimeError):
    """What MPI's functions raise."""


class Status:
    nbytes = 0

    def Get_count(self, datatype: str) -> int:
        assert datatype == BYTE
        return self.nbytes


class _Sent:
    """A message, and the request of its sender."""

    def __init__(self, data: Any) -> None:
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.is_received = len(view) <= EAGER_BYTES
        self.data = bytes(view) if self.is_received else view

    def Test(self) -> bool:
        return self.is_received

    def Irecv(self, where: list[Any]) -> _Receiving:
        room, datatype = where
        assert datatype == BYTE
        return _Receiving(self, room)


class _Receiving:
    def __init__(self, message: _Sent, room: Any) -> None:
        self._message, self._room = message, room
        self._asked = 0

    def Test(self) -> bool:
        self._asked += 1
        if self._asked < ASKED_TIMES:
            return False
        memoryview(self._room)[:] = self._message.data
        self._message.is_received = True
        return True


class _World:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: defaultdict[tuple[int, int], deque[_Sent]] = defaultdict(deque)
        self.failure: Exception | None = None
        """What the next probe raises, until it is None again."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def Get_attr(self, key: int) -> int:
        assert key == TAG_UB
        return MAX_TAG

    def Isend(self, what: list[Any], dest: int, tag: int) -> _Sent:
        data, datatype = what
        assert (datatype, dest) == (BYTE, 0)
        assert 0 <= tag <= MAX_TAG
        message = _Sent(data)
        with self._lock:
            self._messages[dest, tag].append(message)
        return message

    def Improbe(self, source: int, tag: int, status: Status) -> _Sent | None:
        if self.failure is not None:
            raise self.failure
        with self._lock:
            waiting = self._messages[source, tag]
            message = waiting.popleft() if waiting else None
        if message is not None:
            status.nbytes = len(message.data)
        return message


class PretendMpi:
    """What `flowrt.rendezvous.mpi.mpi_channel.MpiWorld` needs of the module ``mpi4py.MPI``."""

    BYTE, TAG_UB, Exception, Status = BYTE, TAG_UB, Exception, Status

    def __init__(self) -> None:
        self.COMM_WORLD = _World()
