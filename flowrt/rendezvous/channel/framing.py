"""Encoding of frames as bytes: pure, for any ordered byte stream.

  magic "flrt" | version u8 | kind u8 | arrays u16 | header length u32 |
      crc32 of the lengths and the header u32 | crc32 of these 16 bytes u32     20 bytes, little endian
  length of each array, u64 each
  header
  bytes of each array
  crc32 of these bytes u32     in a CHECKED frame with arrays

1. The CRCs cover everything before the arrays' bytes: a stream that is out of step is detected at the first
   frame, and a damaged length before anybody waits for so many bytes. The arrays' own bytes are left to the
   transport, except in CHECKED frames: TCP's 16 bits miss some changes, and those made between network card
   and memory; TLS misses none.
2. Every size is checked against a limit before memory is allocated for it.
3. A frame is delivered whole or not at all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias, final

import numpy as np
from zlib_ng.zlib_ng import crc32

from flowrt.device.stream_executor import ALIGNMENT
from flowrt.device.workspace import new_bytes
from flowrt.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from flowrt.rendezvous.channel.channel import Bytes, Payload

MAGIC = b"flrt"
VERSION = 2
MAX_HEADER = 65 << 20
"""Maximum size in bytes of a header: 64 MiB for the largest graph of a request, and overhead."""
MAX_ARRAYS = (1 << 16) - 1
MAX_ARRAY = 1 << 40
"""Maximum size of an array in bytes; a larger length indicates corruption."""
JOINED = 64 << 10
"""Bytes of arrays up to which a frame is copied into one piece: 64 KiB take 5 us to copy, and one piece is
written by one plain call.
"""
PIECE = 256 << 10
"""Bytes of an array for which the checksum is taken at a time, just after the kernel or gRPC has copied them:
then they are still in the processor's cache, where 64 MiB take 1 ms instead of 11.
"""

MAX_LENGTHS = 8
"""Lengths for which a `Repeated` header is ready; texts have any number of them."""
SLAB = 16 << 10
"""Bytes of a slab; arrays of up to a sixteenth of it are cut from one."""

_HEAD = struct.Struct("<4sBBHII")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CRC.size

Buffer: TypeAlias = bytes | memoryview
Allocate: TypeAlias = Callable[[int], Bytes]
NO_REST: Iterator[Buffer] = iter(())
"""The rest of a frame with all its pieces ready."""


class Kind(IntEnum):
    """Purpose of a frame. All but the first two are internal to the connection."""

    DATA = 0
    SHARED = 1  # data, with some arrays in shared memory
    GOODBYE = 2
    RELEASE = 3  # the receiver of shared arrays has done with them
    RETIRE = 4  # the sender of shared arrays has freed segments
    HANDSHAKE = 5
    CHECKED = 6  # data, with a number and a checksum of the arrays; the rest is `CheckedFrames`' own
    ACKNOWLEDGE = 7  # this many CHECKED frames have come
    RESEND = 8  # the next one was damaged, or did not come
    PROBE = 9  # this many were sent


class Frame(NamedTuple):
    kind: int
    header: bytes
    payload: list[Bytes]
    is_intact: bool = True
    """False if the payload does not have its checksum."""


# --- frame -> bytes


@final
class Repeated(bytes):
    """The header of many DATA frames with one array: what precedes the array is made once for each length."""

    def __init__(self, header: bytes) -> None:
        self._prefixes: dict[int, bytes] = {}

    def frame(self, array: Payload) -> bytes:
        """The frame with ``array``, which is copied: one of at most `JOINED` bytes."""
        prefix = self._prefixes.get(array.nbytes)
        if prefix is None:
            if len(self._prefixes) == MAX_LENGTHS:
                self._prefixes.clear()
            prefix = self._prefixes[array.nbytes] = _encode_prefix(Kind.DATA, self, (array.nbytes,))
        return b"".join((prefix, array))  # type: ignore[arg-type]  # arrays of NumPy are buffers, too


def encode(kind: int, header: bytes, payload: Sequence[Payload] = ()) -> list[Buffer]:
    """The bytes of a frame in pieces: one for a small frame, else the non-empty arrays without copying.

    Raises `InvalidArgumentError` for arrays of another dtype or layout, and over a limit.
    """
    if not payload:
        return [_encode_prefix(kind, header, ())]
    lengths: list[int] = []
    views: list[Buffer] = []
    for array in payload:
        lengths.append(array.nbytes)
        if array.nbytes:
            views.append(_view(array))
    prefix = _encode_prefix(kind, header, lengths)
    if sum(lengths) <= JOINED:
        return [b"".join((prefix, *views))]
    return [prefix, *views]


def encode_checked(header: bytes, payload: Sequence[Payload]) -> tuple[list[Buffer], Iterator[Buffer]]:
    """A CHECKED frame: the pieces that are ready, which own their bytes, and an iterator of the others, which
    takes the checksum on its way. Raises as `encode`.
    """
    prefix = _encode_prefix(Kind.CHECKED, header, [array.nbytes for array in payload])
    views = [_view(array) for array in payload if array.nbytes]
    if views and sum(view.nbytes for view in views) > JOINED:
        return [prefix], _checked(views)
    if not payload:
        return [prefix], NO_REST
    data = b"".join(views)
    return [b"".join([prefix, data, _CRC.pack(crc32(data))])], NO_REST


def _checked(views: Sequence[memoryview]) -> Iterator[Buffer]:
    """``views`` in pieces, and their checksum. It takes a piece when the next one is requested: the piece has
    been copied by then.
    """
    crc = 0
    for view in views:
        for at in range(0, view.nbytes, PIECE):
            piece = view[at : at + PIECE]
            yield piece
            crc = crc32(piece, crc)
    yield _CRC.pack(crc)


def _encode_prefix(kind: int, header: bytes, lengths: Sequence[int]) -> bytes:
    if len(header) > MAX_HEADER:
        raise InvalidArgumentError(
            f"frame: expected a header of at most {MAX_HEADER} bytes; got {len(header)}"
        )
    if lengths and (len(lengths) > MAX_ARRAYS or max(lengths) > MAX_ARRAY):
        raise InvalidArgumentError(
            f"frame: expected at most {MAX_ARRAYS} arrays of at most {MAX_ARRAY} bytes; "
            f"got {len(lengths)}, the largest of {max(lengths)} bytes"
        )
    rest = struct.pack(f"<{len(lengths)}Q", *lengths) + header if lengths else header
    head = _HEAD.pack(MAGIC, VERSION, kind, len(lengths), len(header), zlib.crc32(rest))
    return b"".join((head, _CRC.pack(zlib.crc32(head)), rest))


def check_bytes(array: Payload) -> None:
    """Raises `InvalidArgumentError` unless ``array`` is C-contiguous and of uint8."""
    if isinstance(array, memoryview):
        return
    if array.dtype != np.uint8 or not array.flags.c_contiguous:
        raise InvalidArgumentError(
            f"frame: expected C-contiguous arrays of uint8; got {array.dtype} with strides {array.strides}"
        )


def _view(array: Payload) -> memoryview:
    if isinstance(array, memoryview):
        return array
    check_bytes(array)
    return array.data.cast("B")


def pack_messages(buffers: Iterable[Buffer], limit: int) -> Iterator[bytes]:
    """``buffers`` as messages of ``limit`` bytes: small ones share a message, large ones are cut."""
    parts: list[Buffer] = []
    room = limit
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) >= room:
            parts.append(view[:room])
            yield b"".join(parts)
            view, parts, room = view[room:], [], limit
        if view:
            parts.append(view)
            room -= len(view)
    if parts:
        yield b"".join(parts)


# --- bytes -> frames


@final
class Slab:
    """Memory of which small arrays are cut, aligned; it lives as long as one of them. An array of NumPy's own
    takes 5 us, and 100 when its code is not in the processor's cache.
    """

    def __init__(self) -> None:
        self._used = SLAB + 1  # no room, not even for nothing
        self._array: Bytes
        self._view: memoryview

    def cut(self, data: memoryview) -> Bytes:
        """An array with a copy of ``data``, of at most `SLAB` bytes."""
        begin, end = self._used, self._used + len(data)
        if end > SLAB:
            self._array = new_bytes(SLAB)
            self._view = self._array.data
            begin, end = 0, len(data)
        self._view[begin:end] = data
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        return self._array[begin:end]


@final
class FrameDecoder:
    """Decodes frames from bytes in pieces of any size.

    Callers with bytes use `feed`; callers that can read into memory read to `room` and report the number by
    `written`, which avoids copying large arrays. Both return the completed frames.

    Raises `DataLossError` for invalid bytes, `FailedPreconditionError` for another version's,
    `ResourceExhaustedError` if an array cannot be allocated; the decoder is unusable afterwards.
    """

    def __init__(self, allocate: Allocate = new_bytes) -> None:
        self._allocate = allocate
        self._in_head = True
        self._is_summed = False
        self._crc = 0
        self._whole: list[Frame] = []
        self._slab = Slab()
        self._rooms = self._read()
        self.room: memoryview = next(self._rooms)
        """Memory for the next bytes; never empty, never more than the rest of the frame."""

    @property
    def is_between_frames(self) -> bool:
        """Whether a stream may end here."""
        return self._in_head and len(self.room) == HEAD_BYTES

    def feed(self, data: Buffer | bytearray) -> list[Frame]:
        view = memoryview(data)
        frames: list[Frame] = []
        while view:
            # `is_between_frames`
            if self._in_head and len(self.room) == HEAD_BYTES and (whole := self._decode_whole(view)):
                frame, size = whole
                frames.append(frame)
                view = view[size:]
                continue
            count = min(len(view), len(self.room), PIECE)
            self.room[:count] = view[:count]
            frames += self.written(count)
            view = view[count:]
        return frames

    def written(self, count: int) -> list[Frame]:
        """``count`` bytes, at most those of `room`, were put there."""
        if self._is_summed:
            self._crc = crc32(self.room[:count], self._crc)
        self.room = self.room[count:]
        if self.room:
            return []
        self.room = next(self._rooms)
        frames, self._whole = self._whole, []
        return frames

    def _read(self) -> Generator[memoryview, None, None]:
        """Yields each place that has to be filled."""
        while True:
            head = bytearray(HEAD_BYTES)
            self._in_head = True
            yield memoryview(head)
            kind, arrays, header_bytes, crc = _decode_head(head)
            rest = bytearray(8 * arrays + header_bytes)
            self._in_head = False
            if rest:
                yield memoryview(rest)
            if zlib.crc32(rest) != crc:
                raise _bad_header()
            payload = [self._array(length) for length in struct.unpack_from(f"<{arrays}Q", rest)]
            is_checked = kind == Kind.CHECKED and arrays > 0
            self._is_summed, self._crc = is_checked, 0
            for array in payload:
                if array.nbytes:
                    yield array.data.cast("B")
            self._is_summed = False
            stored = bytearray(_CRC.size)
            if is_checked:
                yield memoryview(stored)
            is_intact = not is_checked or _CRC.unpack(stored)[0] == self._crc
            self._whole.append(Frame(kind, bytes(memoryview(rest)[8 * arrays :]), payload, is_intact))

    def _decode_whole(self, view: memoryview) -> tuple[Frame, int] | None:
        """The frame at the start of ``view`` and its size, if it is complete there. Piecewise decoding of a
        small frame, the most common kind, takes 2 us more, and 4 with an array.
        """
        if len(view) < HEAD_BYTES:
            return None
        kind, arrays, header_bytes, crc = _decode_head(view)
        at = HEAD_BYTES + 8 * arrays
        end = at + header_bytes
        if len(view) < end or (arrays and kind == Kind.CHECKED):
            return None
        if zlib.crc32(view[HEAD_BYTES:end]) != crc:
            raise _bad_header()
        header = bytes(view[at:end])
        if not arrays:
            return Frame(kind, header, []), end
        payload: list[Bytes] = []
        for number in range(arrays):
            (length,) = _LENGTH.unpack_from(view, HEAD_BYTES + 8 * number)
            data = view[end : end + length]
            if len(data) < length:
                return None
            if length <= SLAB // 16:
                array = self._slab.cut(data)
            else:
                array = self._array(length)
                array.data[:] = data
            payload.append(array)
            end += length
        return Frame(kind, header, payload), end

    def _array(self, length: int) -> Bytes:
        if length > MAX_ARRAY:
            raise DataLossError(f"frame: expected arrays of at most {MAX_ARRAY} bytes; got {length}")
        try:
            return self._allocate(length)
        except MemoryError as error:
            raise ResourceExhaustedError(
                f"frame: expected memory for an array of {length} bytes; got none"
            ) from error


def _bad_header() -> DataLossError:
    return DataLossError("frame: expected the checksum of its header to match; it does not")


def _decode_head(head: bytearray | memoryview) -> tuple[int, int, int, int]:
    """Kind, number of arrays, length of the header, CRC of what follows before the arrays."""
    magic, version, kind, arrays, header_bytes, crc = _HEAD.unpack_from(head)
    if magic != MAGIC:
        raise DataLossError(f"frame: expected the prefix {MAGIC!r}; got {magic!r}")
    if version != VERSION:
        raise FailedPreconditionError(
            f"frame: expected protocol version {VERSION}; got {version}. All tasks must run the same release"
        )
    if zlib.crc32(head[: _HEAD.size]) != _CRC.unpack_from(head, _HEAD.size)[0]:
        raise DataLossError("frame: expected the checksum of its head to match; it does not")
    if header_bytes > MAX_HEADER:
        raise DataLossError(f"frame: expected a header of at most {MAX_HEADER} bytes; got {header_bytes}")
    return kind, arrays, header_bytes, crc
