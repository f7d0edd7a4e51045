"""`SharedFrames`: frames over a Unix socket, with large arrays in shared memory.

A SHARED frame is a frame with a table before its header: for each array of the payload either "inline" or its
segment. RELEASE and RETIRE frames are lists of segments.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from flowrt.errors import DataLossError, ResourceExhaustedError
from flowrt.rendezvous.channel.byte_stream import MAX_DESCRIPTORS
from flowrt.rendezvous.channel.channel import Bytes, Payload
from flowrt.rendezvous.channel.frame_writer import Outgoing
from flowrt.rendezvous.channel.framing import Frame, Kind, check_bytes, encode
from flowrt.rendezvous.local_links.shared_memory import SHARED, Placement, SegmentMap, SegmentPool

MAX_WAITING = 4
"""Segments released that wait for the next frame to the peer. To tell of each wakes a thread here and one at
the peer; to send along with a frame wakes none.
"""
LARGE = 256 << 10
"""Bytes of a segment of which the peer is told at once: it would make another one."""

_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<QQQ?")
"""Segment, 0 for an array in the frame itself; its bytes; bytes of the segment; whether that is new."""


@final
class SharedFrames:
    """Both directions of one connection. ``poke`` is called when `control` has something to send that does
    not wait for the next frame, in any thread, also by a finalizer.
    """

    def __init__(self, poke: Callable[[], None]) -> None:
        self._poke = poke
        self._pool = SegmentPool()
        self._map = SegmentMap(self._release)
        self._released: deque[int] = deque()
        self._retired: deque[int] = deque()

    # --- out

    def encode(self, header: bytes, payload: Sequence[Payload], sent: Callable[[], None] | None) -> Outgoing:
        """A frame, its large arrays copied to segments; those without room for one stay in the frame."""
        for array in payload:
            if array.nbytes >= SHARED:
                break
        else:
            return Outgoing(encode(Kind.DATA, header, payload), sent)
        for array in payload:
            check_bytes(array)
        places: list[Placement | None] = []
        new: list[int] = []
        for array in payload:
            place = self._place(array) if len(new) < MAX_DESCRIPTORS else None
            places.append(place)
            if place is not None and place.descriptor is not None:
                new.append(place.descriptor)
        inline = [array for array, place in zip(payload, places, strict=True) if place is None]
        return Outgoing(encode(Kind.SHARED, _encode_table(places) + header, inline), sent, new)

    def control(self) -> Outgoing | None:
        """Control frames for the peer: segments released and retired since the last call."""
        if not self._released and not self._retired:
            return None
        buffers = [*_encode_list(Kind.RELEASE, self._released), *_encode_list(Kind.RETIRE, self._retired)]
        return Outgoing(buffers) if buffers else None

    # --- in

    def decode(self, frame: Frame, descriptors: deque[int]) -> tuple[bytes, list[Bytes]]:
        """Header and payload of a SHARED frame; takes the descriptors of its new segments.

        Raises `DataLossError` for an invalid frame.
        """
        try:
            header, payload = self._decode(frame, descriptors)
        except (struct.error, IndexError, StopIteration) as error:
            raise DataLossError(f"shared memory: expected a table of segments; got {error}") from error
        return header, payload

    def handle(self, frame: Frame) -> None:
        """A RELEASE or RETIRE frame. Raises `DataLossError`."""
        if len(frame.header) % 8:
            raise DataLossError(f"shared memory: expected a list of segments; got {len(frame.header)} bytes")
        segments = struct.unpack(f"<{len(frame.header) // 8}Q", frame.header)
        if frame.kind == Kind.RETIRE:
            self._map.drop(segments)
        elif retired := self._pool.take_back(segments):
            self._retired.extend(retired)
            self._poke()

    def close(self) -> None:
        """Release all segments; received arrays stay valid."""
        self._pool.close()
        self._map.close()

    def _place(self, array: Payload) -> Placement | None:
        if array.nbytes < SHARED:
            return None
        try:
            return self._pool.place(array)
        except ResourceExhaustedError:
            return None

    def _release(self, segment: int, capacity: int) -> None:
        self._released.append(segment)
        if capacity > LARGE or len(self._released) >= MAX_WAITING:
            self._poke()

    def _decode(self, frame: Frame, descriptors: deque[int]) -> tuple[bytes, list[Bytes]]:
        (count,) = _COUNT.unpack_from(frame.header)
        end = _COUNT.size + count * _ENTRY.size
        inline = iter(frame.payload)
        payload: list[Bytes] = []
        for segment, nbytes, capacity, is_new in _ENTRY.iter_unpack(frame.header[_COUNT.size : end]):
            if is_new:
                self._map.add(segment, descriptors.popleft(), capacity)
            payload.append(self._map.lend(segment, nbytes) if segment else next(inline))
        return frame.header[end:], payload


def _encode_table(places: Sequence[Placement | None]) -> bytes:
    entries = [
        _ENTRY.pack(0, 0, 0, False)
        if place is None
        else _ENTRY.pack(place.segment, place.nbytes, place.capacity, place.descriptor is not None)
        for place in places
    ]
    return b"".join((_COUNT.pack(len(places)), *entries))


def _encode_list(kind: Kind, segments: deque[int]) -> list[bytes | memoryview]:
    """A frame with the current contents of ``segments``, which is emptied."""
    taken = [segments.popleft() for _ in range(len(segments))]
    return encode(kind, struct.pack(f"<{len(taken)}Q", *taken)) if taken else []
