"""UCX (the extra ``ucx``): tagged messages between processes. The only module that imports ucxx.

A process has one UCX worker, which all of its connections share. One end of a connection is the worker's
address and a random tag, under which it receives. Nothing here blocks; a thread of ucxx, which sleeps while
nothing moves, makes the progress. (Where our polls made it, 64 MiB took five times as long.)

UCX chooses what carries the messages: shared memory on one host; TCP or RDMA, where ``UCX_NET_DEVICES`` names
the devices, between hosts. It neither encrypts nor authenticates, and a wrong address may crash it: as with
MPI, the peers are trusted.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Mapping
from typing import Any, TypeGuard, final

from flowrt.errors import FailedPreconditionError
from flowrt.rendezvous.channel.framing import Buffer
from flowrt.rendezvous.channel.lifeline import DIED

DEFAULTS = {
    "UCX_NET_DEVICES": "lo",  # as tasks listen at the loopback interface, unless they are told otherwise
    "UCX_RNDV_FRAG_MEM_TYPE": "host",  # ucxx would stage large messages in the memory of a GPU
    "UCX_WARN_UNUSED_ENV_VARS": "n",  # it warns of variables that ucxx itself sets
}
"""Variables of UCX where the environment does not set them. It reads them when it is loaded."""


@final
class _Transfer:
    """See `flowrt.rendezvous.messages.message_path.Transfer`. The request reads or writes ``memory``."""

    def __init__(self, worker: UcxWorker, request: Any, memory: Any) -> None:
        self._worker, self._request, self._memory = worker, request, memory

    def is_done(self) -> bool:
        """See `Transfer`."""
        return self._worker.is_completed(self._request)


@final
class _Arrival:
    """See `flowrt.rendezvous.messages.message_path.Arrival`."""

    def __init__(self, worker: UcxWorker, found: Any) -> None:
        self._worker, self._found = worker, found
        self.nbytes: int = found.length

    def receive(self, room: memoryview | bytearray) -> _Transfer:
        """See `Arrival`."""
        return self._worker.receive(self._found, room)


@final
class UcxWorker:
    """This process in UCX, reached at ``address``. Any thread may call anything."""

    def __init__(self, ucx: Any, new_array: Any) -> None:
        self._ucx, self._new_array = ucx, new_array
        self._worker = ucx.UCXWorker(ucx.UCXContext({}, (ucx.Feature.TAG, ucx.Feature.WAKEUP)))
        self._worker.init_blocking_progress_mode()
        self._worker.start_progress_thread(polling_mode=False)
        atexit.register(self._worker.stop_progress_thread)
        self.address: bytes = self._worker.address.tobytes()

    def connect(self, address: bytes) -> Any:
        """An endpoint, which `close` ends. Raises `OSError`."""
        try:
            found = self._ucx.UCXAddress.create_from_buffer(address)
            return self._worker.create_endpoint_from_worker_address(found, endpoint_error_handling=True)
        except self._ucx.UCXError as error:
            raise OSError(f"UCX: {error}") from error

    def send(self, endpoint: Any, data: Buffer, tag: int) -> _Transfer:
        """Begin to send a message; those to one endpoint and tag stay in order. Raises `OSError`."""
        if not endpoint.alive:
            raise OSError(DIED)
        array = self._new_array(data)
        try:
            return _Transfer(self, endpoint.tag_send(array, self._ucx.UCXXTag(tag)), array)
        except self._ucx.UCXError as error:
            raise OSError(f"UCX: {error}") from error

    def probe(self, tag: int) -> _Arrival | None:
        """The next message under ``tag``, if it is there."""
        found = self._worker.tag_probe(self._ucx.UCXXTag(tag), remove=True)
        return _Arrival(self, found) if found.matched else None

    def receive(self, found: Any, room: memoryview | bytearray) -> _Transfer:
        """Receive a message that `probe` has found. Raises `OSError`."""
        array = self._new_array(memoryview(room))
        try:
            return _Transfer(self, self._worker.tag_recv_with_handle(array, found), array)
        except self._ucx.UCXError as error:
            raise OSError(f"UCX: {error}") from error

    def is_completed(self, request: Any) -> bool:
        """Whether a request is. Raises `OSError` if it failed."""
        if not request.completed:
            return False
        try:
            request.check_error()
        except self._ucx.UCXError as error:
            raise OSError(f"UCX: {error}") from error
        return True


@final
class UcxPlace:
    """A `flowrt.rendezvous.messages.message_path.MessagePlace`: the worker, and a random tag."""

    def __init__(self, worker: UcxWorker) -> None:
        self._worker, self._tag = worker, secrets.randbits(64)
        self.address: Mapping[str, Any] = {"worker": worker.address.hex(), "tag": self._tag}

    def path_to(self, said: object) -> UcxPath:
        """See `MessagePlace`."""
        if not isinstance(said, Mapping) or not _is_tag(said.get("tag")):
            raise OSError(f"expected an address of UCX; got {said!r:.100}")
        try:
            address = bytes.fromhex(said["worker"])
        except (KeyError, TypeError, ValueError):
            raise OSError(f"expected an address of UCX; got {said!r:.100}") from None
        return UcxPath(self._worker, self._worker.connect(address), said["tag"], self._tag)


@final
class UcxPath:
    """Sends to ``endpoint`` under ``tag``, receives under ``own_tag``: a
    `flowrt.rendezvous.messages.message_path.MessagePath`.
    """

    def __init__(self, worker: UcxWorker, endpoint: Any, tag: int, own_tag: int) -> None:
        self._worker, self._endpoint, self._tag, self._own_tag = worker, endpoint, tag, own_tag

    def send(self, data: Buffer) -> _Transfer:
        """See `MessagePath`."""
        return self._worker.send(self._endpoint, data, self._tag)

    def probe(self) -> _Arrival | None:
        """See `MessagePath`."""
        return self._worker.probe(self._own_tag)

    def close(self) -> None:
        """See `MessagePath`."""
        self._endpoint.close_blocking()


def _is_tag(number: object) -> TypeGuard[int]:
    return type(number) is int and 0 <= number < 1 << 64


_lock = threading.Lock()
_workers: list[UcxWorker] = []


def open_worker() -> UcxWorker:
    """The worker of this process, made on first use. Raises `FailedPreconditionError` without ucxx, and where
    UCX cannot start.
    """
    with _lock:
        if not _workers:
            _workers.append(_new_worker())
        return _workers[0]


def _new_worker() -> UcxWorker:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        from ucxx._lib import libucxx
        from ucxx._lib.arr import Array
    except ImportError as error:
        raise FailedPreconditionError(
            f"transport ucx: expected ucxx; got {error}. Install it with: pip install flowrt[ucx]"
        ) from None
    try:
        return UcxWorker(libucxx, Array)
    except libucxx.UCXError as error:
        raise FailedPreconditionError(
            f"transport ucx: expected UCX to start with UCX_NET_DEVICES={os.environ['UCX_NET_DEVICES']}; got "
            f"{error}"
        ) from None
