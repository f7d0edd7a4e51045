"""Messages of elastic jobs: there and back, and everything else refused."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.distribute.elastic.coordinator_client import ElasticPlace, format_place, read_place
from flowrt.distribute.elastic.coordinator_server import CoordinatorServer
from flowrt.distribute.elastic.elastic_messages import (
    Beat,
    Change,
    Done,
    Epoch,
    HasLeft,
    Join,
    Message,
    Over,
    ReadyForNext,
    decode_message,
    encode_message,
)
from flowrt.errors import DataLossError, InvalidArgumentError, UnavailableError
from flowrt.rendezvous.channel.channel import Bytes, Connection
from flowrt.rendezvous.transport import new_transport

MESSAGES: list[Message] = [
    Join("1.0", "worker 1", "a", "a:1"), ReadyForNext(3, -1, "why"), Done(2, 17), HasLeft(), Beat(),
    Epoch(4, 1, ["worker 0", "worker 1"], ["a:1", "b:2"], 9), Change("why", True), Over(""),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_come_back(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_message_is_data_loss(frame: bytes) -> None:
    with pytest.raises(DataLossError):
        decode_message(frame)


@given(st.sampled_from(MESSAGES), st.data())
def test_fields_of_other_types_are_data_loss(message: Message, data: st.DataObject) -> None:
    fields = message._asdict()
    wrong = {**fields, "another": 1}
    if fields:
        name = data.draw(st.sampled_from([*fields]))
        value = data.draw(JSON.filter(lambda value: type(value) is not type(fields[name])))
        wrong = {**fields, name: value}
    with pytest.raises(DataLossError):
        decode_message(json.dumps([type(message).__name__, wrong]).encode())


def test_what_is_nested_deeply_is_data_loss() -> None:
    with pytest.raises(DataLossError):
        decode_message(b"[" * 100_000)


A_NUMBER = '{"coordinator": 5, "name": "a", "host": "b", "address": "c:1"}'


@pytest.mark.parametrize("text", ["x", "[]", "{}", '{"coordinator": "a:1"}', "3", A_NUMBER])
def test_a_place_is_checked(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="FLOWRT_ELASTIC: expected JSON as flowrt-run sets it"):
        read_place({"FLOWRT_ELASTIC": text})


def test_a_place_comes_back() -> None:
    place = ElasticPlace("a:1", "worker 3", "0 (a)", "a:5")
    assert read_place({"FLOWRT_ELASTIC": format_place(place)}) == place
    assert read_place({}) is None


class Stranger:
    """Connects, sends frames, and notes what comes."""

    def __init__(self, address: str) -> None:
        self.came: list[Message] = []
        self.is_lost = threading.Event()
        self.is_over = threading.Event()
        self.connection = new_transport().connect(address, 5.0)
        self.connection.start(self)

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        self.came.append(decode_message(header))
        if isinstance(self.came[-1], Over):
            self.is_over.set()

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        self.is_lost.set()


@pytest.mark.parametrize(
    "frame", [b"", b"nonsense", encode_message(Beat()), encode_message(Epoch(1, 0, [], [], 0))]
)
def test_a_stranger_is_cut_off_and_disturbs_nobody(frame: bytes) -> None:
    with CoordinatorServer("127.0.0.1:0", new_transport(), 1, 2, lambda text: None) as server:
        stranger = Stranger(server.address)
        stranger.connection.send(frame)
        assert stranger.is_lost.wait(60.0)
        other = Stranger(server.address)
        other.connection.send(encode_message(Join("0.0", "worker 0", "a", "a:1")))
        assert other.is_over.wait(60.0)
        over = next(message for message in other.came if isinstance(message, Over))
        assert "which the coordinator has; got 0.0" in over.why
        other.connection.close()
