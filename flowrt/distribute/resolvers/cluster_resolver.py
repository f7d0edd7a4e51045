"""``flowrt.distribute.resolvers.cluster_resolver``: TensorFlow's classes over
`flowrt.distribute.resolvers`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

from flowrt.device.cuda.cuda import visible_devices
from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.resolvers import kubernetes, slurm
from flowrt.distribute.resolvers.source import PORT, WORKER, Launch
from flowrt.distribute.resolvers.tf_config import from_tf_config, read_tf_config
from flowrt.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "ClusterResolver",
    "KubernetesClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "UnionClusterResolver",
    "UnionResolver",
]

Accelerators = Mapping[str, int]


class ClusterResolver(ABC):
    """Interface for strategies: the cluster, this process's task in it, and the master of a session.

    ``task_type`` is the task's job. ``rpc_layer`` (``"grpc"``) is the protocol in the result of `master`.
    """

    def __init__(
        self,
        task_type: str | None,
        task_id: int | None,
        rpc_layer: str | None,
        environment: str = "",
        num_accelerators: Accelerators | None = None,
    ) -> None:
        self.task_type, self.task_id, self.rpc_layer = task_type, task_id, rpc_layer
        self._environment, self._num_accelerators = environment, num_accelerators

    @abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """The cluster as it is now."""

    @property
    def environment(self) -> str:
        """A word for where the cluster runs, chosen by its users; empty for none."""
        return self._environment

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The target of a session on a task, this process's unless another is named; empty for no task."""
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None or index is None:
            return ""
        return _target(self.cluster_spec().task_address(job, index), rpc_layer or self.rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Number of the task's devices of each type except CPU, by default of this process.

        ``config_proto`` is for compatibility with TensorFlow. Raises `FailedPreconditionError` for a task
        with devices known only to its server.
        """
        del config_proto
        if self._num_accelerators is not None:
            return dict(self._num_accelerators)
        if task_type not in (None, self.task_type) or task_id not in (None, self.task_id):
            raise FailedPreconditionError(
                f"num_accelerators: expected this process's own task; got {task_type} {task_id}. Ask"
                " Session(resolver.master(task_type, task_id)).list_devices()"
            )
        gpus = len(visible_devices())
        return {"GPU": gpus} if gpus else {}


@final
class SimpleClusterResolver(ClusterResolver):
    """A cluster that is known."""

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Accelerators | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        super().__init__(task_type, task_id, rpc_layer, environment, num_accelerators)
        self._spec, self._master = ClusterSpec(cluster_spec), master

    def cluster_spec(self) -> ClusterSpec:
        return self._spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The task that is named, else the master that the resolver was made with."""
        if task_type is None or task_id is None:
            return _target(self._master, rpc_layer or self.rpc_layer)
        return super().master(task_type, task_id, rpc_layer)


@final
class TFConfigClusterResolver(ClusterResolver):
    """``TF_CONFIG``; the cluster is read again at every call. Arguments override it."""

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        """Raises `InvalidArgumentError` for a ``TF_CONFIG`` that cannot be read."""
        config = read_tf_config(os.environ)
        (said,) = from_tf_config(os.environ)
        super().__init__(
            said.job if task_type is None else task_type,
            said.task if task_id is None else task_id,
            rpc_layer or config.get("rpc_layer"),
            config.get("environment", "") if environment is None else environment,
        )

    def cluster_spec(self) -> ClusterSpec:
        (said,) = from_tf_config(os.environ)
        return said.spec or ClusterSpec({})

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """The session target; a cluster of one task needs no server: its master is this process."""
        return "" if len(self.cluster_spec()) <= 1 else super().master(task_type, task_id, rpc_layer)


@final
class SlurmClusterResolver(ClusterResolver):
    """The tasks of a Slurm step, in the order of their ranks: grouped by job, jobs sorted by name.

    ``jobs`` has the number of tasks of each job; without it all are workers. The tasks of a host listen at
    ``port_base`` and the ports after it. ``tasks_per_node``, a number or one per host, is for a step without
    that information. With ``gpus_per_task``, and unless ``auto_set_gpu`` is False, this process sees only its
    own GPUs.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: Sequence[int] | int | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        """Raises `InvalidArgumentError` outside of a step, and for numbers that do not fit it."""
        environ = {**os.environ, PORT: str(port_base), **_slurm_counts(tasks_per_node)}
        launch = slurm.from_slurm(environ)
        if launch is None:
            raise InvalidArgumentError(
                f"SlurmClusterResolver: expected {' and '.join(slurm.VARIABLES)}; got none. Start with srun"
            )
        self._spec = _split_by_job("SlurmClusterResolver", launch, jobs or {WORKER: launch.size})
        task_type, task_id, _ = list(self._spec.tasks())[launch.rank]
        own = None if gpus_per_task is None else {"GPU": gpus_per_task}
        super().__init__(task_type, task_id, rpc_layer, num_accelerators=own)
        if gpus_per_task is not None and auto_set_gpu:
            local = slurm.local_indices(slurm.task_hosts(environ))[launch.rank]
            os.environ["CUDA_VISIBLE_DEVICES"] = _gpus_of(local, gpus_per_task, gpus_per_node)

    def cluster_spec(self) -> ClusterSpec:
        return self._spec


@final
class KubernetesClusterResolver(ClusterResolver):
    """The pods of a Kubernetes cluster.

    With ``override_client``, a ``kubernetes.client.CoreV1Api``, they are the running pods that the selectors
    in ``job_to_label_mapping`` find, by name, each at ``tf_server_port``. Without one they are the pods of
    the indexed job that this process belongs to.
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
    ) -> None:
        """Raises `InvalidArgumentError` if there is neither a client nor an indexed job."""
        self._selectors = job_to_label_mapping or {WORKER: ["job-name=tensorflow"]}
        self._port, self._client = tf_server_port, override_client
        launch = None if override_client is not None else _indexed_job()
        self._indexed_spec = None if launch is None else launch.spec
        super().__init__(launch and WORKER, launch and launch.rank, rpc_layer)

    def cluster_spec(self) -> ClusterSpec:
        """Raises `FailedPreconditionError` for a pod that does not run."""
        if self._indexed_spec is not None:
            return self._indexed_spec
        return ClusterSpec(
            {
                job: [each for selector in selectors for each in self._addresses(selector)]
                for job, selectors in self._selectors.items()
            }
        )

    def _addresses(self, selector: str) -> list[str]:
        pods = self._client.list_pod_for_all_namespaces(label_selector=selector).items
        for pod in pods:
            if pod.status.phase != "Running":
                raise FailedPreconditionError(
                    f"pod {pod.metadata.name!r}: expected phase Running; got {pod.status.phase}"
                )
        in_order = sorted(pods, key=lambda pod: str(pod.metadata.name))
        return [f"{pod.status.host_ip}:{self._port}" for pod in in_order]


