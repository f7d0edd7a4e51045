"""``flowrt-run``: starts a script several times as the workers of a cluster, and watches them.

By itself, or with ``--standalone``, it makes a cluster on this host. Where something describes a cluster
(Slurm, Kubernetes, FLOWRT_CLUSTER and the other sources of `resolve`), its tasks are the hosts: one
flowrt-run runs on each, and each host has ``--nproc`` workers.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from flowrt.base.exit_codes import FAILURE, INTERRUPTED, NOT_FORMED, USAGE
from flowrt.cli.elastic import Range, elastic_host, hosts_of, positive_range
from flowrt.cli.machine import cores
from flowrt.cli.options import not_negative, spellings
from flowrt.distribute.cluster.cluster_spec import ClusterSpec, shortened
from flowrt.distribute.launch.elastic_supervision import ElasticSupervisor
from flowrt.distribute.launch.launcher import Failure, Launcher, Task
from flowrt.distribute.launch.local_cluster import (
    THREADS,
    ReservedPorts,
    expand_nodes,
    local_cluster,
    task_variables,
    threads_each,
)
from flowrt.distribute.launch.supervision import Supervisor
from flowrt.distribute.resolvers import ALONE, ResolvedCluster, resolve
from flowrt.distribute.resolvers.source import WORKER
from flowrt.errors import InvalidArgumentError, UnavailableError
from flowrt_command import new_parser

COMMAND = "flowrt-run"
DESCRIPTION = "Run a script as the workers of a cluster; if one fails, stop all of them."
EXAMPLES = """
  flowrt-run --standalone --nproc 4 train.py             four workers on this host
  flowrt-run --nproc 2:4 --spares 1 train.py             goes on with two to four
  srun flowrt-run --nproc 8 --log-dir logs train.py      eight workers on each host of a Slurm job
"""


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
    parser = new_parser(COMMAND, DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--standalone", action="store_true", help="ignore the environment and use this host only")
    one = Range(1, 1)
    add(
        "--nproc", type=positive_range, default=one, metavar="N|MIN:MAX", help="workers per host (default: 1)"
    )
    add(
        "--nnodes", type=positive_range, metavar="N|MIN:MAX",
        help="fail unless the environment describes N hosts; with a range here or of workers, the job goes "
        "on with those that are there",
    )  # fmt: skip
    add(
        "--spares",
        type=not_negative,
        default=0,
        metavar="N",
        help="workers per host that take lost ones' places",
    )
    add(
        *spellings("--max-restarts"), type=not_negative, default=0, metavar="N", dest="max_restarts",
        help="restart all workers up to N times after a failure, or with a range each alone (default: 0)",
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
    nnodes: Range | None = arguments.nnodes
    is_elastic = (
        arguments.nproc.may_change or arguments.spares > 0 or (nnodes is not None and nnodes.may_change)
    )
    if not is_elastic and nnodes is not None and nnodes.most != len(nodes.spec):
        raise UnavailableError(
            f"expected {nnodes} hosts; got {len(nodes.spec)}, from {nodes.source}. See"
            " docs/cluster.md for how hosts are described"
        )
    _make_log_dir(arguments.log_dir)
    if len(nodes.spec) > 1:
        _say(str(nodes))
    return (_run_elastic if is_elastic else _run_fixed)(arguments, nodes)


def _run_fixed(arguments: argparse.Namespace, nodes: ResolvedCluster) -> int:
    """A job that has all its workers, or ends."""
    count = arguments.nproc.most
    with ExitStack() as stack:
        if len(nodes.spec) == 1:
            ports = stack.enter_context(ReservedPorts(count + 1)).ports
            spec, master_port, here = local_cluster(ports[1:]), ports[0], 0
        else:
            spec, master_port = expand_nodes(nodes.spec, count)
            here = [task[:2] for task in nodes.spec.tasks()].index((nodes.job, nodes.task))
        tasks = _tasks(arguments, spec, master_port, here)
        supervisor = Supervisor(len(tasks), arguments.max_restarts)
        return Launcher(tasks, supervisor, arguments.log_dir, _report, _note).run()


def _run_elastic(arguments: argparse.Namespace, nodes: ResolvedCluster) -> int:
    """A job that goes on with the workers that are there."""
    nnodes = hosts_of(nodes, arguments.nnodes)
    new_task = functools.partial(_task, arguments, arguments.nproc.most + arguments.spares)
    with ExitStack() as stack:
        host = elastic_host(stack, nodes, nnodes, arguments.nproc, arguments.spares, new_task, _say)
        supervisor = ElasticSupervisor(len(host.tasks), arguments.max_restarts)
        status = Launcher(host.tasks, supervisor, arguments.log_dir, _report, _note).run()
        return host.final_status(status, _say)


def _make_log_dir(path: Path | None) -> None:
    """Create the directory before any task starts. Raises `InvalidArgumentError`."""
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
    count = arguments.nproc.most
    tasks, own = [], list(spec.tasks())[here * count : (here + 1) * count]
    for local, (_, index, _) in enumerate(own):
        variables = task_variables(os.environ, spec, master_port, here, local, count)
        tasks.append(_task(arguments, count, index, variables))
    threads = tasks[0].environ[THREADS]
    each = f"{threads} thread{'s' if threads != '1' else ''} each"
    _say(f"{spec}, {count} of them here with {each}, the first at grpc://{own[0][2]}")
    return tasks


def _task(arguments: argparse.Namespace, count: int, index: int, variables: Mapping[str, str]) -> Task:
    """Worker ``index``, one of ``count`` on this host."""
    tee = arguments.tee or ("all" if arguments.log_dir is None else "0")
    threads = os.environ.get(THREADS) or str(threads_each(cores()[1], count))
    command = [sys.executable, arguments.script, *arguments.arguments]
    name = f"{WORKER} {index}"
    shown = tee == "all" or (tee == "0" and index == 0)
    prefix = f"[{name}] " if tee == "all" else ""
    return Task(name, command, {**variables, THREADS: threads}, shown, prefix)


def _report(failure: Failure) -> None:
    """Print the summary of a failed attempt."""
    lines = [f"{COMMAND}: attempt {failure.attempt} failed: {failure.task} {ending(failure.status)}"]
    if failure.error:
        lines.append(f"  error: {failure.error}")
    if failure.tail:
        where = f" of {failure.log}" if failure.log else ""
        lines += [f"  its last lines{where}:", *(f"    {line}" for line in failure.tail)]
    _print(lines)


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
    _print([f"{COMMAND}: {text}"])


def _print(lines: Sequence[str]) -> None:
    with suppress(OSError):  # the console's reader has had enough, or its disk is full: the job goes on
        print("\n".join(lines), file=sys.stderr, flush=True)


def _complain(error: Exception, status: int) -> int:
    _say(str(error))
    return status


if __name__ == "__main__":
    sys.exit(main())
