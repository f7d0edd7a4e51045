"""The tasks of a cluster and their addresses.

A cluster has jobs, a job has tasks, a task has an index and an address. ``{"ps": ["a:1"], "worker": ["b:1",
"c:1"]}`` lists all tasks of both jobs; ``{"worker": {2: "c:1"}}`` is sparse and lists those that one task
needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from flowrt.errors import DTypeError, InvalidArgumentError

MAX_PORT = 65535
MAX_TASKS = 100_000
"""A spec with more is a mistake, and would only be noticed when memory is used up."""

_NUMBER = re.compile(r"[0-9]{1,9}")
_JOB = re.compile(r"[A-Za-z][A-Za-z0-9_]*")  # the rule of device names: /job:NAME/task:0
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]")


@final
@dataclass(frozen=True, slots=True)
class Address:
    """``host:port``. An IPv6 host has brackets around it. Port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``host:port``. Raises `InvalidArgumentError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not _HOST.fullmatch(host):
        raise InvalidArgumentError(f"address {text!r}: expected host:port{_address_hint(text)}")
    if not (_NUMBER.fullmatch(port) and int(port) <= MAX_PORT):
        raise InvalidArgumentError(f"address {text!r}: expected a port of 0 to {MAX_PORT}; got {port!r}")
    return Address(host, int(port))


def _address_hint(text: str) -> str:
    if "://" in text:
        return f"; got a protocol too. Omit {text[: text.index('://') + 3]!r}"
    if text.count(":") > 1:
        return "; got several colons. An IPv6 host needs brackets: [::1]:2222"
    return "; got no port" if ":" not in text else "; got a host that is not a name"


@final
class ClusterSpec:
    """The tasks of a cluster by job, as ``tf.train.ClusterSpec``. Immutable.

    ``cluster`` maps the name of a job to the addresses of its tasks: a list, or a mapping from index to
    address if not all are known; or it is another ``ClusterSpec``. An address is ``host:port`` and belongs to
    one task only; port 0 is chosen by the system, and may be repeated.

    Raises `InvalidArgumentError` for an invalid name, index or address, `DTypeError` for another type.
    """

    __slots__ = ("_jobs",)

    def __init__(self, cluster: ClusterSpec | Mapping[str, Any]) -> None:
        if isinstance(cluster, ClusterSpec):
            self._jobs: dict[str, dict[int, str]] = cluster._jobs
            return
        if not isinstance(cluster, Mapping):
            raise DTypeError(
                "ClusterSpec: expected a mapping from jobs to addresses or a ClusterSpec; got"
                f" {type(cluster).__name__}"
            )
        self._jobs = {_checked_job(job): _read_tasks(job, tasks) for job, tasks in cluster.items()}
        _check_addresses(self)

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, in the order in which they were given."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """Number of known tasks of the job. Raises `InvalidArgumentError` for an unknown job."""
        return len(self._tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The indices of the job's known tasks, ascending. Raises `InvalidArgumentError` for no such job."""
        return list(self._tasks(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Raises `InvalidArgumentError` for no such job or task."""
        tasks = self._tasks(job_name)
        if task_index not in tasks:
            known = ", ".join(map(str, tasks)) or "none"
            raise InvalidArgumentError(
                f"job {job_name!r}: expected a task of the cluster ({known}); got {task_index!r}"
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses by index; None for a task that is not known. Raises `InvalidArgumentError`."""
        tasks = self._tasks(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """A list of addresses a job; a dict from index to address for a sparse one."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def tasks(self) -> Iterator[tuple[str, int, str]]:
        """All known tasks as (job, index, address): jobs as given, indices ascending."""
        for job, tasks in self._jobs.items():
            for index, address in tasks.items():
                yield job, index, address

    def to_json(self) -> str:
        """One line that `parse_cluster` reads back."""
        return json.dumps(self.as_dict())

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __len__(self) -> int:
        """Number of known tasks of all jobs."""
        return sum(map(len, self._jobs.values()))

    def __eq__(self, other: object) -> bool:
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self.tasks()))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"

    def __str__(self) -> str:
        """``1 ps, 2 workers``."""
        return ", ".join(counted(len(tasks), job) for job, tasks in self._jobs.items()) or "no tasks"

    def _tasks(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            known = ", ".join(self._jobs) or "none"
            raise InvalidArgumentError(f"cluster: expected one of its jobs ({known}); got {job_name!r}")
        return self._jobs[job_name]


def parse_cluster(text: str) -> ClusterSpec:
    """Read a cluster from JSON: an object of jobs, each a list of addresses or an object from index to
    address.

    Raises `InvalidArgumentError`.
    """
    try:
        cluster = json.loads(text, object_pairs_hook=_unique)
    except InvalidArgumentError:
        raise
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a plain ValueError
        raise InvalidArgumentError(f"cluster: expected JSON; got {shortened(text)!r}: {error}") from None
    return ClusterSpec(cluster)


def counted(number: int, job: str) -> str:
    """``1 worker``, ``2 workers``, ``2 ps``."""
    return f"{number} {job}" if number == 1 or job.endswith("s") else f"{number} {job}s"


def shortened(text: str, length: int = 80) -> str:
    """``text`` on one line of at most ``length`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"cluster: expected each name of an object once; got {twice!r} twice")
    return found


