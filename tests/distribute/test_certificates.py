"""Certificates that name tasks, and that a task is held to the one it shows."""

from __future__ import annotations

import os
import queue
import shutil
import stat
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import flowrt as tf
from flowrt.cli.main import main
from flowrt.distribute.cluster.certificates import (
    Task,
    Tasks,
    check_claim,
    init_certificates,
    tasks_of_certificate,
)
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from flowrt.rendezvous.channel.channel import Connection
from flowrt.rendezvous.channel.security import Security, load_security
from flowrt.rendezvous.transport import new_transport

HOSTS = ["localhost", "127.0.0.1", "::1"]
DEADLINE_S = 60.0

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


def security_of(folder: Path, task: str, authority: Path | None = None) -> Security:
    environ = {
        "FLOWRT_TLS_CA": str((authority or folder) / "ca.pem"),
        "FLOWRT_TLS_CERT": str(folder / f"{task}.pem"),
        "FLOWRT_TLS_KEY": str(folder / f"{task}.key"),
    }
    return load_security(environ, folder)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    init_certificates(folder, {Tasks("worker", 0, 0): HOSTS, Tasks("worker", 1, 1): HOSTS})
    return folder


def expired_certificate(authority: Path, folder: Path) -> bytes:
    """One of 2020 for worker 0's key. ``openssl req`` makes none, only the older command ``ca``."""
    (folder / "index").touch()
    (folder / "config").write_text(
        "[ca]\ndefault_ca = own\n[own]\ndatabase = index\nnew_certs_dir = .\nrand_serial = yes\n"
        "default_md = sha256\npolicy = any\n[any]\ncommonName = optional\n"
    )
    (folder / "names").write_text("subjectAltName = URI:flowrt://worker/0, IP:127.0.0.1\n")
    for command in (
        f"req -new -config config -key {authority}/worker_0.key -subj /CN=w -out request",
        f"ca -batch -notext -config config -cert {authority}/ca.pem -keyfile {authority}/ca.key -in request "
        "-startdate 20200101000000Z -enddate 20200102000000Z -extfile names -out expired",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return (folder / "expired").read_bytes()


def names_seen(server: Security, client: Security, kind: str) -> tuple[str, ...]:
    """The names that a listener sees of who dials it."""
    accepted: queue.SimpleQueue[Connection] = queue.SimpleQueue()
    listener = new_transport(server, kind).listen("127.0.0.1:0", accepted.put)
    with ExitStack() as opened:
        opened.callback(listener.close)
        opened.callback(new_transport(client, kind).connect(listener.address, DEADLINE_S).abort)
        connection = accepted.get(timeout=DEADLINE_S)
        opened.callback(connection.abort)
        return connection.certificate_names


@needs_openssl
@pytest.mark.parametrize("kind", ["grpc", "tcp", "unix"])
def test_a_listener_sees_the_task_of_who_dials_it(certs: Path, kind: str) -> None:
    names = names_seen(security_of(certs, "worker_0"), security_of(certs, "worker_1"), kind)
    assert tasks_of_certificate(names) == [Task("worker", 1)]
    assert set(names) >= {"flowrt://worker/1", "localhost", "127.0.0.1"}
    assert tasks_of_certificate(names_seen(Security(), Security(), kind)) == []


@needs_openssl
def test_another_authority_and_an_expired_certificate_are_refused(certs: Path, tmp_path: Path) -> None:
    init_certificates(tmp_path, {Tasks("worker", 1, 1): HOSTS})
    other = security_of(tmp_path, "worker_1", certs)
    expired = expired_certificate(certs, tmp_path)
    ours = security_of(certs, "worker_0")
    for theirs in (other, replace(ours, cert=expired)):
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:"):
            names_seen(ours, theirs, "grpc")
    with pytest.raises(UnauthenticatedError, match="its certificate has expired"):
        names_seen(replace(ours, cert=expired), ours, "grpc")


@needs_openssl
@pytest.mark.parametrize("kind", ["grpc", "tcp"])
def test_a_certificate_for_another_host_is_refused(tmp_path: Path, kind: str) -> None:
    """Of the right authority: the host that was dialled is not among its names."""
    init_certificates(tmp_path, {Tasks("worker", 0, 0): ["other.example"], Tasks("worker", 1, 1): HOSTS})
    elsewhere, here = security_of(tmp_path, "worker_0"), security_of(tmp_path, "worker_1")
    assert tasks_of_certificate(names_seen(here, elsewhere, kind)) == [Task("worker", 0)]
    with pytest.raises(
        UnauthenticatedError, match=r"127\.0\.0\.1:.* certificate is not for the dialled host"
    ):
        names_seen(elsewhere, here, kind)


@needs_openssl
def test_files_are_their_owners_and_are_never_made_again(certs: Path) -> None:
    files = sorted(path.name for path in certs.iterdir())
    assert files == sorted(
        f"{stem}.{end}" for stem in ("ca", "worker_0", "worker_1") for end in ("key", "pem")
    )
    for path in certs.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = {path: path.read_bytes() for path in certs.iterdir()}
    with pytest.raises(AlreadyExistsError, match=r"worker:1; got .*worker_1.pem"):
        init_certificates(certs, {Tasks("worker", 2, 2): HOSTS, Tasks("worker", 1, 1): HOSTS})
    assert {path: path.read_bytes() for path in certs.iterdir()} == before


def test_a_host_that_cannot_be_one_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises((InvalidArgumentError, NotFoundError), match=r"host|openssl"):
        init_certificates(tmp_path / "c", {Tasks("worker", 0, 0): ["a,URI:flowrt://worker/1"]})
    assert not (tmp_path / "c").exists()


def test_without_openssl_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(NotFoundError, match="expected the command openssl"):
        init_certificates(tmp_path, {Tasks("worker", 0, 0): HOSTS})


@pytest.mark.parametrize(
    ("names", "tasks"),
    [
        (["flowrt://worker/12", "localhost"], [Task("worker", 12)]),
        (["localhost"], []),
        (["flowrt://worker/1", "flowrt://ps/2"], [Task("worker", 1), Task("ps", 2)]),
        (["flowrt://worker/1/"], []),
        (["http://worker/1"], []),
    ],
)
def test_the_tasks_of_a_certificate(names: list[str], tasks: list[Task]) -> None:
    assert tasks_of_certificate(names) == tasks


def test_a_task_is_held_to_its_certificate() -> None:
    task = "/job:worker/replica:0/task:1"
    check_claim(["flowrt://worker/1", "localhost"], task)
    check_claim(["flowrt://worker/0", "flowrt://worker/1"], task)  # of all that one launcher starts
    check_claim([], task)  # no certificate: the token has to do
    check_claim(["flowrt://worker/0"], "")  # a session's process is no task
    for names, got in ((["flowrt://worker/0"], "that of worker:0"), (["localhost"], "none for a task")):
        with pytest.raises(PermissionDeniedError, match=f"task:1: expected its own certificate; got {got}"):
            check_claim(names, task)


@needs_openssl
def test_a_task_that_dials_with_anothers_certificate_is_refused(certs: Path) -> None:
    """Of the right authority, for the right host."""
    with ReservedPorts(2) as free, tf.Graph(), ExitStack() as opened:
        spec = {"worker": [f"127.0.0.1:{port}" for port in free.ports]}
        tasks = []
        for index in (0, 1):
            tasks.append(tf.train.Server(spec, "worker", index, security=security_of(certs, "worker_0")))
            opened.callback(tasks[-1].stop)
        with tf.device("/job:worker/task:0"):
            total = tf.placeholder_with_default(1.0, []) + 1.0
        refused = r"task:1: expected its own certificate; got that of worker:0"
        with tf.Session(tasks[1].target) as session, pytest.raises(PermissionDeniedError, match=refused):
            session.run(total)


@needs_openssl
def test_the_command_makes_what_tasks_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "c"
    assert main(["certs", "init", "--dir", str(folder), "--task", "ps:0=a.example,10.0.0.1"]) == 0
    assert str(folder / "ps_0.pem") in capsys.readouterr().out.splitlines()
    assert security_of(folder, "ps_0").is_mutual
    assert main(["certs", "init", "--dir", str(folder), "--task", "ps:0"]) == 1
    for wrong in ("ps", "ps:3-1", "ps:0-1000"):
        with pytest.raises(SystemExit):
            main(["certs", "init", "--task", wrong])


@needs_openssl
def test_an_authority_alone_says_how_its_tasks_get_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", "init", "--dir", str(tmp_path)]) == 0
    *files, hint = capsys.readouterr().out.splitlines()
    assert files == [str(tmp_path / "ca.pem"), str(tmp_path / "ca.key")]
    assert hint.startswith("No task has a certificate yet")
    assert "--task worker:0=a.example" in hint


@needs_openssl
def test_a_session_with_the_key_of_another_certificate_dials_nobody(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"CA": certs / "ca.pem", "CERT": certs / "worker_0.pem", "KEY": certs / "worker_1.key"}
    for name, path in files.items():
        monkeypatch.setenv(f"FLOWRT_TLS_{name}", str(path))
    with tf.Graph(), pytest.raises(InvalidArgumentError, match="KEY_VALUES_MISMATCH") as refused:
        tf.Session("grpc://127.0.0.1:1")
    assert f"got {files['CERT']} and {files['KEY']} (" in refused.value.message


@needs_openssl
def test_who_shows_no_certificate_where_one_is_wanted_is_told_how(certs: Path) -> None:
    ours = security_of(certs, "worker_0")
    listener = new_transport(ours, "grpc").listen("127.0.0.1:0", Connection.abort)
    try:
        with pytest.raises(UnavailableError, match="Set FLOWRT_TLS_CERT and FLOWRT_TLS_KEY"):
            new_transport(Security(ca=ours.ca), "grpc").connect(listener.address, DEADLINE_S)
    finally:
        listener.close()


@needs_openssl
def test_one_certificate_may_be_that_of_several_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    assert main(["certs", "init", "--dir", str(folder), "--task", "worker:2-4=127.0.0.1"]) == 0
    security = security_of(folder, "worker_2-4")
    assert tasks_of_certificate(names_seen(security, security, "tcp")) == [
        Task("worker", i) for i in (2, 3, 4)
    ]
