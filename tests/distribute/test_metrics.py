"""Metrics and health checks of tasks: what they count, who may read them, and how they end."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import flowrt as tf
from flowrt.distribute.cluster.certificates import Tasks, init_certificates
from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.cluster.metrics_address import metrics_address
from flowrt.distribute.observe import metrics_page
from flowrt.distribute.observe.exposition import exposition, family_of
from flowrt.distribute.observe.metrics import FAMILIES, Counts, Kind, Sample, number_text
from flowrt.distribute.observe.metrics_page import MAX_CONNECTIONS, MAX_REQUEST, MetricsPage
from flowrt.distribute.server import Server
from flowrt.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    UnavailableError,
)
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.grpc.grpc_call import load_grpc
from flowrt.rendezvous.grpc.health import MAX_CALLS
from tests.contracts.check_transport import wait_until
from tests.distribute.processes import SOON_S, cluster
from tests.distribute.test_certificates import HOSTS, needs_openssl, security_of

TOKEN = "t" * 43
LINE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)+\})? '
    r"(-?\d+(?:\.\d+)?(?:e[+-]\d+)?|[+-]Inf)"
)
"""A sample of the text format, by its published grammar."""


def parse(text: str) -> dict[str, float]:
    """The samples of ``text`` by name and labels; every line is checked."""
    found: dict[str, float] = {}
    described: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in described, "a family stands together"
            described.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind == FAMILIES[name].kind
        else:
            match = LINE.fullmatch(line)
            assert match, line
            assert family_of(match[1]) == name
            found[match[1] + (match[2] or "")] = float(match[3])
    assert text.endswith("\n")
    return found


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# --- counting


def values(counts: Counts) -> dict[str, float]:
    return parse(exposition(counts.read(), "worker:0"))


def of(name: str, **labels: str) -> str:
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in {"task": "worker:0", **labels}.items()) + "}"


def test_steps_are_counted_by_outcome_and_time() -> None:
    counts = Counts(clock := Clock())
    counts.step_began(1)
    counts.step_began(2)
    clock.now = 0.5
    counts.step_ended(1, is_ok=True)
    counts.step_ended(1, is_ok=False)  # told twice
    clock.now = 2.0
    assert values(counts)[of("flowrt_running_steps")] == 1
    assert values(counts)[of("flowrt_oldest_step_seconds")] == 2.0
    counts.step_failing(2)  # ended by another task: its programs may have ended well
    counts.step_failing(3)  # never ran here
    counts.step_ended(2, is_ok=True)
    found = values(counts)
    assert found[of("flowrt_steps_total", outcome="ok")] == 1
    assert found[of("flowrt_steps_total", outcome="failed")] == 1
    assert found[of("flowrt_step_seconds_sum")] == 2.5
    assert found[of("flowrt_step_seconds_count")] == 2
    assert found[of("flowrt_step_seconds_bucket", le="0.3")] == 0
    assert found[of("flowrt_step_seconds_bucket", le="1")] == 1
    assert found[of("flowrt_step_seconds_bucket", le="+Inf")] == 2
    assert found[of("flowrt_running_steps")] == found[of("flowrt_oldest_step_seconds")] == 0


def test_a_wait_for_several_tensors_of_a_peer_is_one_wait() -> None:
    counts = Counts(clock := Clock())
    peer = "/job:worker/replica:0/task:1"
    counts.asked(peer, 2)
    clock.now = 1.0
    counts.answered(peer, 100)
    clock.now = 3.0
    waited = of("flowrt_wait_seconds_total", peer="worker:1")
    assert values(counts)[waited] == 3.0  # it shows while it lasts
    counts.answered(peer, 0)
    clock.now = 10.0
    counts.sent(peer, 7)
    found = values(counts)
    assert found[waited] == 3.0
    assert found[of("flowrt_received_bytes_total", peer="worker:1")] == 100
    assert found[of("flowrt_sent_bytes_total", peer="worker:1")] == 7


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (True, "1"), (2.5, "2.5"), (float("inf"), "+Inf"), (1e300, "1e+300"), (-0.25, "-0.25")],
)
def test_numbers_are_written_as_prometheus_reads_them(value: float, text: str) -> None:
    assert number_text(value) == text


def test_labels_are_escaped() -> None:
    text = exposition([Sample("flowrt_info", 1, (("version", 'a"b\\c\nd'),))], "worker:0")
    assert text.splitlines()[-1] == r'flowrt_info{task="worker:0",version="a\"b\\c\nd"} 1'
    parse(text)


def test_a_counter_says_that_it_is_one() -> None:
    for name, family in FAMILIES.items():
        assert (family.kind is Kind.COUNTER) == name.endswith("_total"), name
        assert "\n" not in family.help


DASHBOARD = Path(__file__).parents[2] / "examples" / "observe" / "grafana_dashboard.json"


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    shown = {name for each in expressions for name in re.findall(r"\b(?:flowrt|process)_\w+", each)}
    assert {family_of(name) for name in shown} <= set(FAMILIES)
    for each in expressions:  # a counter is shown by its growth only
        for name in re.findall(r"(\w+_(?:total|bucket|count|sum))\{", each):
            assert re.search(rf"(rate|increase)\({name}\{{[^}}]*\}}\[", each), each
    labels = {"task", "job", "instance", "peer", "device", "outcome", "le"}
    legends = [target["legendFormat"] for panel in panels for target in panel["targets"]]
    assert {label for each in legends for label in re.findall(r"\{\{(\w+)\}\}", each)} <= labels


# --- a cluster


def read(url: str, token: str = "", context: ssl.SSLContext | None = None) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=SOON_S, context=context) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return response.read().decode()


def test_tasks_count_their_steps_waits_and_bytes() -> None:
    with cluster(2, 0) as tasks:
        with tf.device("/job:worker/task:1"):
            given = tf.placeholder(tf.float32, [1000])
            there = given * 2.0
        with tf.device("/job:worker/task:0"):
            here = tf.reduce_sum(there)
        with tf.Session(tasks.target) as session:
            for _ in range(5):
                session.run(here, {given: [1.0] * 1000})
            with pytest.raises(OpError):
                session.run(tf.check_numerics(here, "no"), {given: [float("nan")] * 1000})
            urls = [server.metrics_url for server in tasks.servers]
            first, second = (parse(read(url)) for url in urls if url)
        assert first[of("flowrt_sessions")] == 1
        assert first[of("flowrt_steps_total", outcome="ok")] == 5
        assert first[of("flowrt_steps_total", outcome="failed")] == 1
        assert first[of("flowrt_received_bytes_total", peer="worker:1")] == 6 * 4000
        assert first[of("flowrt_wait_seconds_total", peer="worker:1")] > 0
        assert second['flowrt_sent_bytes_total{task="worker:1",peer="worker:0"}'] == 6 * 4000
        assert first["process_resident_memory_bytes"] > 1 << 20
        missing = set(FAMILIES) - {family_of(name.partition("{")[0]) for name in first}
        assert not missing


def test_a_server_that_stops_ends_its_page() -> None:
    server = Server.create_local_server()
    url = server.metrics_url
    assert url
    read(url)
    server.stop()
    with pytest.raises(urllib.error.URLError):
        read(url)


@pytest.mark.parametrize(
    ("setting", "bind", "place"),
    [
        ("", "127.0.0.1:2222", "127.0.0.1:0"),
        ("", "[::1]:2222", "[::1]:0"),
        ("", "10.0.0.1:2222", None),
        ("off", "127.0.0.1:2222", None),
        ("9100", "10.0.0.1:2222", "10.0.0.1:9101"),
        ("0", "10.0.0.1:2222", "10.0.0.1:0"),
        ("127.0.0.1:9100", "10.0.0.1:2222", "127.0.0.1:9101"),
        ("[::1]:9100", "10.0.0.1:2222", "[::1]:9101"),
    ],
)
def test_the_setting_says_where(setting: str, bind: str, place: str | None) -> None:
    spec = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "a:2"]})
    assert metrics_address(setting, spec, "worker", 1, bind) == place


@pytest.mark.parametrize("setting", ["on", ":9100", "host:", "host:x", "70000", "65535", "-1", "a b"])
def test_a_wrong_setting_is_told(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"worker": ["127.0.0.1:1", "127.0.0.1:0"]}
    monkeypatch.setenv("FLOWRT_METRICS", setting)
    with pytest.raises(InvalidArgumentError, match=r"^FLOWRT_METRICS: expected off, a port or host:port"):
        Server(spec, "worker", 1)


def test_a_taken_port_and_a_foreign_address_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("FLOWRT_METRICS", str(taken.getsockname()[1]))
        with pytest.raises(AlreadyExistsError, match=r"^metrics 127\.0\.0\.1:"):
            Server.create_local_server()
    with pytest.raises(UnavailableError, match=r"^metrics 192\.0\.2\.1:0: expected an address of this host"):
        MetricsPage("192.0.2.1:0", Security(), str)


def test_a_page_beyond_the_loopback_needs_what_a_task_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_METRICS", "0.0.0.0:0")
    with pytest.raises(PermissionDeniedError, match=r"listen 0\.0\.0\.0:0"):
        Server.create_local_server()


# --- who may read


@pytest.fixture
def guarded() -> Iterator[MetricsPage]:
    page = MetricsPage("127.0.0.1:0", Security(TOKEN), lambda: "x 1\n")
    yield page
    page.close()


@pytest.mark.parametrize("given", ["", "u" * 43, "é" * 43])
def test_nobody_reads_without_the_token(
    guarded: MetricsPage, given: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        read(guarded.url, given)
    assert refused.value.code == 401
    assert "metrics: refused 127.0.0.1: missing or wrong token" in caplog.text
    assert TOKEN not in caplog.text + refused.value.read().decode()
    assert read(guarded.url, TOKEN) == "x 1\n"


REFUSED = (urllib.error.URLError, ConnectionError, ssl.SSLError, http.client.HTTPException)


def context_of(folder: Path, authority: Path, task: str | None) -> ssl.SSLContext:
    """A client's: it trusts ``authority``, and shows the certificate of ``task``, if there is one."""
    context = ssl.create_default_context(cafile=authority / "ca.pem")
    if task is not None:
        context.load_cert_chain(folder / f"{task}.pem", folder / f"{task}.key")
    return context


