"""Slurm's variables of a job step, as ``srun`` sets them for each task.

Tasks are assigned to the hosts of the step's node list according to the task counts, in blocks: the first
tasks on the first host. A host's tasks listen on consecutive ports.
"""

from __future__ import annotations

import re

from flowrt.distribute.cluster.cluster_spec import MAX_TASKS, shortened
from flowrt.distribute.resolvers.source import Environ, Launch, first_port, has, number, workers
from flowrt.errors import InvalidArgumentError

VARIABLES = ("SLURM_PROCID", "SLURM_STEP_NODELIST")

_BRACKETS = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def from_slurm(environ: Environ) -> Launch | None:
    """None outside a job step. Raises `InvalidArgumentError`."""
    if not has(environ, *VARIABLES):
        return None
    rank = number(environ, "SLURM_PROCID")
    hosts = task_hosts(environ)
    first = first_port(environ, f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}")
    locals_ = local_indices(hosts)
    spec = workers((host, first + local) for host, local in zip(hosts, locals_, strict=True))
    launch = Launch("Slurm", len(hosts), rank, spec)
    if has(environ, "SLURM_LOCALID") and number(environ, "SLURM_LOCALID") != locals_[rank]:
        raise InvalidArgumentError(
            f"Slurm: expected task {rank} to be number {locals_[rank]} on its host, as in a block "
            f"distribution; got SLURM_LOCALID={environ['SLURM_LOCALID']}. Start with: srun "
            "--distribution=block"
        )
    return launch


def task_hosts(environ: Environ) -> list[str]:
    """The host of each task of the step, by rank. Raises `InvalidArgumentError`."""
    hosts = expand_nodelist(environ["SLURM_STEP_NODELIST"])
    counts = _tasks_per_host(environ, len(hosts))
    if len(counts) != len(hosts):
        raise InvalidArgumentError(
            f"Slurm: expected a number of tasks for each of {len(hosts)} hosts; got {len(counts)} numbers"
        )
    return [host for host, count in zip(hosts, counts, strict=True) for _ in range(count)]


def local_indices(hosts: list[str]) -> list[int]:
    """Number of each task among those of its host."""
    seen: dict[str, int] = {}
    found = []
    for host in hosts:
        found.append(seen.get(host, 0))
        seen[host] = found[-1] + 1
    return found


def expand_nodelist(text: str) -> list[str]:
    """Expand ``n[1-3,07],m`` to n1, n2, n3, n07, m; several brackets in a name give all combinations.

    Raises `InvalidArgumentError`, also for more hosts than a cluster may have.
    """
    hosts = [host for name in _split_names(text) for host in _expand_name(text, name)]
    if len(hosts) > MAX_TASKS:
        raise _bad_nodelist(text)
    return hosts


def expand_counts(text: str) -> list[int]:
    """``2(x3),1`` is 2, 2, 2, 1. Raises `InvalidArgumentError`."""
    found: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        repeat = int(match[2] or 1) if match else 0
        if match is None or repeat * int(match[1]) + len(found) > MAX_TASKS or repeat > MAX_TASKS:
            raise InvalidArgumentError(
                f"Slurm: expected task counts such as 2(x3),1; got {shortened(text)!r}"
            )
        found += [int(match[1])] * repeat
    return found


def _tasks_per_host(environ: Environ, hosts: int) -> list[int]:
    if has(environ, "SLURM_STEP_TASKS_PER_NODE"):
        return expand_counts(environ["SLURM_STEP_TASKS_PER_NODE"])
    size = number(environ, "SLURM_STEP_NUM_TASKS" if has(environ, "SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS")
    if size % hosts or size > MAX_TASKS:
        raise InvalidArgumentError(
            f"Slurm: expected SLURM_STEP_TASKS_PER_NODE, or equal numbers of tasks on {hosts} hosts; got "
            f"{size} tasks"
        )
    return [size // hosts] * hosts


def _split_names(text: str) -> list[str]:
    """The parts between the commas that are outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]


def _expand_name(text: str, name: str) -> list[str]:
    hosts, end = [""], 0
    for match in _BRACKETS.finditer(name):
        if match.start() != end:
            raise _bad_nodelist(text)
        numbers = [each for part in match[2].split(",") for each in _expand_range(text, part.strip())]
        if len(hosts) * len(numbers) > MAX_TASKS:
            raise _bad_nodelist(text)
        hosts = [host + match[1] + each for host in hosts for each in numbers]
        end = match.end()
    rest = name[end:]
    if not name or set(rest) & set("[]"):
        raise _bad_nodelist(text)
    return [host + rest for host in hosts]


def _expand_range(text: str, part: str) -> list[str]:
    match = _RANGE.fullmatch(part)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if match is None or not 0 <= last - first < MAX_TASKS:
        raise _bad_nodelist(text)
    return [f"{each:0{len(match[1])}d}" for each in range(first, last + 1)]


def _bad_nodelist(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"SLURM_STEP_NODELIST: expected host names such as n[1-3,07],m of at most {MAX_TASKS} hosts; got"
        f" {shortened(text)!r}"
    )
