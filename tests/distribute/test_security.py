"""Where secrets come from, where a task may listen, and that no secret is ever shown."""

from __future__ import annotations

import logging
import signal
import socket
import stat
from pathlib import Path

import pytest

import flowrt as tf
from flowrt.cli import worker
from flowrt.cli.main import main
from flowrt.distribute.cluster.bind_policy import check_bind, check_dial, is_loopback
from flowrt.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from flowrt.rendezvous.channel.security import Security, load_security
from tests.distribute.processes import cluster

TOKEN = "t0-" + 40 * "k"
PEM = b"-----BEGIN CERTIFICATE-----\n"


def secret_file(path: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


# --- where secrets come from


def test_nothing_is_set(tmp_path: Path) -> None:
    security = load_security({}, tmp_path)
    assert security == Security()
    assert not security.uses_tls
    assert not security.protects


def test_the_token_is_the_variables_then_the_named_files_then_the_homes(tmp_path: Path) -> None:
    named, home = "named-" + 40 * "n", "home-" + 40 * "h"
    environ = {"FLOWRT_TOKEN": TOKEN, "FLOWRT_TOKEN_PATH": str(secret_file(tmp_path / "named", named + "\n"))}
    secret_file(tmp_path / ".flowrt" / "token", home + "\n")
    assert load_security(environ, tmp_path).token == TOKEN
    assert load_security({**environ, "FLOWRT_TOKEN": ""}, tmp_path).token == named
    assert load_security({}, tmp_path).token == home


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path / ".flowrt" / "token", mode=mode)
    with pytest.raises(PermissionDeniedError, match=rf"got mode {mode:04o}. Run: chmod 600 {path}"):
        load_security({}, tmp_path)
    key = secret_file(tmp_path / "key.pem", PEM.decode(), mode)
    cert = secret_file(tmp_path / "cert.pem", PEM.decode(), 0o644)
    with pytest.raises(PermissionDeniedError, match="FLOWRT_TLS_KEY"):
        load_security(
            {"FLOWRT_TOKEN": TOKEN, "FLOWRT_TLS_KEY": str(key), "FLOWRT_TLS_CERT": str(cert)}, tmp_path
        )


def test_what_cannot_be_loaded_is_a_typed_error_without_a_secret(tmp_path: Path) -> None:
    short, spaced = "s3cret", "s3cret " * 10
    cert = str(secret_file(tmp_path / "cert.pem", PEM.decode()))
    for environ, kind, text in (
        ({"FLOWRT_TOKEN": short}, InvalidArgumentError, "FLOWRT_TOKEN: expected a token of 32"),
        ({"FLOWRT_TOKEN": spaced}, InvalidArgumentError, "FLOWRT_TOKEN"),
        ({"FLOWRT_TOKEN_PATH": str(tmp_path / "none")}, NotFoundError, "FLOWRT_TOKEN_PATH: expected to read"),
        ({"FLOWRT_TOKEN_PATH": str(tmp_path)}, NotFoundError, "expected to read"),
        ({"FLOWRT_TLS_CERT": cert}, InvalidArgumentError, "FLOWRT_TLS_CERT and FLOWRT_TLS_KEY together"),
        ({"FLOWRT_TLS_CA": str(secret_file(tmp_path / "ca", short))}, InvalidArgumentError, "a PEM file"),
    ):
        with pytest.raises(kind, match=text) as raised:
            load_security(environ, tmp_path)
        assert "s3cret" not in raised.value.message


def test_no_secret_is_in_a_repr() -> None:
    shown = repr(Security(TOKEN, PEM, PEM + b"cert", PEM + b"key"))
    assert shown == "Security()"


