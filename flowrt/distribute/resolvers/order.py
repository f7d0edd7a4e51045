"""Sources of the cluster, their order of precedence, and the check that they agree.

The first source that has a value wins. Later ones are not ignored: a different value is an error, because a
process that joins another cluster than its user intended waits for peers that never arrive. A launcher that
started only one process has no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TypeVar

from flowrt.distribute.cluster.cluster_spec import ClusterSpec, parse_address, shortened
from flowrt.distribute.resolvers import flowrt_variables, kubernetes, open_mpi, slurm, tf_config, torchrun
from flowrt.distribute.resolvers.source import Declaration, Environ, Launch, ResolvedCluster, workers
from flowrt.errors import InvalidArgumentError

DECLARED: tuple[Callable[[Environ], tuple[Declaration, ...]], ...] = (
    flowrt_variables.from_variables,
    tf_config.from_tf_config,
)
LAUNCHED: tuple[Callable[[Environ], Launch | None], ...] = (
    torchrun.from_torchrun,
    slurm.from_slurm,
    open_mpi.from_open_mpi,
    kubernetes.from_kubernetes,
)
VARIABLES = tuple(
    name
    for source in (flowrt_variables, tf_config, torchrun, slurm, open_mpi, kubernetes)
    for name in source.VARIABLES
)
"""The sources' variables, without which they have no value. Code that starts another cluster removes them."""

ALONE = ResolvedCluster(workers([("127.0.0.1", 0)]), "worker", 0, "the default (a single process)")


T = TypeVar("T")
Said = tuple[str, T]
"""A value with the name of its source."""


def resolve(
    environ: Environ, cluster: str | None = None, job: str | None = None, task: int | None = None
) -> ResolvedCluster:
    """The cluster, and this process's task in it.

    ``environ`` are the variables of the process; ``cluster`` (JSON, or a file with it), ``job`` and ``task``
    are command-line flags, which take precedence. Raises `InvalidArgumentError` for invalid or missing
    values, and for contradicting sources, naming both.
    """
    if environ.get(flowrt_variables.ELASTIC) and not environ.get(flowrt_variables.CLUSTER):
        raise InvalidArgumentError(
            "cluster: expected the script of an elastic job to train in train.run_elastic(), which "
            "forms its groups; got none yet. Or start flowrt-run with fixed numbers of workers"
        )
    declared = [*flowrt_variables.from_flags(cluster, job, task)]
    declared += [each for read in DECLARED for each in read(environ)]
    launches = [each for read in LAUNCHED if (each := read(environ)) is not None and each.size > 1]
    said = _agreed("cluster", ((each.source, each.spec) for each in declared))
    source, spec = said or _launched_cluster(launches) or (ALONE.source, ALONE.spec)
    for launch in launches:
        if launch.size != len(spec):
            raise _conflict("cluster", (source, str(spec)), (launch.source, f"{launch.size} processes"))
        if said is None and launch.spec is not None and _hosts(launch.spec) != _hosts(spec):
            raise _conflict("cluster", (source, spec), (launch.source, launch.spec))
    epoch = flowrt_variables.number_of_epoch(environ)
    return _own_task(source, spec, declared, launches, epoch)


def _hosts(spec: ClusterSpec) -> list[int]:
    """Host number of each task. Host names are no evidence: launchers may use several for one host."""
    numbers: dict[str, int] = {}
    hosts = [parse_address(address).host for _, _, address in spec.tasks()]
    return [numbers.setdefault(host, len(numbers)) for host in hosts]


def _launched_cluster(launches: Sequence[Launch]) -> Said[ClusterSpec] | None:
    """The cluster of the first launcher with the locations of its processes; None without a launcher."""
    for launch in launches:
        if launch.spec is not None:
            return launch.source, launch.spec
    if not launches:
        return None
    source, size, why = launches[0].source, launches[0].size, launches[0].why_no_spec
    raise InvalidArgumentError(
        f"{source}: expected the addresses of {size} processes; {why}. Set them with FLOWRT_CLUSTER or "
        "--cluster"
    )


def _own_task(
    source: str, spec: ClusterSpec, declared: Sequence[Declaration], launches: Sequence[Launch], epoch: int
) -> ResolvedCluster:
    """This process's task. In a cluster of several jobs, a launcher's numbers count only without other
    information: the cluster description may list the jobs in another order.
    """
    jobs: list[Said[str | None]] = [(each.source, each.job) for each in declared]
    tasks: list[Said[int | None]] = [(each.source, each.task) for each in declared]
    if len(spec.jobs) == 1 or not any(value is not None for _, value in (*jobs, *tasks)):
        places = list(spec.tasks())
        jobs += [(each.source, places[each.rank][0]) for each in launches]
        tasks += [(each.source, places[each.rank][1]) for each in launches]
    if len(spec.jobs) == 1:
        jobs.append((source, spec.jobs[0]))
    _, job = _agreed("job", jobs) or _missing("job", "--job", source, spec)
    if spec.jobs == [job] and len(spec) == 1 and all(task is None for _, task in tasks):
        tasks.append((source, spec.task_indices(job)[0]))
    _, task = _agreed("task", tasks) or _missing("task", "--task", source, spec)
    try:
        spec.task_address(job, task)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source} has {spec}: {error}") from None
    return ResolvedCluster(spec, job, task, source, epoch)


def _agreed(what: str, said: Iterable[Said[T | None]]) -> Said[T] | None:
    """The first value, if all others are equal. Raises `InvalidArgumentError`."""
    there = [(source, value) for source, value in said if value is not None]
    for other in there[1:]:
        if other[1] != there[0][1]:
            raise _conflict(what, there[0], other)
    return there[0] if there else None


def _conflict(what: str, first: Said[object], other: Said[object]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cluster: expected all sources to name the same {what}; got {_short(first)} and {_short(other)}. "
        "Remove one, or make them agree"
    )


def _short(said: Said[object]) -> str:
    source, value = said
    text = repr(value.as_dict()) if isinstance(value, ClusterSpec) else str(value)
    return f"{shortened(text)} from {source}"


def _missing(what: str, flag: str, source: str, spec: ClusterSpec) -> NoReturn:
    raise InvalidArgumentError(
        f"cluster: {source} has {spec}; expected a setting for this process's {what}. Pass {flag}, or "
        "FLOWRT_TASK=JOB:INDEX"
    )
