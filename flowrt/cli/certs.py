"""``flowrt certs init``: a private certificate authority, and one certificate per task of a cluster."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from flowrt.distribute.cluster.certificates import Tasks, init_certificates

EXAMPLES = """
  flowrt certs init --task worker:0=10.0.0.1 --task worker:1=10.0.0.2
"""

_TASK = re.compile(r"([A-Za-z][A-Za-z0-9_]*):([0-9]{1,9})(?:-([0-9]{1,9}))?(?:=(.+))?")
MAX_TASKS = 1000
"""Maximum number of tasks per certificate: each adds a name to it, and it is sent on every connection."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="init", required=True)
    init = actions.add_parser("init", help="create a CA if needed, and one certificate per task")
    init.add_argument("--dir", type=Path, default=Path("certs"), help="output directory (default: certs)")
    init.add_argument(
        "--task", type=_task, action="append", default=[], metavar="JOB:N[-M][=HOST,...]",
        dest="tasks",
        help="a task, or tasks N to M with a shared certificate, and the hosts where peers reach them"
        " (default: this host and the loopback); repeatable",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    made = init_certificates(arguments.dir, dict(arguments.tasks))
    for path in made:
        print(path)
    print(
        f"{_next_step(arguments.tasks)}, and {arguments.dir / 'ca.pem'} as FLOWRT_TLS_CA. "
        "Anyone with ca.key can create more certificates: keep it off the tasks' hosts."
    )
    return 0


def _next_step(tasks: Sequence[object]) -> str:
    if tasks:
        return "Give each task the .pem and .key with its name as FLOWRT_TLS_CERT and FLOWRT_TLS_KEY"
    return (
        "No task has a certificate yet: name the tasks and the hosts where peers reach them, as in "
        "`--task worker:0=a.example`. Give each its own as FLOWRT_TLS_CERT and FLOWRT_TLS_KEY"
    )


def _task(text: str) -> tuple[Tasks, Sequence[str]]:
    """``worker:0`` or ``worker:0-3=a.example,10.0.0.1``, for argparse."""
    match = _TASK.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected JOB:N, JOB:N-M or JOB:N=HOST,...; got {text!r}")
    job, first, last, hosts = match.groups()
    tasks = Tasks(job, int(first), int(last or first))
    if not 0 <= tasks.last - tasks.first < MAX_TASKS:
        raise argparse.ArgumentTypeError(f"expected 1 to {MAX_TASKS} tasks; got {text!r}")
    known = hosts.split(",") if hosts else ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    return tasks, known