def _checked_job(job: object) -> str:
    if not isinstance(job, str):
        raise DTypeError(f"job {job!r}: expected a name; got {type(job).__name__}")
    if not _JOB.fullmatch(job):
        raise InvalidArgumentError(f"job {job!r}: expected a letter, then letters, digits and underscores")
    return job


def _read_tasks(job: str, tasks: object) -> dict[int, str]:
    """The job's tasks by index, ascending."""
    if isinstance(tasks, Mapping):
        pairs = [(_checked_index(job, index), address) for index, address in tasks.items()]
    elif isinstance(tasks, Iterable) and not isinstance(tasks, str | bytes):
        pairs = list(enumerate(tasks))
    else:
        raise DTypeError(
            f"job {job!r}: expected a list of addresses or a mapping from index to address; got {tasks!r}"
        )
    found = {index: _checked_address(job, index, address) for index, address in sorted(pairs, key=_index)}
    if len(found) < len(pairs):
        raise InvalidArgumentError(f"job {job!r}: expected each index once; got {[i for i, _ in pairs]}")
    return found


def _index(pair: tuple[int, object]) -> int:
    return pair[0]


def _checked_index(job: str, index: object) -> int:
    """An index; JSON has its keys as text."""
    if isinstance(index, str) and _NUMBER.fullmatch(index):
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool):
        raise DTypeError(f"job {job!r}: expected task indices; got {index!r}")
    if not 0 <= index < MAX_TASKS:
        raise InvalidArgumentError(f"job {job!r}: expected an index of 0 to {MAX_TASKS - 1}; got {index}")
    return index


def _checked_address(job: str, index: int, address: object) -> str:
    if not isinstance(address, str):
        raise DTypeError(f"job {job!r}, task {index}: expected an address as text; got {address!r}")
    try:
        return str(parse_address(address))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"job {job!r}, task {index}: {error}") from None


def _check_addresses(spec: ClusterSpec) -> None:
    """Each port of a host belongs to one task, and there are not too many tasks."""
    if len(spec) > MAX_TASKS:
        raise InvalidArgumentError(f"cluster: expected at most {MAX_TASKS} tasks; got {len(spec)}")
    owners: dict[str, str] = {}
    for job, index, address in spec.tasks():
        owner = owners.setdefault(address, f"{job} {index}")
        if owner != f"{job} {index}" and parse_address(address).port:
            raise InvalidArgumentError(
                f"cluster: expected an address for each task; got {address!r} for {owner} and {job} {index}"
            )
