"""``flowrt certs init``: a private authority, and a certificate for each task of a cluster."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from flowrt.distribute.certificates import Task, init_certificates

HELP = "make certificates for the tasks of a cluster"

_TASK = re.compile(r"([A-Za-z][A-Za-z0-9_]*):([0-9]{1,9})(?:=(.+))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="init", required=True)
    init = actions.add_parser("init", help="an authority, where there is none yet, and a certificate a task")
    init.add_argument("--dir", type=Path, default=Path("certs"), help="where they go (default: certs)")
    init.add_argument(
        "--task", type=_task, action="append", default=[], metavar="JOB:N[=HOST,...]", dest="tasks",
        help="a task and the hosts at which others reach it (default: this one and the loopback); repeatable",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    made = init_certificates(arguments.dir, dict(arguments.tasks))
    for path in made:
        print(path)
    print(
        "Give each task its own .pem and .key as FLOWRT_TLS_CERT and FLOWRT_TLS_KEY, and "
        f"{arguments.dir / 'ca.pem'} as FLOWRT_TLS_CA. Who has ca.key can make more: keep it away from tasks."
    )
    return 0


def _task(text: str) -> tuple[Task, Sequence[str]]:
    """``worker:0`` or ``worker:0=a.example,10.0.0.1``, for argparse."""
    match = _TASK.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected JOB:N or JOB:N=HOST,...; got {text!r}")
    job, index, hosts = match.groups()
    known = hosts.split(",") if hosts else ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    return Task(job, int(index)), known
