"""The messages of a cluster as values, and as frames of a transport.

A `Message` is one body of ``flowrt/protos/cluster.proto`` with attachments: tensors, and at most one graph,
with its large constants among the tensors (`flowrt.graph.construction.detached`). Within a process it is
passed directly. Between processes `encode` makes a frame of it, a header (an `Envelope`) and the tensors'
bytes, and `decode` restores the message, except the graph: that stays text until a later call of
`read_graph`, with the nodes that it builds on.

Rule of this file: decoding trusts nothing. Malformed data raises an `InvalidArgumentError` with the expected
form, before any allocation.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from flowrt import errors
from flowrt.dtypes import as_dtype, string
from flowrt.errors import (
    AbortedError,
    InvalidArgumentError,
    OpError,
    Origin,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from flowrt.graph.messages.tensor_proto import MAX_RANK, decode_type
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.ops.state.session_tensors import TensorHandle
from flowrt.graph.text.graph_text import parse_subgraph, print_subgraph
from flowrt.protos import cluster_pb2 as pb

PROTOCOL = 6
"""Protocol version of the messages. Tasks with different versions do not work together."""

MAX_INLINE_BYTES = 4096
"""Maximum size of tensors inside the header: a separate part of the payload has overhead."""

MAX_GRAPH_BYTES = 64 << 20
"""Maximum size of a graph's text, without its large constants."""

Array = np.ndarray[Any, Any]


_NONE: Mapping[str, Node] = MappingProxyType({})


class Message(NamedTuple):
    """``body`` is a message of cluster.proto. ``graph`` may read nodes in ``known``, which the peer has."""

    body: Any
    tensors: Sequence[Any] = ()
    graph: Subgraph | None = None
    known: Mapping[str, Node] = _NONE


class Frame(NamedTuple):
    """Unit of a transport: a header and the payload after it, uint8 arrays."""

    header: bytes
    payload: list[Array]


class Envelope(NamedTuple):
    """A message with its address on a connection; ``error`` for a failed request. ``settled``: acknowledged
    answers, by their request numbers. ``also``: further requests that are answered, by one tensor each.
    """

    request_id: int
    is_answer: bool
    message: Message | None
    error: OpError | None
    settled: Sequence[int] = ()
    also: Sequence[int] = ()


_BODY_OF = {
    getattr(pb, field.message_type.name): field.name
    for field in pb.Envelope.DESCRIPTOR.oneofs_by_name["body"].fields
    if field.message_type is not None
}
"""The field of each class of bodies."""

_GRAPH_OF = {
    "register_graph": "graph",
    "extend_session": "graph",
    "make_callable": "feeds",
    "partial_run_setup": "feeds",
}
"""The field of its graph, by the kind of body."""


def encode(
    request_id: int,
    message: Message,
    is_answer: bool = False,
    settled: Sequence[int] = (),
    also: Sequence[int] = (),
) -> Frame:
    """``settled``, ``also``: see `Envelope`. Raises `UnimplementedError` for a tensor or a graph that cannot
    be serialized, `ResourceExhaustedError` for a graph over the receivers' limit.
    """
    envelope = pb.Envelope(request_id=request_id, is_answer=is_answer, also=also)
    if settled:
        envelope.settled.extend(settled)
    body, tensors, graph, known = message
    kind = _BODY_OF[type(body)]
    if graph is not None:
        setattr(body, _GRAPH_OF[kind], _checked_length(print_subgraph(graph, known).encode()))
    getattr(envelope, kind).CopyFrom(body)
    payload: list[Array] = []
    for tensor in tensors:
        part = _encode_tensor(envelope.tensors.add(), _as_array(tensor))
        if part is not None:
            payload.append(part)
    return Frame(envelope.SerializeToString(), payload)


def encode_error(request_id: int, error: OpError, task: str) -> Frame:
    """An answer that is ``error``, with ``task`` as its origin unless it has one."""
    envelope = pb.Envelope(request_id=request_id, is_answer=True, status=encode_status(error, task))
    return Frame(envelope.SerializeToString(), [])


