"""The transports: the contract for each kind, security, and peers that die."""

from __future__ import annotations

import hmac
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from flowrt.errors import DataLossError, InvalidArgumentError, UnauthenticatedError, UnavailableError
from flowrt.rendezvous.channel import lifeline
from flowrt.rendezvous.channel.byte_stream import TlsStream
from flowrt.rendezvous.channel.framing import HEAD_BYTES, MAGIC, VERSION, Kind, encode
from flowrt.rendezvous.channel.lifeline import CLOSED, DIED
from flowrt.rendezvous.channel.rare_log import RareLog
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.channel.tls import client_context, server_context
from flowrt.rendezvous.faulty import FaultyTransport
from flowrt.rendezvous.grpc import grpc_channel, upgrade
from flowrt.rendezvous.transport import Connection, Transport, new_transport
from tests.contracts.check_transport import (
    CONNECT_S,
    SOON_S,
    Inbox,
    TransportContract,
    assert_same,
    random_bytes,
    wait_until,
)
from tests.forks import ForkedScript

HERE = Path(__file__).parent
PEER = HERE / "transport_peer.py"
KILLED_S = 9.0  # before gRPC would ask the peer whether it lives: its end is noticed, not its silence
TOKEN = "a token of the test"
every_kind = pytest.mark.parametrize("kind", ["grpc", "unix", "tcp"])
needs_ucx = pytest.mark.skipif(
    importlib.util.find_spec("ucxx") is None, reason="ucxx is not installed (the extra `ucx`)"
)
between_processes = pytest.mark.parametrize(
    "kind", ["grpc", "unix", "tcp", pytest.param("ucx", marks=needs_ucx)]
)


