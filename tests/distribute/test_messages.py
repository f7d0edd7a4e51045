"""Messages as frames and back: round trips, and what arrives broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import flowrt as tf
from flowrt import errors
from flowrt.distribute.wire import messages
from flowrt.distribute.wire.messages import (
    MAX_GRAPH_BYTES,
    MAX_INLINE_BYTES,
    Message,
    decode,
    decode_status,
    derived,
    encode,
    encode_error,
    encode_status,
    lost,
    read_graph,
)
from flowrt.errors import InvalidArgumentError, NotFoundError, OpError, Origin, ResourceExhaustedError
from flowrt.graph.construction.detached import attach_constants, detach_constants
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.text.graph_text import parse_subgraph, print_subgraph
from flowrt.protos import cluster_pb2 as pb

TYPES = [np.dtype(kind) for kind in (*"efdbhilBHIL?FD", ml_dtypes.bfloat16)]

TYPED = (InvalidArgumentError, ResourceExhaustedError, NotFoundError)
"""What `decode` may raise."""

shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5)
types = st.sampled_from(TYPES)


def there(message: Message, request_id: int = 7, is_answer: bool = False) -> Any:
    """Through a frame, whose payload is copied as a transport does."""
    frame = encode(request_id, message, is_answer)
    return decode(frame.header, [part.copy() for part in frame.payload])


def of_bytes(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Any:
    """Any bits, those of NaNs too."""
    count = int(np.prod(shape))
    random = np.random.default_rng(seed).bytes(count * dtype.itemsize)
    array = np.frombuffer(random, np.uint8)
    return (array % 2 if dtype.kind == "b" else array).view(dtype).reshape(shape)


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# --- tensors


@given(st.lists(st.tuples(types, shapes, st.integers(0, 99)), max_size=4))
def test_tensors_arrive_as_they_were(described: list[Any]) -> None:
    tensors = [of_bytes(*one) for one in described]
    got = there(Message(pb.StepResult(), tensors)).message.tensors
    assert len(got) == len(tensors)
    assert all(same(*pair) for pair in zip(tensors, got, strict=True))


@given(types, st.integers(-1, 2), st.booleans())
def test_only_large_tensors_travel_beside_the_header(dtype: np.dtype[Any], more: int, turned: bool) -> None:
    count = MAX_INLINE_BYTES // dtype.itemsize + more
    tensor = of_bytes(dtype, (2, count), 1)[:, ::-1] if turned else of_bytes(dtype, (1, count), 1)
    frame = encode(1, Message(pb.StepResult(), [tensor, np.int32(3)]))
    assert len(frame.payload) == (tensor.nbytes > MAX_INLINE_BYTES)
    got, small = decode(*frame).message.tensors
    assert same(got, np.ascontiguousarray(tensor))
    assert small == 3


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (0, 0)])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tensors_of_one_element_and_of_none(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    tensor = of_bytes(dtype, shape, 2)
    assert same(there(Message(pb.Done(), [tensor])).message.tensors[0], tensor)


def test_what_arrives_may_be_written_to() -> None:
    small, large = np.zeros(3), np.zeros(MAX_INLINE_BYTES)
    for tensor in there(Message(pb.Done(), [small, large])).message.tensors:
        tensor[...] = 1
    assert not small.any()
    assert not large.any()


@given(shapes, st.lists(st.binary(max_size=20) | st.text(st.characters(codec="utf-8"), max_size=20)))
def test_strings_arrive_as_bytes(shape: tuple[int, ...], some: list[Any]) -> None:
    count = int(np.prod(shape))
    items = [(some or [b""])[i % max(1, len(some))] for i in range(count)]
    tensor = np.empty(count, object)
    tensor[:] = items
    (got,) = there(Message(pb.Done(), [tensor.reshape(shape)])).message.tensors
    assert got.shape == shape
    assert got.reshape(-1).tolist() == [i if isinstance(i, bytes) else i.encode() for i in items]


@given(st.binary(max_size=20) | st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_scalar_string_arrives_as_an_array(text: Any) -> None:
    """What a program gives out is plain bytes."""
    (got,) = there(Message(pb.Done(), [text])).message.tensors
    assert got.shape == ()
    assert got[()] == (text if isinstance(text, bytes) else text.encode())


def test_a_session_s_handle_stays() -> None:
    with tf.Graph(), tf.Session() as session:
        handle = session.run(tf.get_session_handle(tf.constant(1.0)))
        with pytest.raises(errors.UnimplementedError, match="a TensorHandle cannot be sent"):
            encode(1, Message(pb.Done(), [handle]))


def test_a_value_of_python_stays() -> None:
    with pytest.raises(errors.UnimplementedError, match="a Python value of type list"):
        encode(1, Message(pb.Done(), [np.array([[1], [2, 3]], object)]))


def test_a_tensor_of_more_than_2_gib_is_not_copied(tmp_path: Path) -> None:
    shape = (1 << 29) + 1024, 1
    tensor = np.memmap(tmp_path / "sparse", np.float32, "w+", shape=shape)  # of a file without blocks
    frame = encode(1, Message(pb.Done(), [tensor]))
    (got,) = decode(*frame).message.tensors
    where = [array.__array_interface__["data"][0] for array in (tensor, frame.payload[0], got)]
    assert where[0] == where[1] == where[2]
    assert got.shape == shape
    assert frame.payload[0].nbytes > 1 << 31


# --- graphs


def graph_with(constant: Any) -> Subgraph:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None], "x")
        y = tf.multiply(x, tf.constant(2.0), "y") + tf.reduce_sum(tf.constant(constant))
        return extract(graph, [y], [], {x: (3,)}, [])


@pytest.mark.parametrize("count", [0, 3, 5000])
def test_a_graph_arrives_with_its_constants(count: int) -> None:
    graph = graph_with(np.arange(count, dtype=np.float32))
    tensor = np.arange(4)
    detached, constants = detach_constants(graph)
    got = there(Message(pb.RegisterGraph(session="s"), [*constants, tensor], detached)).message
    assert print_subgraph(attach_constants(read_graph(got), got.tensors[:-1])) == print_subgraph(graph)
    assert same(got.tensors[-1], tensor)
    assert got.body.session == "s"


def test_a_graph_may_read_what_the_other_end_has() -> None:
    whole = graph_with(np.arange(3, dtype=np.float32))
    nodes = dict(whole.nodes)
    known = {name: nodes.pop(name) for name in list(nodes)[:2]}
    got = there(Message(pb.ExtendSession(), (), Subgraph(nodes), known)).message
    assert list(read_graph(got, known).nodes) == list(nodes)
    with pytest.raises(InvalidArgumentError, match="expected an operation defined above"):
        read_graph(got)


def test_requests_that_are_settled_are_named() -> None:
    frame = encode(1, Message(pb.Heartbeat()), settled=[3, 1 << 60])
    assert list(decode(*frame).settled) == [3, 1 << 60]


def test_an_answer_may_be_to_several_requests() -> None:
    frame = encode(7, Message(pb.Done(), [np.int32(1), np.int32(2)]), is_answer=True, also=[1 << 60])
    arrived = decode(*frame)
    assert (arrived.request_id, list(arrived.also)) == (7, [1 << 60])
    assert [int(tensor) for tensor in arrived.message.tensors] == [1, 2]


@pytest.mark.parametrize("is_answer, count", [(True, 1), (True, 3), (True, 0), (False, 2)])
def test_each_request_has_one_tensor_of_an_answer(is_answer: bool, count: int) -> None:
    frame = encode(7, Message(pb.Done(), [np.int32(1)] * count), is_answer=is_answer, also=[8])
    with pytest.raises(InvalidArgumentError, match=f"expected an answer with 2 tensors; got {count}, in a"):
        decode(*frame)


def test_encoding_leaves_the_body_of_the_caller_alone_but_for_its_graph() -> None:
    body = pb.RunGraph(graph=3, step=1 << 63)
    frame = encode(5, Message(body))
    assert decode(*frame).message.body == body
    assert decode(*frame).request_id == 5


# --- errors

kinds = st.sampled_from(
    sorted({k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, OpError)}, key=str)
)
texts = st.text(st.characters(codec="utf-8"), max_size=30)


@given(kinds, texts, st.none() | texts.filter(bool), st.none() | st.tuples(texts, st.booleans()))
def test_an_error_arrives_as_it_was(
    kind: type[OpError], text: str, op: str | None, origin: tuple[str, bool] | None
) -> None:
    error = kind(text, op=op)
    error.origin = None if origin is None else Origin(*origin)
    answer = decode(*encode_error(3, error, "/job:a/task:0"))
    assert (answer.request_id, answer.is_answer, answer.message) == (3, True, None)
    got = answer.error
    assert got is not None
    assert type(got) is kind
    assert (str(got), got.op, got.source) == (str(error), error.op, error.source)
    assert got.origin == (error.origin or Origin("/job:a/task:0", False))


def test_an_error_of_a_class_that_is_not_known_has_its_code() -> None:
    status = encode_status(errors.AbortedError("x"), "")
    status.type = "SomethingNewError"
    assert type(decode_status(status)) is errors.AbortedError
    status.code = 12345
    assert type(decode_status(status)) is errors.UnknownError


def test_what_is_derived_names_the_task_where_it_began() -> None:
    root = lost("/job:a/task:1", "reset")
    assert root.origin == Origin("/job:a/task:1", False)
    assert derived(root, "/job:a/task:0").origin == Origin("/job:a/task:1", True)
    assert derived(errors.AbortedError("x"), "/job:a/task:0").origin == Origin("/job:a/task:0", True)


# --- what arrives broken

RECORDED = [
    encode(1, Message(pb.Hello(protocol=1, version="1", task="/job:a/task:0", incarnation=5))),
    encode(2, Message(pb.RecvTensor(step=9, keys=["a;b;c;d;0:0"]))),
    encode(3, Message(pb.RunGraph(graph=1, step=2), [np.ones(3), np.arange(2000)])),
    encode(4, Message(pb.Done(), [np.array([b"a", b"bc"], object)]), is_answer=True),
    encode(5, Message(pb.RegisterGraph(session="s"), [np.ones(5000, np.float32)], graph_with(0.0))),
    encode(6, Message(pb.ExtendSession(session="s"), (), graph_with(np.ones(3, np.float32)))),
    encode_error(7, lost("/job:a/task:1", "reset"), ""),
]


def check_decode(header: bytes, payload: list[Any]) -> None:
    try:
        message = decode(header, payload).message
        if message is not None and type(message.body) in (
            pb.RegisterGraph,
            pb.ExtendSession,
            pb.MakeCallable,
        ):
            read_graph(message)
    except TYPED as error:
        assert error.message  # noqa: PT017 (any of them may come, or none)


@given(st.binary(max_size=200), st.lists(st.binary(max_size=20), max_size=2))
def test_any_bytes_are_an_error_with_a_type(header: bytes, payload: list[bytes]) -> None:
    check_decode(header, [np.frombuffer(part, np.uint8) for part in payload])


@given(
    st.sampled_from(RECORDED),
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.sampled_from(["set", "drop", "add"]), st.integers(0, 255))
    ),
    st.integers(0, 40),
)
def test_frames_with_wrong_bytes_are_an_error_with_a_type(frame: Any, changes: list[Any], cut: int) -> None:
    header = bytearray(frame.header)
    for at, what, value in changes:
        place = at % (len(header) or 1)
        replaced = {"set": [value], "drop": [], "add": [value, value]}[what]
        header[place : place + 1] = bytes(replaced)
    check_decode(bytes(header), [part[cut:] for part in frame.payload])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=70), st.integers(-1, 130), st.binary(max_size=16))
def test_tensors_of_any_shape_and_type_are_an_error_with_a_type(
    shape: list[int], dtype: int, content: bytes
) -> None:
    envelope = pb.Envelope(request_id=1, done=pb.Done())
    envelope.tensors.add(dtype=dtype, shape=shape, content=content)
    check_decode(envelope.SerializeToString(), [])


@given(st.lists(st.sampled_from([0, 1, 2**31, 2**62, 2**63 - 1]), max_size=8), st.booleans())
def test_shapes_of_no_element_may_be_huge(shape: list[int], is_string: bool) -> None:
    envelope = pb.Envelope(request_id=1, done=pb.Done())
    meta = envelope.tensors.add(dtype=7 if is_string else 1, shape=shape)
    if is_string:
        meta.strings.SetInParent()
    else:
        meta.content = b""
    check_decode(envelope.SerializeToString(), [])


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda e: e.ClearField("register_graph"), "expected a body known to this version"),
        (lambda e: setattr(e.register_graph, "graph", b"\xff"), "expected a text in UTF-8"),
        (lambda e: setattr(e.register_graph, "graph", b"%x = "), "expected"),
        (lambda e: e.tensors[0].shape.append(2), "expected 40000 bytes"),
        (lambda e: setattr(e.tensors[0], "dtype", 99), "expected a dtype"),
    ],
)
def test_the_error_says_what_was_expected(change: Any, expected: str) -> None:
    frame = RECORDED[4]
    envelope = pb.Envelope.FromString(frame.header)
    change(envelope)
    payload = frame.payload if envelope.tensors else []
    with pytest.raises(InvalidArgumentError, match=expected):
        read_graph(decode(envelope.SerializeToString(), payload).message)


def test_a_payload_that_nothing_describes_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="expected one tensor per part"):
        decode(RECORDED[0].header, [np.zeros(3, np.uint8)])


def test_a_graph_may_be_only_so_long() -> None:
    body = pb.RegisterGraph(graph=b" " * (MAX_GRAPH_BYTES + 1))
    with pytest.raises(ResourceExhaustedError, match=f"at most {MAX_GRAPH_BYTES} bytes"):
        read_graph(Message(body))


def test_a_graph_that_is_too_long_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_GRAPH_BYTES", 10)
    graph = parse_subgraph("%a_name_of_some_length = NoOp()")
    with pytest.raises(ResourceExhaustedError, match="at most 10 bytes of text"):
        encode(1, Message(pb.RegisterGraph(), graph=graph))