def decode(header: bytes, payload: Sequence[Array]) -> Envelope:
    """Raises `InvalidArgumentError` for a frame that `encode` would not have made."""
    envelope = _parse(header)
    kind = envelope.WhichOneof("body")
    if kind is None and envelope.HasField("status"):
        return Envelope(envelope.request_id, True, None, decode_status(envelope.status), envelope.settled)
    if kind is None:
        raise InvalidArgumentError("message: expected a body known to this version; got none")
    parts = iter(payload)
    tensors = [_decode_tensor(meta, parts) for meta in envelope.tensors]
    if next(parts, None) is not None:
        raise InvalidArgumentError(f"message {kind}: expected one tensor per part of the payload")
    also = envelope.also
    if also and (not envelope.is_answer or len(tensors) != 1 + len(also)):
        got = f"{len(tensors)}, in {'an answer' if envelope.is_answer else 'a request'}"
        raise InvalidArgumentError(
            f"message {kind}: expected an answer with {1 + len(also)} tensors; got {got}"
        )
    message = Message(getattr(envelope, kind), tensors)
    return Envelope(envelope.request_id, envelope.is_answer, message, None, envelope.settled, also)


def num_answers(message: Message) -> int:
    """Number of answers to a request; their numbers follow its own."""
    return len(message.body.keys) if type(message.body) is pb.RecvTensor else 1


def address_of(header: bytes) -> tuple[tuple[int, ...], bool]:
    """(request ids, whether it is an answer) of a frame with a message that `decode` rejects. Raises
    `InvalidArgumentError` if it is not an Envelope at all.
    """
    envelope = _parse(header)
    return (envelope.request_id, *envelope.also), envelope.is_answer


def _parse(header: bytes) -> Any:
    envelope = pb.Envelope()
    try:
        envelope.ParseFromString(header)
    except DecodeError as error:
        raise InvalidArgumentError(
            f"message: expected an Envelope; got {len(header)} bytes: {error}"
        ) from None
    return envelope


_ASKED_BY = {
    "clock_reading": "ReadClock",
    "metrics": "GetMetrics",
    "step_profiles": "ProfileSteps",
    "device_list": "CreateWorkerSession",
    "graph_handle": "RegisterGraph",
    "step_result": "RunGraph",
    "session_handle": "CreateSession",
    "callable_handle": "MakeCallable",
    "partial_run_handle": "PartialRunSetup",
    "graph_version": "ExtendSession",
}
"""The request that has such an answer. `Done` answers many."""


def kind_of(header: bytes) -> str:
    """The name of the message in ``header``, for the rules of `flowrt.rendezvous.faulty`: ``RecvTensor``,
    ``RecvTensorReply``. An empty answer, or an error, is a ``Reply``.
    """
    envelope = pb.Envelope.FromString(header)
    kind = envelope.WhichOneof("body")
    if not envelope.is_answer:
        return type(getattr(envelope, kind)).__name__ if kind else ""
    asked = "RecvTensor" if kind == "done" and envelope.tensors else _ASKED_BY.get(kind or "", "")
    return f"{asked}Reply"


# --- graphs


def read_graph(message: Message, known: Mapping[str, Node] = _NONE) -> Subgraph:
    """The graph of ``message``, without its large constants. It may read nodes in ``known``. Raises
    `InvalidArgumentError` and `NotFoundError` for invalid text, `ResourceExhaustedError` if it is too long.
    """
    if message.graph is not None:
        return message.graph
    text = _checked_length(getattr(message.body, _GRAPH_OF[_BODY_OF[type(message.body)]]))
    try:
        return parse_subgraph(text.decode(), known)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"graph: expected a text in UTF-8; got {error}") from None


def _checked_length(text: bytes) -> bytes:
    if len(text) > MAX_GRAPH_BYTES:
        raise ResourceExhaustedError(
            f"graph: expected at most {MAX_GRAPH_BYTES} bytes of text; got {len(text)}"
        )
    return text


# --- tensors


def _as_array(tensor: Any) -> Array:
    """A scalar string is plain bytes, which NumPy would take for an array without their last zeros."""
    if isinstance(tensor, TensorHandle):
        raise UnimplementedError(
            "a TensorHandle cannot be sent to another process. Use get_session_handle in the process of "
            "the device, or keep the value in a variable"
        )
    return np.array(tensor, object) if isinstance(tensor, bytes | str) else np.asarray(tensor)


