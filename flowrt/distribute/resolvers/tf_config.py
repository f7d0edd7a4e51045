"""``TF_CONFIG``: JSON with ``cluster`` and ``task``, as Kubeflow and TensorFlow's guides write it."""

from __future__ import annotations

import json
from typing import Any

from flowrt.distribute.cluster.cluster_spec import ClusterSpec, shortened
from flowrt.distribute.resolvers.source import Declaration, Environ
from flowrt.errors import InvalidArgumentError

TF_CONFIG = "TF_CONFIG"
VARIABLES = (TF_CONFIG,)


def from_tf_config(environ: Environ) -> tuple[Declaration, ...]:
    """Raises `InvalidArgumentError`."""
    config = read_tf_config(environ)
    task = config.get("task") or {}
    if not isinstance(task, dict):
        raise InvalidArgumentError(f"{TF_CONFIG}: expected a task of type and index; got {task!r}")
    try:
        spec = ClusterSpec(config["cluster"]) if config.get("cluster") else None
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{TF_CONFIG}: {error}") from None
    return (Declaration(TF_CONFIG, spec, _job(task), _index(task)),)


def read_tf_config(environ: Environ) -> dict[str, Any]:
    """The object; an empty one where the variable is missing. Raises `InvalidArgumentError`."""
    text = environ.get(TF_CONFIG) or "{}"
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{TF_CONFIG}: expected JSON; got {shortened(text)!r}: {error}") from None
    if not isinstance(config, dict):
        raise InvalidArgumentError(f"{TF_CONFIG}: expected an object; got {shortened(text)!r}")
    return config


def _job(task: dict[str, Any]) -> str | None:
    job = task.get("type")
    if job is not None and not isinstance(job, str):
        raise InvalidArgumentError(f"{TF_CONFIG}: expected the name of a job as the task's type; got {job!r}")
    return job


def _index(task: dict[str, Any]) -> int | None:
    """The task's index; some write it as text."""
    index = task.get("index")
    text = str(index)
    if index is None:
        return None
    if isinstance(index, bool) or not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidArgumentError(f"{TF_CONFIG}: expected a number as the task's index; got {index!r}")
    return int(text)
