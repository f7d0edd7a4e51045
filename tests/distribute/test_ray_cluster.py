"""`RayCluster` on a local Ray, where Ray is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import flowrt as tf
from flowrt.distribute.launch.ray_cluster import RayCluster
from flowrt.errors import FailedPreconditionError

WORKERS = 2


def test_without_ray_or_without_a_connection_to_it() -> None:
    with pytest.raises(FailedPreconditionError, match=r"pip install flowrt\[ray\]|Call ray.init\(\) before"):
        RayCluster(1)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
    environ = {"FLOWRT_JIT": os.environ["FLOWRT_JIT"]}
    ray.init(num_cpus=WORKERS, include_dashboard=False, runtime_env={"env_vars": environ})
    yield ray
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_graph_runs_on_the_actors(local_ray: Any) -> None:
    with RayCluster(WORKERS) as cluster:
        assert cluster.cluster_spec.num_tasks("worker") == WORKERS
        with tf.device("/job:worker/task:0"):
            a = tf.constant([1.0, 2.0]) * 2.0
        with tf.device("/job:worker/task:1"):
            b = tf.reduce_sum(a)
        with tf.Session(cluster.target) as session:
            assert session.run(b) == 6.0
    cluster.close()
    states = {str(each["State"]) for each in local_ray.state.actors().values()}
    assert states <= {"DEAD"}