def _encode_tensor(meta: Any, array: Array) -> Array | None:
    """Describe ``array`` in ``meta``; returns its bytes if they are sent outside the header."""
    if array.dtype.kind == "O":
        _encode_strings(meta, array)
        return None
    meta.dtype = as_dtype(array.dtype).number
    meta.shape.extend(array.shape)
    if array.nbytes <= MAX_INLINE_BYTES:
        meta.content = array.tobytes()
        return None
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _encode_strings(meta: Any, array: Array) -> None:
    flat = array.reshape(-1).tolist()
    if not all(isinstance(item, bytes | str) for item in flat):
        kind = next(type(item).__name__ for item in flat if not isinstance(item, bytes | str))
        raise UnimplementedError(
            f"a Python value of type {kind} cannot be sent to another task. Keep lists and resources on the "
            "task where they are created"
        )
    meta.dtype = string.number
    meta.shape.extend(array.shape)
    meta.strings.value.extend(item if isinstance(item, bytes) else item.encode() for item in flat)


def _decode_tensor(meta: Any, parts: Any) -> Array:
    dtype, shape = decode_type(meta.dtype), tuple(meta.shape)
    if len(shape) > MAX_RANK or (shape and min(shape) < 0):
        raise InvalidArgumentError(f"tensor: expected a shape of up to {MAX_RANK} dimensions; got {shape}")
    count = math.prod(shape)
    if not count and math.prod(dim or 1 for dim in shape) > sys.maxsize // dtype.np.itemsize:
        raise InvalidArgumentError(f"tensor: expected dimensions that NumPy supports; got {shape}")
    place = meta.WhichOneof("place")
    if dtype.np.kind == "O":
        if place != "strings" or len(meta.strings.value) != count:
            raise InvalidArgumentError(f"tensor: expected {count} strings; got {len(meta.strings.value)}")
        strings = np.empty(count, object)
        strings[:] = list(meta.strings.value)
        return strings.reshape(shape)
    content = bytearray(meta.content) if place == "content" else next(parts, None)
    if content is None or len(content) != count * dtype.np.itemsize:
        got = "none" if content is None else len(content)
        raise InvalidArgumentError(
            f"tensor: expected {count * dtype.np.itemsize} bytes for {dtype.name}{list(shape)}; got {got}"
        )
    return np.ndarray(shape, dtype.np, content)


# --- errors

_BY_TYPE = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, OpError)
}
_BY_CODE = {kind.error_code: kind for kind in reversed(_BY_TYPE.values()) if kind.__name__ in _BY_TYPE}


def encode_status(error: OpError, task: str) -> Any:
    origin = error.origin or Origin(task, False)
    return pb.Status(
        code=error.error_code,
        type=type(error).__name__,
        message=error.message,
        op=error.op or "",
        op_type=error.op_type or "",
        source=error.source or "",
        task=origin.task,
        is_derived=origin.is_derived,
    )


def decode_status(status: Any) -> OpError:
    """The error, of the class that it was, or else of its code."""
    kind = _BY_TYPE.get(status.type) or _BY_CODE.get(status.code, errors.UnknownError)
    error = kind(status.message)
    error.op, error.op_type, error.source = status.op or None, status.op_type or None, status.source or None
    error.origin = Origin(status.task, status.is_derived)
    return error


def lost(task: str, reason: str, kind: type[OpError] = UnavailableError) -> OpError:
    """The error for a lost task: equal on every survivor."""
    error = kind(f"task {task} was lost: {reason}")
    error.origin = Origin(task, False)
    return error


def derived(error: OpError, task: str) -> OpError:
    """The error that other tasks of a step raise when it ended with ``error`` in ``task``."""
    origin = error.origin or Origin(task, False)
    fresh = errors.copy_to_raise(error)
    fresh.origin = Origin(origin.task, True)
    return fresh


def restarted(task: str, expected: int, got: int) -> OpError:
    """The error for a key, session or graph of an earlier incarnation of ``task``."""
    message = f"task {task} was restarted: expected incarnation {expected:016x}; got {got:016x}"
    error = AbortedError(f"{message}. Create a new Session")
    error.origin = Origin(task, False)
    return error
