"""Messages between the members of an elastic job and its coordinator: frames with JSON, and no payload.

member -> coordinator    Join, ReadyForNext, Done, HasLeft, Beat
coordinator -> member    Epoch, Change, Over, Beat
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias, get_type_hints

from flowrt.errors import DataLossError

MAX_BYTES = 1 << 20
"""Size of a message: an epoch of some thousand workers fits."""


class Join(NamedTuple):
    """The first message of a member, which is reached at ``address`` in groups."""

    version: str
    name: str
    host: str
    address: str


class ReadyForNext(NamedTuple):
    """See `flowrt.distribute.elastic.coordinator.Ready`."""

    epoch: int
    commit: int
    reason: str


class Done(NamedTuple):
    """See `flowrt.distribute.elastic.coordinator.Finished`."""

    epoch: int
    commit: int


class HasLeft(NamedTuple):
    """The member ends now, as it was told to: no failure."""


class Beat(NamedTuple):
    """The sender lives."""


class Epoch(NamedTuple):
    """The receiver is ``rank`` of the members at ``addresses`` in membership epoch ``number``; rank 0 has the
    state of ``commit``.
    """

    number: int
    rank: int
    names: list[str]
    addresses: list[str]
    commit: int


class Change(NamedTuple):
    """The epoch is over: ``at_once``, or at the next commit."""

    why: str
    at_once: bool


class Over(NamedTuple):
    """The job is over for the receiver: well, if ``why`` is empty."""

    why: str


Message: TypeAlias = Join | ReadyForNext | Done | HasLeft | Beat | Epoch | Change | Over

_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Join, ReadyForNext, Done, HasLeft, Beat, Epoch, Change, Over)
}
_FIELDS = {kind: get_type_hints(kind) for kind in _KINDS.values()}


def encode_message(message: Message) -> bytes:
    return json.dumps([type(message).__name__, message._asdict()]).encode()


def decode_message(frame: bytes) -> Message:
    """Raises `DataLossError` for anything that `encode_message` does not make."""
    if len(frame) > MAX_BYTES:
        raise _malformed(f"{len(frame)} bytes")
    try:
        name, fields = json.loads(frame)
        kind = _KINDS[name]
        message = kind(**fields)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _malformed(f"{frame[:80]!r} ({error})") from None
    for field, value in message._asdict().items():
        if not _is_of(value, _FIELDS[kind][field]):
            raise _malformed(f"{field} = {value!r:.80}")
    return message


def _is_of(value: object, kind: Any) -> bool:
    """Whether ``value`` is an int, a str, a bool, or a list of str, as ``kind`` says."""
    if kind == list[str]:
        return type(value) is list and all(type(each) is str for each in value)
    return type(value) is kind


def _malformed(got: str) -> DataLossError:
    return DataLossError(f"elastic job: expected a message of a member or the coordinator; got {got}")
