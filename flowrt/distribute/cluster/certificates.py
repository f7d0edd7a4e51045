"""Certificates for the tasks of a cluster: a private CA, and the task identity in a certificate.

A certificate names its task by the URI ``flowrt://worker/0`` among its alternative names, in addition to the
task's hosts, so its owner can act as that task and no other; or several tasks, if one launcher starts them
with the same files. They are created with the command ``openssl``; the keys (P-256) never leave the
directory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import final

from flowrt.device.spec import parse_device
from flowrt.distribute.cluster.cluster_spec import shortened
from flowrt.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)

DAYS = 365
OPENSSL_S = 30.0
"""A key and a signature take 10 ms; only a machine without entropy takes longer."""

_URI = re.compile(r"flowrt://([A-Za-z][A-Za-z0-9_]*)/([0-9]{1,9})")
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}")
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@final
@dataclass(frozen=True, slots=True)
class Task:
    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


@final
@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of a certificate: ``first`` to ``last`` of ``job``."""

    job: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.job}:{self._indices}"

    @property
    def stem(self) -> str:
        """Stem of its file names."""
        return f"{self.job}_{self._indices}"

    @property
    def uris(self) -> list[str]:
        return [f"URI:flowrt://{self.job}/{index}" for index in range(self.first, self.last + 1)]

    @property
    def _indices(self) -> str:
        return f"{self.first}-{self.last}" if self.last > self.first else f"{self.first}"


# --- making them


def init_certificates(folder: Path, tasks: Mapping[Tasks, Sequence[str]]) -> list[Path]:
    """Create ``ca.pem`` and ``ca.key`` in ``folder`` unless they exist, and ``JOB_INDEX.pem`` and ``.key``
    for each of ``tasks``, which maps them to their host names and addresses. Returns the new files.

    Keys have mode 0600. Before anything is created, raises `AlreadyExistsError` for tasks that have a
    certificate, `InvalidArgumentError` for an invalid host, and `NotFoundError` without ``openssl``.
    """
    names = {each: ",".join([*each.uris, *map(_alternative_name, hosts)]) for each, hosts in tasks.items()}
    if shutil.which("openssl") is None:
        raise NotFoundError(
            "certs init: expected the command openssl; got none on the PATH. Install OpenSSL 3"
        )
    for task in tasks:
        if (taken := folder / f"{task.stem}.pem").exists():
            raise AlreadyExistsError(f"certs init: expected no certificate of {task}; got {taken}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = [] if (folder / "ca.pem").exists() else _make_authority(folder)
    for task in tasks:
        made += _make_certificate(folder, task, names[task])
    return made


def _make_authority(folder: Path) -> list[Path]:
    _openssl(
        folder, "req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", str(DAYS),
        "-subj", "/CN=flowrt cluster", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    return [folder / "ca.pem", folder / "ca.key"]


def _make_certificate(folder: Path, task: Tasks, names: str) -> list[Path]:
    stem = task.stem
    _openssl(
        folder, "req", "-x509", *_NEW_KEY, "-CA", "ca.pem", "-CAkey", "ca.key", "-days", str(DAYS),
        "-keyout", f"{stem}.key", "-out", f"{stem}.pem", "-subj", f"/CN={task}",
        "-addext", f"subjectAltName={names}", "-addext", "basicConstraints=critical,CA:FALSE",
        "-addext", "extendedKeyUsage=serverAuth,clientAuth",
    )  # fmt: skip
    return [folder / f"{stem}.pem", folder / f"{stem}.key"]


def _alternative_name(host: str) -> str:
    """The host in the form of openssl's ``subjectAltName``."""
    try:
        return f"IP:{ip_address(host.strip('[]'))}"
    except ValueError:
        pass
    if not _HOST.fullmatch(host):
        raise InvalidArgumentError(f"certs init: expected a host's name or address; got {host!r}")
    return f"DNS:{host}"


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], cwd=folder, capture_output=True, text=True, timeout=OPENSSL_S,
        stdin=subprocess.DEVNULL, env={**os.environ, "OPENSSL_CONF": os.devnull}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise InternalError(f"openssl {arguments[0]}: {done.stderr.strip()}")


# --- reading them


def tasks_of_certificate(names: Iterable[str]) -> list[Task]:
    """The tasks that a certificate with the alternative ``names`` is for."""
    return [Task(match[1], int(match[2])) for name in names if (match := _URI.fullmatch(name))]


def check_claim(names: Sequence[str], task: str) -> None:
    """Check that a peer with the alternative ``names`` in its certificate may be ``task``
    (``/job:worker/replica:0/task:0``; empty for a session's process, which is not a task). No names: it
    presented no certificate, and is not checked. Raises `PermissionDeniedError`.
    """
    if not names or not task:
        return
    spec = parse_device(task)
    shown = tasks_of_certificate(names)
    if Task(spec.job or "", spec.task or 0) not in shown:
        got = f"that of {shortened(', '.join(map(str, shown)))}" if shown else "none for a task"
        raise PermissionDeniedError(f"{task}: expected its own certificate; got {got}")