@needs_openssl
def test_with_certificates_only_those_of_the_authority_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        init_certificates(folder, {Tasks("worker", 0, 0): HOSTS})
    page = MetricsPage("127.0.0.1:0", security_of(ours, "worker_0"), lambda: "x 1\n")
    try:
        assert page.url.startswith("https://")
        assert read(page.url, context=context_of(ours, ours, "worker_0")) == "x 1\n"
        for context in (context_of(ours, ours, None), context_of(theirs, ours, "worker_0")):
            with pytest.raises(REFUSED):
                read(page.url, context=context)
        with pytest.raises(REFUSED):  # without TLS
            read(page.url.replace("https", "http"))
        wait_until(lambda: "metrics: refused 127.0.0.1" in caplog.text, "the refusal is logged", SOON_S)
    finally:
        page.close()


def answer(address: str, request: bytes) -> bytes:
    """All that comes back for ``request``."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), SOON_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /metrics?name[]=x HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405 Method Not Allowed"),
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\x00\xff\xff\r\n\r\n", b"400 Bad Request"),
        (b"G" * MAX_REQUEST, b"400 Bad Request"),
    ],
)
def test_a_request_gets_its_status(request_text: bytes, status: bytes) -> None:
    page = MetricsPage("127.0.0.1:0", Security(), lambda: "x 1\n")
    try:
        head, _, body = answer(page.address, request_text).partition(b"\r\n\r\n")
    finally:
        page.close()
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 " + status
    assert (body == b"x 1\n") == (status == b"200 OK" and not request_text.startswith(b"HEAD"))


def test_silent_and_slow_connections_end_and_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "REQUEST_S", 0.3)
    page = MetricsPage("127.0.0.1:0", Security(), lambda: "x 1\n")
    host, _, port = page.address.rpartition(":")
    silent = [socket.create_connection((host, int(port)), SOON_S) for _ in range(MAX_CONNECTIONS + 3)]
    try:
        silent[0].sendall(b"GET /metr")
        for connection in silent:
            with suppress(ConnectionResetError):
                assert connection.recv(10) == b""
        wait_until(lambda: not page._open, "places", SOON_S)
        assert read(page.url) == "x 1\n"
    finally:
        page.close()
        for connection in silent:
            connection.close()


# --- health


CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


@contextmanager
def health(address: str) -> Iterator[tuple[Any, Any]]:
    """The protocol's two methods, for messages as bytes."""
    with load_grpc().insecure_channel(address) as channel:
        yield channel.unary_unary(CHECK), channel.unary_stream(WATCH)


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(load_grpc().RpcError) as failed:
        call()
    return failed.value.code().name