class TestGrpc(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return new_transport(kind="grpc")


class TestUnix(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return new_transport(kind="unix")


class TestTcp(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return new_transport(kind="tcp")


class TestGrpcWithChecksums(TransportContract):
    @pytest.fixture
    def transport(self, monkeypatch: pytest.MonkeyPatch) -> Transport:
        monkeypatch.setenv("FLOWRT_CHECKSUMS", "on")
        return new_transport(kind="grpc")


class TestTcpWithChecksums(TransportContract):
    @pytest.fixture
    def transport(self, monkeypatch: pytest.MonkeyPatch) -> Transport:
        monkeypatch.setenv("FLOWRT_CHECKSUMS", "on")
        return new_transport(kind="tcp")


class TestGrpcWithTlsAndToken(TransportContract):
    @pytest.fixture
    def transport(self, tls: Security) -> Transport:
        return new_transport(tls, "grpc")


class TestTcpWithTlsAndToken(TransportContract):
    @pytest.fixture
    def transport(self, tls: Security) -> Transport:
        return new_transport(tls, "tcp")


class TestFaultyWithoutFaults(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return FaultyTransport(new_transport(kind="unix"), (), 0, lambda header: "")


# --- which kind


def connect(server: Transport, client: Transport) -> Connection:
    """A connection that is over: for its kind."""
    listener = server.listen("127.0.0.1:0", lambda connection: None)
    try:
        connection = client.connect(listener.address, CONNECT_S)
        connection.abort()
        return connection
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("listens", "dials", "expected"),
    [("auto", "auto", "unix"), ("auto", "tcp", "tcp"), ("grpc", "auto", "grpc"), ("tcp", "auto", "tcp")],
)
def test_the_best_kind_that_both_ends_allow(listens: str, dials: str, expected: str) -> None:
    assert connect(new_transport(kind=listens), new_transport(kind=dials)).kind == expected


def test_ends_that_allow_no_common_kind_say_so() -> None:
    with pytest.raises(UnavailableError, match="expected unix; the listener offers none"):
        connect(new_transport(kind="tcp"), new_transport(kind="unix"))


def test_other_hosts_use_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    boot_ids = iter(("here", "there"))
    monkeypatch.setattr(upgrade, "boot_id", lambda: next(boot_ids))
    assert connect(new_transport(), new_transport()).kind == "tcp"


def test_a_socket_that_cannot_be_reached_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise ConnectionRefusedError("a firewall")

    monkeypatch.setattr(upgrade, "_dial_unix", refuse)
    assert connect(new_transport(), new_transport()).kind == "tcp"
    monkeypatch.setattr(upgrade, "_dial_tcp", refuse)
    assert connect(new_transport(), new_transport()).kind == "grpc"
    with pytest.raises(UnavailableError, match="tcp: a firewall"):
        connect(new_transport(), new_transport(kind="tcp"))


def test_a_tls_handshake_that_fails_on_the_socket_is_passed_over(
    tls: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where something between the hosts takes TLS for its own business; gRPC's went through."""
    monkeypatch.setattr(upgrade, "boot_id", lambda: None)
    monkeypatch.setattr(upgrade, "client_context", lambda security: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    accepted: list[Connection] = []
    listener = new_transport(tls).listen("127.0.0.1:0", accepted.append)
    dialled = new_transport(tls).connect(listener.address, CONNECT_S)
    wait_until(lambda: accepted, "accept is called")
    inbox = Inbox()
    accepted[0].start(inbox)
    dialled.send(b"x")
    assert inbox.wait(1) == [(b"x", [])]
    assert dialled.kind == accepted[0].kind == "grpc"
    dialled.close()
    listener.close()


@every_kind
def test_a_stranger_at_the_socket_gets_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds the address but not the secret is turned away, and the owner still gets in."""
    strangers = []

    def after_a_stranger(dial: Callable[..., socket.socket]) -> Callable[..., socket.socket]:
        def dial_twice(*address: object) -> socket.socket:
            strangers.append(dial(*address))
            strangers[0].sendall(bytes(64))
            return dial(*address)

        return dial_twice

    monkeypatch.setattr(upgrade, "_dial_unix", after_a_stranger(upgrade._dial_unix))
    monkeypatch.setattr(upgrade, "_dial_tcp", after_a_stranger(upgrade._dial_tcp))
    assert connect(new_transport(kind=kind), new_transport(kind=kind)).kind == kind
    for stranger in strangers:
        stranger.settimeout(SOON_S)
        assert stranger.recv(1) == b""
        stranger.close()


CONNECT_AS_NOBODY = """
import os, socket, sys
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX)
listener.connect("\\0" + sys.argv[1])
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [listener.fileno()])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_not_let_in_by_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it shows the secret: who dials has its socket of a process of that user."""

    def dial_as_nobody(name: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [sys.executable, "-c", CONNECT_AS_NOBODY, name, str(theirs.fileno())]
            subprocess.run(command, check=True, pass_fds=[theirs.fileno()])
            _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=descriptor)

    assert connect(new_transport(), new_transport()).kind == "unix"
    monkeypatch.setattr(upgrade, "_dial_unix", dial_as_nobody)
    assert connect(new_transport(), new_transport()).kind == "tcp"


def test_the_variable_chooses_where_the_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_TRANSPORT", "tcp")
    assert connect(new_transport(), new_transport()).kind == "tcp"
    monkeypatch.setenv("FLOWRT_TRANSPORT", "carrier pigeon")
    with pytest.raises(InvalidArgumentError, match=r"auto, grpc, unix, tcp.*carrier pigeon"):
        new_transport()


# --- peers that die


@contextmanager
def listening_process(kind: str) -> Iterator[tuple[ForkedScript, str]]:
    with ForkedScript(PEER, kind) as process:
        yield process, process.stdout.readline().strip()


@between_processes
def test_a_killed_peer_is_noticed_and_leaves_nothing(kind: str) -> None:
    """Also while it holds shared memory, and while both directions are full."""
    inbox = Inbox()
    array = random_bytes(1 << 20)
    with listening_process(kind) as (process, address):
        connection = new_transport(kind=kind).connect(address, CONNECT_S)
        connection.start(inbox)
        connection.send(b"x", [array])
        assert_same(inbox.wait(1)[0][1], [array])
        process.send_signal(signal.SIGSTOP)
        calls: list[int] = []
        for _ in range(20):
            connection.send(b"x", [array], lambda: calls.append(1))
        process.kill()
        error = inbox.wait_lost(KILLED_S)
    assert address in error.message
    assert not re.search("closed by|certificate", error.message)
    wait_until(lambda: len(calls) == 20, "sent is called for each frame")
    with pytest.raises(UnavailableError, match=address):
        connection.send(b"x")
    connection.close()
    assert_same(inbox.frames[0][1], [array])  # what has arrived stays
    inbox.frames.clear()
    del connection
    wait_until(lambda: "memfd:flowrt" not in Path("/proc/self/maps").read_text(), "segments are unmapped")


@between_processes
def test_the_peer_notices_too(kind: str) -> None:
    with listening_process(kind) as (process, address):
        connection = new_transport(kind=kind).connect(address, CONNECT_S)
        connection.send(b"x", [random_bytes(1 << 20)])
        connection.abort()
        assert "connection to 127.0.0.1:" in process.stdout.readline()


@between_processes
@pytest.mark.parametrize("is_killed", [True, False])
def test_who_listens_tells_a_peer_that_died_from_one_that_closed(kind: str, is_killed: bool) -> None:
    inbox = Inbox()
    listener = new_transport(kind=kind).listen("127.0.0.1:0", lambda connection: connection.start(inbox))
    with ForkedScript(PEER, kind, listener.address) as process:
        assert inbox.wait(1) == [(b"here", [])]
        if is_killed:
            process.kill()
        else:
            process.stdin.close()
            process.printed()
        message = inbox.wait_lost().message
    assert message.endswith(DIED if is_killed else CLOSED)
    listener.close()


def test_a_connection_that_is_cut_in_the_middle_of_a_frame() -> None:
    """Nothing of the frame is seen."""
    accepted: list[Connection] = []
    transport = new_transport(kind="tcp")
    listener = transport.listen("127.0.0.1:0", accepted.append)
    dialled = transport.connect(listener.address, CONNECT_S)
    wait_until(lambda: accepted, "accept is called")
    inbox = Inbox()
    dialled.send(b"whole")
    dialled.send(b"half", [random_bytes(64 << 20)])  # more than the kernel buffers
    dialled.abort()
    accepted[0].start(inbox)
    assert "in the middle of a frame" in inbox.wait_lost().message
    assert inbox.frames == [(b"whole", [])]
    listener.close()


@pytest.mark.slow
@every_kind
def test_more_than_two_gigabytes(kind: str) -> None:
    accepted: list[Connection] = []
    transport = new_transport(kind=kind)
    listener = transport.listen("127.0.0.1:0", accepted.append)
    dialled = transport.connect(listener.address, CONNECT_S)
    wait_until(lambda: accepted, "accept is called")
    inbox = Inbox()
    accepted[0].start(inbox)
    large = np.zeros((2 << 30) + 5, np.uint8)
    large[:: 1 << 20] = np.arange(large[:: 1 << 20].size) % 251
    dialled.send(b"large", [large])
    wait_until(lambda: inbox.frames or inbox.errors, "it came", 100)
    assert_same(inbox.frames[0][1], [large])
    for connection in (dialled, *accepted):
        connection.close()
    listener.close()


@pytest.mark.parametrize("kind", ["grpc", "unix"])
def test_a_forked_child_gets_one_clear_error(kind: str) -> None:
    command = [sys.executable, str(HERE / "forked_child.py"), kind]
    printed = subprocess.check_output(command, text=True, timeout=200, stderr=subprocess.DEVNULL)
    lines = printed.splitlines()
    assert lines[:4] == [f"{call} in the forked child" for call in ("send", "start", "close", "abort")]
    assert "parent True" in lines
    assert (
        kind == "grpc" or "[closed]" in lines[4]
    )  # it would keep the connection alive after the parent died


def test_who_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=rf"{address}.*within 0.3 s"):
            new_transport().connect(address, 0.3)


@pytest.mark.parametrize(
    ("address", "reason"),
    [("no-such-host.invalid:1", "name not found"), ("127.0.0.1:1", "refused; is it started")],
)
def test_the_reason_why_a_peer_cannot_be_reached(address: str, reason: str) -> None:
    with pytest.raises(UnavailableError, match=f"{address}: {reason}"):
        new_transport().connect(address, CONNECT_S)


@pytest.mark.parametrize("address", ["192.0.2.1:0", "localhost", "127.0.0.1:http:"])
def test_an_address_that_cannot_be_bound(address: str) -> None:
    with pytest.raises(UnavailableError, match=address):
        new_transport().listen(address, lambda connection: None)


# --- security


@pytest.fixture(scope="session")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Security, Security]:
    """Certificates for 127.0.0.1 by two authorities, which do not know each other."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command, to make certificates")
    return tuple(_certify(tmp_path_factory.mktemp("ca")) for _ in range(2))  # type: ignore[return-value]


@pytest.fixture
def tls(authorities: tuple[Security, Security]) -> Security:
    return authorities[0]


def _certify(folder: Path) -> Security:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(
        "req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA", "-days", "2"
    )
    openssl("req", *new_key, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=task")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    by_ca = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    openssl("x509", "-req", "-in", "request.pem", *by_ca, "-out", "cert.pem")
    ca, cert, key = ((folder / name).read_bytes() for name in ("ca.pem", "cert.pem", "key.pem"))
    return Security(TOKEN, ca, cert, key)


@pytest.mark.parametrize("token", [None, "", "another", TOKEN + "x"])
def test_a_wrong_token_is_refused_before_anything(
    token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(UnauthenticatedError, match="auth refused") as raised:
        connect(new_transport(Security(TOKEN)), new_transport(Security(token)))
    assert TOKEN not in raised.value.message + caplog.text + repr(Security(TOKEN))
    assert connect(new_transport(Security(TOKEN)), new_transport(Security(TOKEN))).kind == "unix"


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append(given)
        return hmac.compare_digest(given, expected)

    monkeypatch.setattr(grpc_channel, "hmac", SimpleNamespace(compare_digest=compare))
    with pytest.raises(UnauthenticatedError):
        connect(new_transport(Security(TOKEN)), new_transport(Security("another")))
    assert compared == [b"Bearer another"]


def test_attempts_without_the_token_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    listener = new_transport(Security(TOKEN)).listen("127.0.0.1:0", lambda connection: None)
    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            new_transport(Security("another")).connect(listener.address, CONNECT_S)
    listener.close()
    assert re.findall(r"attempt (\d+)", caplog.text) == ["1", "2", "4"]


def test_another_authority_and_plain_text_are_refused(authorities: tuple[Security, Security]) -> None:
    """Refused, and not only not there: such an end is not dialled again and again."""
    ours, theirs = authorities
    for listens, dials, why in (
        (ours, theirs, "its certificate is not signed by"),
        (ours, Security(TOKEN), "it requires TLS, and this end has none"),
        (Security(TOKEN), ours, "TLS on this end only"),
    ):
        with pytest.raises(UnauthenticatedError, match=why):
            connect(new_transport(listens), new_transport(dials))


def test_who_shows_no_certificate_where_one_is_wanted_is_told_what_it_may_be(tls: Security) -> None:
    with pytest.raises(UnavailableError, match="does the other end require a certificate"):
        connect(new_transport(tls), new_transport(Security(TOKEN, ca=tls.ca)))


def test_certificates_that_are_none(authorities: tuple[Security, Security]) -> None:
    ours, theirs = authorities
    for wrong in (
        Security(ca=ours.ca),
        Security(cert=ours.cert, key=theirs.key),
        Security(cert=b"text", key=b"text"),
        Security(ca=b"text", cert=ours.cert, key=ours.key),
    ):
        with pytest.raises(InvalidArgumentError, match="TLS: expected"):
            new_transport(wrong).listen("127.0.0.1:0", lambda connection: None)


def test_a_listener_with_tls_needs_no_ca(tls: Security) -> None:
    """The token says who dials; its CA proves the listener to it."""
    listens = Security(TOKEN, cert=tls.cert, key=tls.key)
    for kind in ("grpc", "tcp"):
        assert connect(new_transport(listens, kind), new_transport(Security(TOKEN, tls.ca))).kind == kind


def test_tls_on_the_tcp_socket_hides_what_is_sent(tls: Security, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eavesdropper is put between the TCP sockets of both ends."""
    heard: list[bytes] = []
    monkeypatch.setattr(
        upgrade, "_dial_tcp", lambda host, port: _tap(socket.create_connection((host, port)), heard)
    )
    accepted: list[Connection] = []
    transport = new_transport(tls, "tcp")
    listener = transport.listen("127.0.0.1:0", accepted.append)
    dialled = transport.connect(listener.address, CONNECT_S)
    wait_until(lambda: accepted, "accept is called")
    inbox = Inbox()
    accepted[0].start(inbox)
    dialled.send(b"in secret")
    assert inbox.wait(1) == [(b"in secret", [])]
    dialled.close()
    listener.close()
    assert sum(map(len, heard)) > 100
    assert b"in secret" not in b"".join(heard)


def test_tls_stays_on_when_a_direction_has_ended(tls: Security) -> None:
    context = server_context(tls), client_context(tls)
    ends = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(context[0].wrap_socket, ends[0], server_side=True)
        client = context[1].wrap_socket(ends[1], server_hostname="localhost")
    near, far = TlsStream(client), TlsStream(server.result(SOON_S))
    room = bytearray(100)
    near.write([b"in secret"], (), wait=True)
    far.end_reading()
    assert bytes(room[: far.read(room)]) == b"in secret"
    assert far.read(room) == 0
    near.end_writing()
    with pytest.raises(OSError, match=r".+"):
        near.write([b"plain text"], (), wait=True)
    for end in (near, far):
        end.close()


def _tap(far: socket.socket, heard: list[bytes]) -> socket.socket:
    """A socket to ``far``; what goes through is ``heard``."""
    near, ours = socket.socketpair()

    def forward(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            heard.append(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def forward_both() -> None:
        with near, far, ThreadPoolExecutor(2) as pool:
            pool.submit(forward, near, far)
            pool.submit(forward, far, near)

    threading.Thread(target=forward_both, daemon=True).start()
    return ours


# --- damage on the wire


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_bytes_that_are_no_frame_lose_their_connection_only(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifeline, "BROKEN", RareLog(logging.getLogger("flowrt")))  # it counts from one
    accepted: list[Connection] = []
    transport = new_transport(kind=kind)
    listener = transport.listen("127.0.0.1:0", accepted.append)
    first, second = (transport.connect(listener.address, CONNECT_S) for _ in range(2))
    wait_until(lambda: len(accepted) == 2, "accept is called")
    inboxes = Inbox(), Inbox()
    for connection, inbox in zip(accepted, inboxes, strict=True):
        connection.start(inbox)
    for connection in (first, second):
        connection.send(b"who am I")
    wait_until(lambda: all(inbox.frames for inbox in inboxes), "both are known")
    first._socket.write([b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"], (), wait=True)  # type: ignore[attr-defined]
    wait_until(lambda: inboxes[0].errors or inboxes[1].errors, "the loss")
    lost, other = inboxes if inboxes[0].errors else inboxes[::-1]
    assert isinstance(lost.errors[0].__cause__, DataLossError)
    assert "closed, since what came is not valid: frame: expected the prefix" in caplog.text
    second.send(b"still there")
    assert other.wait(2)[-1] == (b"still there", [])
    for connection in (first, second, *accepted):
        connection.abort()
    listener.close()


NEXT_VERSION = MAGIC + bytes([VERSION + 1]) + bytes(HEAD_BYTES)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", "the prefix"),
        (NEXT_VERSION, f"protocol version {VERSION}; got {VERSION + 1}"),
        (encode(Kind.DATA, b"{}")[0], "expected a handshake"),
        (encode(Kind.HANDSHAKE, b"{")[0], "expected JSON"),
        (encode(Kind.HANDSHAKE, b"[]")[0], "expected list 'kinds'"),
        (encode(Kind.HANDSHAKE, b'{"kinds": 1}')[0], "expected list 'kinds'"),
    ],
)
def test_a_handshake_that_is_none_is_told_why(message: bytes, words: str) -> None:
    transport = new_transport()
    listener = transport.listen("127.0.0.1:0", lambda connection: None)
    with grpc.insecure_channel(listener.address) as channel:
        answers = channel.stream_stream("/flowrt.Transport/Channel")(iter([message]))
        with pytest.raises(grpc.RpcError, match=words):
            list(answers)
    transport.connect(listener.address, CONNECT_S).abort()
    listener.close()


def test_an_accept_that_fails_is_told_to_who_dialled() -> None:
    def fail(connection: Connection) -> None:
        raise RuntimeError("of the owner")

    transport = new_transport()
    listener = transport.listen("127.0.0.1:0", fail)
    inbox = Inbox()
    with suppress(UnavailableError):  # it may hear of it before it has its connection
        transport.connect(listener.address, CONNECT_S).start(inbox)
        inbox.wait_lost()
    listener.close()


def test_a_process_that_closes_nothing_ends() -> None:
    program = (
        "from flowrt.rendezvous.transport import new_transport; kept = []; transport = new_transport();"
        "listener = transport.listen('127.0.0.1:0', kept.append);"
        "connection = transport.connect(listener.address, 10); connection.send(b'x')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)


def test_a_connection_that_does_not_even_greet_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(grpc_channel._SERVER_OPTIONS) | {"grpc.server_handshake_timeout_ms": 100}
    monkeypatch.setattr(grpc_channel, "_SERVER_OPTIONS", tuple(options.items()))
    listener = new_transport().listen("127.0.0.1:0", lambda connection: None)
    host, port = listener.address.split(":")
    with socket.create_connection((host, int(port)), SOON_S) as silent:
        while silent.recv(1 << 16):
            pass  # its greeting
    listener.close()
