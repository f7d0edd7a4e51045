"""``flowrt-worker``: one task of a cluster, until its job has ended or it is stopped."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flowrt.base import exit_codes
from flowrt.base.log_records import add_log, log_name, name_task, uses_json
from flowrt.cli.options import not_negative, spellings
from flowrt.device.interruptible import NOTICED_WITHIN_S
from flowrt.distribute.cluster.bind_policy import check_bind, check_dial
from flowrt.distribute.cluster.cluster_spec import parse_address
from flowrt.distribute.cluster.timeouts import drain_s
from flowrt.distribute.collectives.probe import probe_cluster
from flowrt.distribute.launch.check import PeerCheck, check_cluster
from flowrt.distribute.launch.drain import drain
from flowrt.distribute.resolvers import ALONE, ResolvedCluster, resolve
from flowrt.distribute.server import Server
from flowrt.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    UnauthenticatedError,
    UnavailableError,
)
from flowrt.graph.collectives.cost import LINKS_VARIABLE, format_links
from flowrt.rendezvous.channel.security import Security, load_security
from flowrt.rendezvous.transport import new_transport
from flowrt_command import new_parser

LOGGER = logging.getLogger("flowrt")
COMMAND = "flowrt-worker"
EXAMPLES = """
  flowrt-worker --cluster '{"worker": ["a:2222", "b:2222"]}' --task 0
  flowrt-worker --cluster cluster.json --job ps --task 1 --no-exit-with-job
  flowrt-worker --check                      whether all tasks of the environment's cluster can be reached
  flowrt-worker --drain 10.0.0.2:2222        let that task finish its steps, and exit
"""
DESCRIPTION = (
    "Run one task of a cluster. The cluster and the task come from the first of these that is set: the"
    " options below, FLOWRT_CLUSTER and FLOWRT_TASK, TF_CONFIG, torchrun, Slurm, Open MPI, an indexed"
    " Kubernetes job."
)


class Reason(NamedTuple):
    """The reason why a worker ends, and its exit status."""

    text: str
    status: int = exit_codes.OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker described by ``argv`` (None: the process's arguments); returns the exit status.

    0 if the worker ended because its job did or because it was stopped; otherwise see
    `flowrt.base.exit_codes`.
    """
    arguments = new_worker_parser().parse_args(argv)
    try:
        if arguments.drain is not None:
            return _drain(arguments)
        cluster = _resolve(arguments)
        print(cluster, flush=True)
        _set_up_logs(f"{cluster.job}:{cluster.task}", arguments.log_dir)
        if arguments.probe:
            return _probe(cluster, arguments)
        return _check(cluster, arguments) if arguments.check else _serve(cluster, arguments)
    except (AlreadyExistsError, UnavailableError) as error:  # from listening; lost peers fail steps
        return _complain(error, exit_codes.NOT_FORMED)
    except OpError as error:
        return _complain(error, exit_codes.exit_code(error))
    except OSError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:  # before serving, or in a mode without
        return exit_codes.INTERRUPTED