def test_a_worker_shows_its_token_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in its arguments, what it prints and its log, nor in the errors of who is refused."""
    said = []
    with cluster(0, 1, "--log-dir", str(tmp_path), environ={"FLOWRT_TOKEN": TOKEN}) as tasks, tf.Graph():
        (worker,) = tasks.workers
        double = tf.placeholder_with_default(1.0, []) * 2.0
        monkeypatch.setenv("FLOWRT_TOKEN", TOKEN)
        with tf.Session(tasks.target) as session:
            assert session.run(double) == 2.0
        monkeypatch.setenv("FLOWRT_TOKEN", "another-" + 40 * "k")
        with pytest.raises(UnauthenticatedError) as refused, tf.Session(tasks.target) as session:
            session.run(double)
        said += [str(refused.value), Path(f"/proc/{worker.pid}/cmdline").read_text()]
        said += [worker.end(signal.SIGTERM).errors, *(path.read_text() for path in tmp_path.iterdir())]
    assert "(attempt 1)" in said[-1]
    assert not any(TOKEN in text for text in said)


# --- what is loaded is data


def test_a_graph_that_is_loaded_runs_nothing(tmp_path: Path) -> None:
    """It would write a file, and fail."""
    path = tmp_path / "written"
    with tf.Graph() as graph:
        with tf.control_dependencies([tf.print("x", output_stream=f"file://{path}")]):
            zero = tf.constant(0.0)
            tf.check_numerics(zero / zero, "it ran", name="checked")
    definition = graph.as_graph_def().SerializeToString()
    with tf.Graph() as loaded:
        (checked,) = tf.import_graph_def(tf.GraphDef.FromString(definition), return_elements=["checked:0"])
    assert not path.exists()
    with tf.Session(graph=loaded) as session, pytest.raises(InvalidArgumentError, match="it ran"):
        session.run(checked)


# --- where a task may listen

TLS = {"cert": PEM, "key": PEM}
OUTSIDE = "192.0.2.1:2222"


@pytest.mark.parametrize(
    ("security", "is_allowed"),
    [
        (Security(), False),
        (Security(TOKEN), False),
        (Security(**TLS), False),
        (Security(ca=PEM), False),
        (Security(TOKEN, ca=PEM), False),
        (Security(TOKEN, **TLS), True),
        (Security(ca=PEM, **TLS), True),
    ],
)
def test_beyond_the_loopback_only_with_tls_and_proof(security: Security, is_allowed: bool) -> None:
    for address in ("127.0.0.1:0", "localhost:2222", "[::1]:2222", "127.8.8.8:1"):
        check_bind(address, security)
    for address in (OUTSIDE, "0.0.0.0:2222", "[::]:2222", "no-such-host.invalid:1"):
        if is_allowed:
            check_bind(address, security)
        else:
            with pytest.raises(PermissionDeniedError, match=r"listen .*expected certificates.*127\.0\.0\.1"):
                check_bind(address, security)


def test_a_misspelt_name_is_named_before_certificates_are() -> None:
    for check in (
        lambda: check_bind("no-such-host.invalid:1", Security()),
        lambda: check_dial("no-such-host.invalid:1", Security(TOKEN)),
    ):
        with pytest.raises(PermissionDeniedError, match=r"'no-such-host\.invalid' was not found.*expected"):
            check()
    with pytest.raises(PermissionDeniedError, match=f"listen {OUTSIDE}: expected.*Server\\(insecure=True\\)"):
        check_bind(OUTSIDE, Security())


def test_insecure_is_allowed_and_warned_of_each_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flowrt"):
        for _ in range(2):
            check_bind(OUTSIDE, Security(TOKEN), insecure=True)
        check_bind("127.0.0.1:1", Security(), insecure=True)
    assert caplog.text.count(f"listening at {OUTSIDE} with a token: anyone who can reach it") == 2
    assert len(caplog.records) == 2
    assert TOKEN not in caplog.text


def test_a_worker_that_logs_to_a_file_warns_on_the_console_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker.LOGGER, "handlers", [])
    arguments = ["--cluster", '{"worker": ["127.0.0.1:2222"]}', "--task", "0", "--bind", "0.0.0.0:0"]
    arguments += ["--insecure-i-understand", "--check", "--log-dir", str(tmp_path)]
    assert worker.main(arguments) == 0
    for handler in worker.LOGGER.handlers:
        handler.close()
    said = "listening at 0.0.0.0:0 with neither: anyone who can reach it can run programs here"
    assert said in capsys.readouterr().err
    assert said in (tmp_path / "worker_0.log").read_text()


def test_a_token_does_not_travel_in_the_clear() -> None:
    for allowed in (Security(), Security(ca=PEM), Security(TOKEN, ca=PEM)):
        check_dial(OUTSIDE, allowed)
    check_dial("127.0.0.1:1", Security(TOKEN))
    check_dial(OUTSIDE, Security(TOKEN), insecure=True)
    with pytest.raises(PermissionDeniedError, match="expected TLS, since a token") as raised:
        check_dial(OUTSIDE, Security(TOKEN))
    assert TOKEN not in raised.value.message


@pytest.mark.parametrize(
    "host", ["[::ffff:192.0.2.1]", "0.0.0.0", "[::]", "10.0.0.1", "[fe80::1%lo]", "256.1"]
)
def test_other_addresses_are_not_taken_for_the_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_a_name_of_several_addresses_is_the_loopbacks_when_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"here": ["127.0.0.1", "::1"], "both": ["127.0.0.1", "192.0.2.1"]}
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *_, **__: [(0, 0, 0, "", (a, 0)) for a in hosts[host]]
    )
    assert is_loopback("here")
    assert not is_loopback("both")


# --- flowrt token new


def test_a_new_token_is_its_owners_and_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["token", "new"]) == 0
    path = tmp_path / ".flowrt" / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    token = load_security({}, tmp_path).token
    assert token is not None
    assert len(token) == 43  # 256 bits
    assert main(["token", "new"]) == 1
    assert load_security({}, tmp_path).token == token
    printed = capsys.readouterr()
    assert token not in printed.out + printed.err
    assert main(["token", "new", "--path", str(tmp_path / "second")]) == 0
    assert load_security({"FLOWRT_TOKEN_PATH": str(tmp_path / "second")}, tmp_path).token != token
