"""``--cluster``, ``--job`` and ``--task``, and the equivalent ``FLOWRT_CLUSTER`` and ``FLOWRT_TASK``.

A cluster is JSON, or the name of a file with it. ``FLOWRT_TASK`` is ``worker:0``, or ``0`` if there is one
job.
"""

from __future__ import annotations

import re
from pathlib import Path

from flowrt.distribute.cluster.cluster_spec import ClusterSpec, parse_cluster, shortened
from flowrt.distribute.resolvers.source import Declaration, Environ, number
from flowrt.errors import InvalidArgumentError

CLUSTER, TASK = "FLOWRT_CLUSTER", "FLOWRT_TASK"
ELASTIC, EPOCH = "FLOWRT_ELASTIC", "FLOWRT_EPOCH"
"""Place of the process in an elastic job, and the number of the membership epoch that the other variables
describe (`flowrt.distribute.elastic`).
"""
VARIABLES = (CLUSTER, TASK, ELASTIC, EPOCH)

_TF_CONFIG = re.compile(r'\s*\{\s*"(cluster|task)"\s*:\s*\{')
"""Start of a text that belongs in TF_CONFIG: the cluster is nested in it, next to the task."""


def from_flags(cluster: str | None, job: str | None, task: int | None) -> tuple[Declaration, ...]:
    """Declarations from the command line. Raises `InvalidArgumentError`."""
    spec = read_cluster("--cluster", cluster) if cluster else None
    return (
        Declaration("--cluster", spec=spec),
        Declaration("--job", job=job),
        Declaration("--task", task=task),
    )


def from_variables(environ: Environ) -> tuple[Declaration, ...]:
    """Raises `InvalidArgumentError`."""
    text = environ.get(CLUSTER)
    job, _, index = environ.get(TASK, "").strip().rpartition(":")
    return (
        Declaration(CLUSTER, spec=read_cluster(CLUSTER, text) if text else None),
        Declaration(TASK, job=job or None, task=number({TASK: index}, TASK) if index or job else None),
    )


def number_of_epoch(environ: Environ) -> int:
    """The number of the membership epoch; 0 where the cluster does not change. Raises
    `InvalidArgumentError`.
    """
    return number(environ, EPOCH) if environ.get(EPOCH) else 0


def read_cluster(source: str, value: str) -> ClusterSpec:
    """The cluster in ``value``, JSON or the name of a file. Raises `InvalidArgumentError`."""
    try:
        text = value if value.lstrip().startswith("{") else Path(value).read_text("utf-8")
    except (OSError, ValueError) as error:  # ValueError: no text, or no name of a file
        raise InvalidArgumentError(
            f"{source}: expected JSON or a file with it; got {shortened(value)!r}: {error}"
        ) from None
    try:
        return parse_cluster(text)
    except InvalidArgumentError as error:
        hint = ". This has the format of TF_CONFIG: set that variable to it" if _TF_CONFIG.match(text) else ""
        raise InvalidArgumentError(f"{source}: {error}{hint}") from None