def test_health_is_checked_and_watched_until_the_task_drains() -> None:
    server = Server.create_local_server()
    try:
        with health(server.address) as (check, watch):
            assert check(b"", timeout=SOON_S) == SERVING
            assert check(b"\x0a\x10flowrt.Transport", timeout=SOON_S) == SERVING
            assert code_of(lambda: check(b"\x0a\x01x", timeout=SOON_S)) == "NOT_FOUND"
            assert code_of(lambda: check(b"\x0a\xff", timeout=SOON_S)) == "INVALID_ARGUMENT"
            unknown = watch(b"\x0a\x01x", timeout=SOON_S)
            assert next(unknown) == SERVICE_UNKNOWN
            unknown.cancel()
            watched = watch(b"", timeout=SOON_S)
            assert next(watched) == SERVING
            server._worker.is_draining = True
            assert next(watched) == NOT_SERVING
            assert check(b"", timeout=SOON_S) == NOT_SERVING
            server.stop()
            assert code_of(lambda: next(watched)) in (
                "UNAVAILABLE", "CANCELLED", "UNKNOWN",
            )  # fmt: skip
    finally:
        server.stop()


def test_health_takes_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_TOKEN", TOKEN)
    server = Server.create_local_server()
    try:
        with health(server.address) as (check, _):
            assert code_of(lambda: check(b"", timeout=SOON_S)) == "UNAUTHENTICATED"
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            assert check(b"", timeout=SOON_S, metadata=metadata) == SERVING
    finally:
        server.stop()


def test_health_is_off_where_metrics_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_METRICS", "off")
    server = Server.create_local_server()
    try:
        assert server.metrics_url is None
        with health(server.address) as (check, _):
            assert code_of(lambda: check(b"", timeout=SOON_S)) == "UNIMPLEMENTED"
    finally:
        server.stop()


def test_there_are_not_too_many_calls_for_health() -> None:
    server = Server.create_local_server()
    try:
        with health(server.address) as (check, watch):
            watched = [watch(b"", timeout=SOON_S) for _ in range(MAX_CALLS)]
            assert [next(each) for each in watched] == [SERVING] * MAX_CALLS
            assert code_of(lambda: check(b"", timeout=SOON_S)) == "RESOURCE_EXHAUSTED"
            watched[0].cancel()
            places = server._listener._health_places  # type: ignore[union-attr]
            wait_until(lambda: places._value == 1, "a place", SOON_S)
            assert check(b"", timeout=SOON_S) == SERVING
            for each in watched:
                each.cancel()
    finally:
        server.stop()
