"""``flowrt-run``: starts a script several times as the workers of a cluster, and watches them.

By itself, or with ``--standalone``, it makes a cluster on this host. Where something describes a cluster
(Slurm, Kubernetes, FLOWRT_CLUSTER and the other sources of `resolve`), its tasks are the hosts: one
flowrt-run runs on each, and each host has ``--nproc`` workers.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from flowrt.cli.machine import cores
from flowrt.cli.options import new_parser, not_negative, positive, spellings
from flowrt.distribute.cluster.cluster_spec import ClusterSpec, shortened
from flowrt.distribute.cluster.exit_codes import FAILURE, INTERRUPTED, NOT_FORMED, USAGE
from flowrt.distribute.launch.launcher import Failure, Launcher, Task
from flowrt.distribute.launch.local_cluster import (
    THREADS,
    ReservedPorts,
    expand_nodes,
    local_cluster,
    task_variables,
    threads_each,
)
from flowrt.distribute.resolvers import ALONE, resolve
from flowrt.errors import InvalidArgumentError, UnavailableError

COMMAND = "flowrt-run"
DESCRIPTION = "Run a script as the workers of a cluster; if one fails, stop all of them."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job described by ``argv`` (None: the process's arguments); returns the exit status.

    0 if all tasks succeeded, otherwise the status of the task that failed first, 128 + n for signal n; 2 for
    a mistake on the command line or in the cluster description, 3 if the cluster cannot be formed.
    """
    arguments = new_run_parser().parse_args(argv)
    try:
        return _run(arguments)
    except InvalidArgumentError as error:
        return _complain(error, USAGE)
    except UnavailableError as error:
        return _complain(error, NOT_FORMED)
    except OSError as error:
        return _complain(error, FAILURE)
    except KeyboardInterrupt:  # before there are tasks
        return INTERRUPTED


def new_run_parser() -> argparse.ArgumentParser:
    parser = new_parser(COMMAND, DESCRIPTION)
    add = parser.add_argument
    add("--standalone", action="store_true", help="ignore the environment and use this host only")
    add("--nproc", type=positive, default=1, metavar="N", help="workers on each host (default: 1)")
    add("--nnodes", type=positive, metavar="N", help="fail unless the environment describes N hosts")
    add(
        *spellings("--max-restarts"), type=not_negative, default=0, metavar="N", dest="max_restarts",
        help="restart all workers up to N times after a failure (default: 0)",
    )  # fmt: skip
    add(
        *spellings("--log-dir"), type=Path, metavar="DIR", dest="log_dir",
        help="write DIR/attempt_N/worker_R.log; the console then shows worker 0 only",
    )  # fmt: skip
    add("--tee", choices=("0", "all", "none"), help="workers whose output the console shows")
    add("script", help="a Python program")
    rest = add("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    rest.required = False  # else argparse lists it as missing along with the script
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if not Path(arguments.script).is_file():
        raise InvalidArgumentError(f"expected a Python file; got {arguments.script!r}")
    nodes = ALONE if arguments.standalone else resolve(os.environ)
    if arguments.nnodes not in (None, len(nodes.spec)):
        raise UnavailableError(
            f"expected {arguments.nnodes} hosts; got {len(nodes.spec)}, from {nodes.source}. See"
            " docs/cluster.md for how hosts are described"
        )
    _make_log_dir(arguments.log_dir)
    with ExitStack() as stack:
        if len(nodes.spec) == 1:
            ports = stack.enter_context(ReservedPorts(arguments.nproc + 1)).ports
            spec, master_port, here = local_cluster(ports[1:]), ports[0], 0
        else:
            _say(str(nodes))
            spec, master_port = expand_nodes(nodes.spec, arguments.nproc)
            here = [task[:2] for task in nodes.spec.tasks()].index((nodes.job, nodes.task))
        tasks = _tasks(arguments, spec, master_port, here)
        return Launcher(tasks, arguments.max_restarts, arguments.log_dir, _report, _note).run()


def _make_log_dir(path: Path | None) -> None:
    """Create the directory before there are tasks. Raises `InvalidArgumentError`."""
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"--log-dir: expected a directory that can be created; got '{path}' ({error.strerror})"
        ) from None
    if not os.access(path, os.W_OK):
        raise InvalidArgumentError(f"--log-dir: expected a writable directory; got '{path}'")


def _tasks(arguments: argparse.Namespace, spec: ClusterSpec, master_port: int, here: int) -> list[Task]:
    """The tasks of host number ``here``."""
    count = arguments.nproc
    tee = arguments.tee or ("all" if arguments.log_dir is None else "0")
    threads = os.environ.get(THREADS) or str(threads_each(cores()[1], count))
    command = [sys.executable, arguments.script, *arguments.arguments]
    tasks = []
    for local, (job, index, _) in enumerate(list(spec.tasks())[here * count : (here + 1) * count]):
        environ = task_variables(os.environ, spec, master_port, here, local, count) | {THREADS: threads}
        shown = tee == "all" or (tee == "0" and index == 0)
        tasks.append(
            Task(f"{job} {index}", command, environ, shown, f"[{job} {index}] " if tee == "all" else "")
        )
    _say(f"{spec}, {count} of them here with {threads} thread{'s' if threads != '1' else ''} each")
    return tasks


def _report(failure: Failure) -> None:
    """The one summary of a failed attempt."""
    _say(f"attempt {failure.attempt} failed: {failure.task} {ending(failure.status)}")
    if failure.error:
        print(f"  error: {failure.error}", file=sys.stderr)
    if failure.tail:
        where = f" of {failure.log}" if failure.log else ""
        print(f"  its last lines{where}:", file=sys.stderr)
    for line in failure.tail:
        print(f"    {line}", file=sys.stderr)


def _note(ended: Sequence[str], running: Sequence[str]) -> None:
    still = "still runs" if len(running) == 1 else "still run"
    _say(f"{shortened(', '.join(ended))} ended with 0; {shortened(', '.join(running))} {still}")


def ending(status: int) -> str:
    """``exited with status 1`` or ``was killed by SIGKILL``."""
    if status >= 0:
        return f"exited with status {status}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was killed by {names.get(-status, f'signal {-status}')}"


def _say(text: str) -> None:
    print(f"{COMMAND}: {text}", file=sys.stderr, flush=True)


def _complain(error: Exception, status: int) -> int:
    _say(f"error: {error}")
    return status


if __name__ == "__main__":
    sys.exit(main())
