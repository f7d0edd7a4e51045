"""Event files, written by `FileWriter` and read by TensorBoard.

An event file is a TFRecord file (`flowrt.storage.records`) of encoded `Event` messages.

Rules: the first event carries the file version; a file is only appended to, and a name is never used twice,
so that a reader may follow a live file; a flush writes complete records, in one write, of which a reader may
briefly see a part; no event that `add_event` accepted is lost in an orderly exit, even without `close`; a
reader yields complete records only and names the byte at which a file is damaged.
"""

from __future__ import annotations

import errno
import functools
import io
import itertools
import os
import platform
import threading
import time
import weakref
from collections.abc import Iterator

from google.protobuf.message import DecodeError

from flowrt.errors import (
    DataLossError,
    DTypeError,
    FailedPreconditionError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnknownError,
)
from flowrt.protos.event_pb2 import Event
from flowrt.storage.records import decode_records, encode_record

FILE_VERSION = "brain.Event:2"
WRITE_S = 1.0
"""Longer than any pause within a write: 5 MB take 5 ms, a full disk queue 200."""

POLL_S = 0.005

_ERROR_OF_ERRNO: dict[int | None, type[OpError]] = {
    errno.ENOENT: NotFoundError,
    errno.EACCES: PermissionDeniedError,
    errno.EPERM: PermissionDeniedError,
    errno.EROFS: PermissionDeniedError,
    errno.ENOSPC: ResourceExhaustedError,
    errno.EFBIG: ResourceExhaustedError,
    errno.EDQUOT: ResourceExhaustedError,
    errno.EEXIST: FailedPreconditionError,
    errno.EISDIR: FailedPreconditionError,
    errno.ENOTDIR: FailedPreconditionError,
}


def _typed(error: OSError, doing: str) -> OpError:
    return _ERROR_OF_ERRNO.get(error.errno, UnknownError)(f"{doing}: {error.strerror or error}")


# --- reading --------------------------------------------------------------------------------------


def read_events(path: str | os.PathLike[str], patience_s: float = 0.0) -> Iterator[Event]:
    """Yield every event of the file's current content, starting with the file version. If the last record is
    still being written, wait for it until the file has not changed for ``patience_s`` seconds.

    Raises NotFoundError if there is no such file, and DataLossError, with the byte offset of the record, if
    the file is damaged or ends within a record, after yielding all events before it. An empty file
    has no events.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            reaches = functools.partial(_reaches, file, patience_s=patience_s)
            for offset, payload in decode_records(file, name, _size(file), reaches):
                yield _decode_event(payload, name, offset)
    except OSError as error:
        raise _typed(error, f"cannot read {name}") from error


def _reaches(file: io.BufferedReader, end: int, patience_s: float) -> bool:
    """Whether ``file`` has ``end`` bytes, or grows to them without a pause of ``patience_s`` seconds."""
    size, age = _size(file), time.time() - os.fstat(file.fileno()).st_mtime
    since = time.monotonic() - max(0.0, age)
    while size < end and time.monotonic() - since < patience_s:
        time.sleep(POLL_S)
        before, size = size, _size(file)
        if size > before:
            since = time.monotonic()
    return size >= end


def _size(file: io.BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size


def _decode_event(payload: bytes, name: str, offset: int) -> Event:
    try:
        return Event.FromString(payload)
    except DecodeError as error:
        raise DataLossError(
            f"{name}: record at byte {offset}: expected an Event message; got {error}"
        ) from error


# --- writing --------------------------------------------------------------------------------------


class _EventFile:
    """An open event file and the bytes not yet written to it. Not locked."""

    def __init__(self, logdir: str, suffix: str) -> None:
        self.file = _create(logdir, suffix)
        self.pending = bytearray()
        self.append(Event(wall_time=time.time(), file_version=FILE_VERSION))

    def append(self, event: Event) -> None:
        self.pending += encode_record(event.SerializeToString())

    def flush(self) -> None:
        """Hand all pending bytes to the operating system. After a raise the rest is still pending."""
        try:
            while self.pending:
                del self.pending[: self.file.write(self.pending)]
        except OSError as error:
            raise _typed(error, f"cannot write {self.file.name}") from error

    def close(self) -> None:
        self.flush()
        self.file.close()


def _create(logdir: str, suffix: str) -> io.FileIO:
    """A file with a new name: the current second, or the next free one, which keeps names sorted."""
    try:
        os.makedirs(logdir, exist_ok=True)
        for second in itertools.count(int(time.time())):
            path = os.path.join(logdir, f"events.out.tfevents.{second:010d}.{platform.node()}{suffix}")
            try:
                return io.FileIO(path, "xb")
            except FileExistsError:
                continue
    except OSError as error:
        raise _typed(error, f"cannot create an event file in {logdir}") from error
    raise AssertionError("itertools.count ended")


class EventFileWriter:
    """Appends events to a new file ``events.out.tfevents.<seconds>.<host><suffix>`` in ``logdir``.

    ``logdir`` is created if missing. Events are buffered until there are ``max_queue`` of them, or
    ``flush_secs`` seconds have passed since the last flush (checked when an event is added: there is no
    thread), or `flush`, `close` or the end of the process. Thread-safe.

    Raises PermissionDeniedError or FailedPreconditionError if no file can be created in ``logdir``.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str | None = None,
    ) -> None:
        self._logdir, self._suffix = os.fspath(logdir), filename_suffix or ""
        self._max_queue, self._flush_secs = max_queue, flush_secs
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._events = _EventFile(self._logdir, self._suffix)
        self._closing = weakref.finalize(self, self._events.close)  # also runs at the interpreter's exit
        self._flush()

    def get_logdir(self) -> str:
        return self._logdir

    def add_event(self, event: Event) -> None:
        """Append ``event``. It is encoded immediately: later changes do not affect the file.

        Raises DTypeError if it is not an Event and FailedPreconditionError after `close`: nothing is added
        then. Raises ResourceExhaustedError if the disk is full: the next flush retries.
        """
        if not isinstance(event, Event):
            raise DTypeError(f"add_event: expected a flowrt.Event message; got {type(event).__name__}")
        with self._lock:
            self._check_open()
            self._events.append(event)
            self._waiting += 1
            if self._waiting >= self._max_queue or time.monotonic() - self._flushed >= self._flush_secs:
                self._flush()

    def flush(self) -> None:
        """Hand every event to the operating system. Does nothing after `close`."""
        with self._lock:
            if self._closing.alive:
                self._flush()

    def close(self) -> None:
        """Flush and close the file. A second call does nothing; `reopen` starts a new file."""
        with self._lock:
            if self._closing.alive:
                self._flush()  # may raise: the file is still open then
                self._closing()

    def reopen(self) -> None:
        """Continue after `close` in a new file of the same directory; does nothing before it."""
        with self._lock:
            if not self._closing.alive:
                self._open()

    def _check_open(self) -> None:
        if not self._closing.alive:
            raise FailedPreconditionError(
                f"EventFileWriter in {self._logdir}: expected an open writer; got a closed one. "
                "Call reopen() first."
            )

    def _flush(self) -> None:
        self._events.flush()
        self._waiting, self._flushed = 0, time.monotonic()
