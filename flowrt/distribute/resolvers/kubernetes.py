"""An indexed Kubernetes job.

Kubernetes sets JOB_COMPLETION_INDEX and calls pod i of a job ``<job>-i``. The pod's template must set the
rest: a headless service with the pods' ``subdomain`` as its name (FLOWRT_SUBDOMAIN), the number of pods
(FLOWRT_TASKS) and their port (FLOWRT_PORT). See examples/launch/kubernetes_job.yaml.
"""

from __future__ import annotations

from flowrt.distribute.resolvers.source import PORT, Environ, Launch, first_port, has, number, workers

VARIABLES = ("JOB_COMPLETION_INDEX", "FLOWRT_TASKS")
_NEEDED = ("FLOWRT_SUBDOMAIN", PORT, "HOSTNAME")


def from_kubernetes(environ: Environ) -> Launch | None:
    """The launch; None outside of an indexed job, or in one without its number of pods.

    Raises `InvalidArgumentError`.
    """
    if not has(environ, *VARIABLES):
        return None
    size, rank = number(environ, "FLOWRT_TASKS"), number(environ, "JOB_COMPLETION_INDEX")
    missing = [name for name in _NEEDED if not has(environ, name)]
    job, _, index = environ.get("HOSTNAME", "").rpartition("-")
    if not missing and index != str(rank):
        missing = [f"a HOSTNAME that ends in -{rank}"]
    if missing:
        why = f"the pod's template must set {', '.join(missing)} (docs/cluster.md has one)"
        return Launch("Kubernetes", size, rank, why_no_spec=why)
    port, subdomain = first_port(environ, ""), environ["FLOWRT_SUBDOMAIN"]
    spec = workers((f"{job}-{pod}.{subdomain}", port) for pod in range(size))
    return Launch("Kubernetes", size, rank, spec)