def new_worker_parser() -> argparse.ArgumentParser:
    parser = new_parser(COMMAND, DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--cluster", metavar="FILE|JSON", help='for instance {"worker": ["a:2222", "b:2222"]}')
    add("--job", metavar="NAME", help="the job of this task, if the cluster has several")
    add("--task", type=not_negative, metavar="N", help="the index of this task in its job")
    add(
        "--bind",
        metavar="HOST:PORT",
        help="address to listen at (default: the task's address in the cluster)",
    )
    add(*spellings("--log-dir"), type=Path, metavar="DIR", dest="log_dir", help="also log to DIR")
    add(
        *spellings("--exit-with-job"), action="store_true", default=True, dest="exit_with_job",
        help="exit after the last program with sessions here has disconnected (the default)",
    )  # fmt: skip
    add(
        *spellings("--no-exit-with-job"), action="store_false", dest="exit_with_job",
        help="keep running for the next program",
    )  # fmt: skip
    add(
        *spellings("--insecure-i-understand"), action="store_true", dest="insecure",
        help="listen beyond the loopback without certificates: whoever can reach the port can run code",
    )  # fmt: skip
    add(
        *spellings("--allow-op"), action="append", default=[], metavar="NAME", dest="allowed_ops",
        help="accept graphs with this operation from other processes although it writes files, such as"
        " PrintV2; repeatable",
    )  # fmt: skip
    add(
        "--drain", metavar="HOST:PORT",
        help="only drain the task at that address: it accepts no new work, finishes its steps, and exits",
    )  # fmt: skip
    add("--check", action="store_true", help="only check for 3 seconds whether all tasks can be reached")
    add(
        "--probe", action="store_true",
        help="only measure the latency of messages to the other tasks, which must be probing as well",
    )  # fmt: skip
    return parser


def _resolve(arguments: argparse.Namespace) -> ResolvedCluster:
    """The cluster and this task. Raises `InvalidArgumentError`, also if nothing describes a cluster: a worker
    without one would listen at an unknown port.
    """
    cluster = resolve(os.environ, arguments.cluster, arguments.job, arguments.task)
    if cluster.source == ALONE.source:
        raise InvalidArgumentError(
            "cluster: expected one described by --cluster, FLOWRT_CLUSTER, TF_CONFIG, torchrun, Slurm,"
            ' Open MPI or Kubernetes; got none. For instance --cluster \'{"worker": ["127.0.0.1:2222"]}\''
        )
    return cluster


def _drain(arguments: argparse.Namespace) -> int:
    parse_address(arguments.drain)
    security = load_security(os.environ, Path.home())
    check_dial(arguments.drain, security, arguments.insecure)
    drain(new_transport(security), arguments.drain, _say)
    _say(f"{arguments.drain} has ended")
    return exit_codes.OK


def _check(cluster: ResolvedCluster, arguments: argparse.Namespace) -> int:
    """Print one line per peer; status 6 if one rejects our identity, 3 if one is unusable."""
    checks: list[PeerCheck] = []

    def seen(check: PeerCheck) -> None:
        checks.append(check)
        print(check, flush=True)

    check_cluster(cluster, new_transport(_security(cluster, arguments)), arguments.bind, seen)
    errors = [check.error for check in checks if check.error is not None]
    if any(isinstance(error, UnauthenticatedError) for error in errors):
        return exit_codes.AUTH_REFUSED
    return exit_codes.NOT_FORMED if errors else exit_codes.OK


def _probe(cluster: ResolvedCluster, arguments: argparse.Namespace) -> int:
    """Print one line per peer: latency, seconds per byte, and the error of the linear fit. At the end print
    the environment variables with which collectives choose algorithms by it.
    """
    transport = new_transport(_security(cluster, arguments))
    try:
        link = probe_cluster(cluster, transport, arguments.bind, functools.partial(print, flush=True))
    except DeadlineExceededError as error:  # a task is not probing
        return _complain(error, exit_codes.NOT_FORMED)
    if link is not None:
        print(f"{LINKS_VARIABLE}='{format_links({'between': link})}'", flush=True)
    return exit_codes.OK


def _serve(cluster: ResolvedCluster, arguments: argparse.Namespace) -> int:
    """Serve until there is a reason to end, then drain the running steps. A second signal skips that."""
    patience_s = drain_s()
    reasons: queue.SimpleQueue[Reason] = queue.SimpleQueue()  # its `put` may be called in a signal's handler
    server = Server(
        cluster.spec,
        cluster.job,
        cluster.task,
        bind=arguments.bind,
        insecure=arguments.insecure,
        allowed_ops=arguments.allowed_ops,
        log_dir=arguments.log_dir,
        start=False,
    )
    ends = functools.partial(_end_with_job, reasons)
    server.on_job_end = ends if arguments.exit_with_job else _outlive_job
    server.on_drain = functools.partial(reasons.put, Reason("it was asked to drain"))
    _end_by_signal(reasons)
    server.start()
    threading.Thread(target=_wait_for_stop, args=(server, reasons), name="flowrt join", daemon=True).start()
    metrics = f", metrics at {server.metrics_url}" if server.metrics_url else ""
    _say(f"{cluster.job} {cluster.task} listens at {server.address}{metrics}")
    reason, status = _first(reasons)
    is_idle = server.drain(patience_s)
    _say(f"ended: {reason}" if is_idle else f"ended: {reason}; running steps were cancelled")
    return status


def _end_by_signal(reasons: queue.SimpleQueue[Reason]) -> None:
    """Make the first SIGTERM or SIGINT a reason, even if there is one; a second one ends immediately."""

    def come(number: int, _: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        reasons.put(Reason(f"got {signal.Signals(number).name}"))

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, come)


def _first(reasons: queue.SimpleQueue[Reason]) -> Reason:
    while True:
        with contextlib.suppress(queue.Empty):
            return reasons.get(timeout=NOTICED_WITHIN_S)


def _security(cluster: ResolvedCluster, arguments: argparse.Namespace) -> Security:
    """The environment's security settings. Raises `PermissionDeniedError` if too weak for the address."""
    security = load_security(os.environ, Path.home())
    check_bind(arguments.bind or cluster.address, security, arguments.insecure)
    return security


def _end_with_job(reasons: queue.SimpleQueue[Reason], name: str, in_midst: bool) -> None:
    if in_midst:
        hint = "Start the job again, from its last checkpoint"
        reasons.put(Reason(f"{name} was lost during a session. {hint}", exit_codes.PEER_LOST))
    else:
        reasons.put(Reason(f"the job of {name} has ended"))


def _outlive_job(name: str, in_midst: bool) -> None:
    """Wait for the next one. (A server that is joined ends otherwise.)"""


def _wait_for_stop(server: Server, reasons: queue.SimpleQueue[Reason]) -> None:
    server.join()
    reasons.put(Reason("it was stopped"))


def _set_up_logs(task: str, log_dir: Path | None) -> None:
    """Log to ``log_dir``, if given; and with ``FLOWRT_LOG_FORMAT=json`` have the console show JSON only."""
    if uses_json():
        LOGGER.setLevel(min(LOGGER.level or logging.INFO, logging.INFO))
        name_task(LOGGER, task)
    if log_dir is not None:
        add_log(LOGGER, log_dir / log_name(task), task)


def _say(text: str) -> None:
    LOGGER.info(text)
    if not uses_json():
        print(f"{COMMAND}: {text}", file=sys.stderr, flush=True)


def _complain(error: Exception, status: int) -> int:
    print(f"{COMMAND}: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