@final
class UnionClusterResolver(ClusterResolver):
    """Several resolvers' jobs in one cluster; all else is that of the first resolver, unless given.

    If all of them list a job's tasks, the lists are concatenated; if one has indices, all indices count.
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Raises `InvalidArgumentError` without a resolver."""
        if not resolvers or not all(isinstance(each, ClusterResolver) for each in resolvers):
            raise InvalidArgumentError(f"UnionClusterResolver: expected cluster resolvers; got {resolvers}")
        self._resolvers, first = resolvers, resolvers[0]
        super().__init__(
            first.task_type if task_type is None else task_type,
            first.task_id if task_id is None else task_id,
            rpc_layer or first.rpc_layer,
        )

    @property
    def environment(self) -> str:
        """Raises `InvalidArgumentError` where the resolvers differ."""
        words = {each.environment for each in self._resolvers}
        if len(words) > 1:
            raise InvalidArgumentError(f"UnionClusterResolver: expected one environment; got {sorted(words)}")
        return words.pop()

    def cluster_spec(self) -> ClusterSpec:
        """Raises `AlreadyExistsError` for an index that two resolvers have."""
        specs = [each.cluster_spec().as_dict() for each in self._resolvers]
        jobs = dict.fromkeys(job for spec in specs for job in spec)
        return ClusterSpec({job: _joined(job, [spec[job] for spec in specs if job in spec]) for job in jobs})

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        if task_type is None or task_id is None:
            return self._resolvers[0].master(rpc_layer=rpc_layer)
        return super().master(task_type, task_id, rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)


UnionResolver = UnionClusterResolver
"""Later name of `UnionClusterResolver`."""


def _target(address: str, rpc_layer: str | None) -> str:
    return f"{rpc_layer}://{address}" if address and rpc_layer else address


def _slurm_counts(tasks_per_node: Sequence[int] | int | None) -> dict[str, str]:
    """The variable with the number of tasks of each host."""
    if tasks_per_node is None:
        return {}
    hosts = len(slurm.expand_nodelist(os.environ.get("SLURM_STEP_NODELIST", "")))
    counts = [tasks_per_node] * hosts if isinstance(tasks_per_node, int) else tasks_per_node
    return {"SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts))}


def _split_by_job(where: str, launch: Launch, jobs: Mapping[str, int]) -> ClusterSpec:
    """The launched tasks, shared out to ``jobs`` by rank, in the order of the jobs' names."""
    if sum(jobs.values()) != launch.size:
        raise InvalidArgumentError(
            f"{where}: expected jobs of {launch.size} tasks together; got {dict(jobs)}"
        )
    addresses = iter(launch.spec.tasks() if launch.spec else ())
    return ClusterSpec({job: [next(addresses)[2] for _ in range(jobs[job])] for job in sorted(jobs)})


def _gpus_of(local: int, per_task: int, per_node: int | None) -> str:
    """The numbers of the GPUs that belong to task ``local`` of a host."""
    gpus = range(local * per_task, (local + 1) * per_task)
    if per_node is not None and gpus.stop > per_node:
        raise InvalidArgumentError(
            f"SlurmClusterResolver: expected {gpus.stop} GPUs on the host, {per_task} per task; got "
            f"{per_node}"
        )
    return ",".join(map(str, gpus))


def _indexed_job() -> Launch:
    launch = kubernetes.from_kubernetes(os.environ)
    if launch is None or launch.spec is None:
        why = launch.why_no_spec if launch else f"{' and '.join(kubernetes.VARIABLES)} are not set"
        raise InvalidArgumentError(
            f"KubernetesClusterResolver: expected a client or the variables of an indexed job; got neither:"
            f" {why}"
        )
    return launch


def _joined(job: str, parts: list[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    if all(isinstance(part, list) for part in parts):
        return [address for part in parts for address in part if isinstance(address, str)]
    joined: dict[int, str] = {}
    for part in parts:
        for index, address in part.items() if isinstance(part, dict) else enumerate(part):
            if index in joined:
                raise AlreadyExistsError(f"job {job!r}: expected each task once; got task {index} twice")
            joined[index] = address
    return joined


__getattr__ = missing_from("distribute.cluster_resolver")


def __dir__() -> list[str]:
    return __all__
