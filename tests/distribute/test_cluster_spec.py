"""`ClusterSpec`: TensorFlow's accessors, and what cannot be a cluster."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.distribute.cluster.cluster_spec import (
    MAX_TASKS,
    Address,
    ClusterSpec,
    counted,
    parse_address,
    parse_cluster,
)
from flowrt.errors import DTypeError, InvalidArgumentError

DENSE = {"ps": ["ps0:2222", "ps1:2222"], "worker": ["w0:2222", "w1:2222", "w2:2222"]}
SPARSE = {"ps": {0: "ps0:2222", 3: "ps3:2222"}, "worker": ["w0:2222"]}


def test_the_tasks_of_a_dense_cluster() -> None:
    spec = ClusterSpec(DENSE)
    assert spec.jobs == ["ps", "worker"]
    assert (spec.num_tasks("ps"), spec.num_tasks("worker"), len(spec)) == (2, 3, 5)
    assert spec.task_indices("worker") == [0, 1, 2]
    assert spec.task_address("worker", 1) == "w1:2222"
    assert spec.job_tasks("ps") == ["ps0:2222", "ps1:2222"]
    assert spec.as_dict() == DENSE
    assert list(spec.tasks())[2] == ("worker", 0, "w0:2222")


def test_the_tasks_of_a_sparse_job() -> None:
    spec = ClusterSpec(SPARSE)
    assert spec.task_indices("ps") == [0, 3]
    assert spec.num_tasks("ps") == 2
    assert spec.job_tasks("ps") == ["ps0:2222", None, None, "ps3:2222"]
    assert spec.as_dict() == SPARSE


def test_indices_without_a_gap_are_a_list() -> None:
    assert ClusterSpec({"ps": {1: "b:1", 0: "a:1"}}) == ClusterSpec({"ps": ["a:1", "b:1"]})
    assert ClusterSpec({"ps": {1: "b:1", 0: "a:1"}}).as_dict() == {"ps": ["a:1", "b:1"]}


def test_equality_and_truth() -> None:
    spec = ClusterSpec(DENSE)
    assert spec == ClusterSpec(spec) == ClusterSpec(spec.as_dict())
    assert hash(spec) == hash(ClusterSpec(DENSE))
    assert spec != ClusterSpec({"worker": DENSE["worker"]})
    assert spec != ClusterSpec({"ps": {0: "ps0:2222"}, "worker": DENSE["worker"]})
    assert spec != DENSE
    assert ClusterSpec({"worker": []})
    assert not ClusterSpec({})


def test_as_text() -> None:
    spec = ClusterSpec(SPARSE)
    assert parse_cluster(spec.to_json()) == spec
    assert str(spec) == "2 ps, 1 worker"
    assert str(ClusterSpec({})) == "no tasks"
    assert counted(1, "worker") == "1 worker"
    assert repr(spec) == f"ClusterSpec({SPARSE})"
    assert copy.deepcopy(spec) == spec


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"worker": ["a:1", "a:1"]}, "got 'a:1' for worker 0 and worker 1"),
        ({"worker": ["a:1"], "ps": ["a:01"]}, "got 'a:1' for worker 0 and ps 0"),
        ({"worker": ["a"]}, "task 0: address 'a': expected host:port; got no port"),
        ({"worker": ["a:65536"]}, "expected a port of 0 to 65535; got '65536'"),
        ({"worker": ["a:" + "9" * 5000]}, "expected a port"),
        ({"worker": ["a:-1"]}, "expected a port"),
        ({"worker": ["a:²"]}, "expected a port"),
        ({"worker": ["a b:1"]}, "a host that is not a name"),
        ({"worker": [":1"]}, "expected host:port"),
        ({"worker": ["::1:1"]}, r"An IPv6 host needs brackets: \[::1\]:2222"),
        ({"worker": ["grpc://a:1"]}, "Omit 'grpc://'"),
        ({"worker": {-1: "a:1"}}, "expected an index of 0"),
        ({"worker": {MAX_TASKS: "a:1"}}, "expected an index of 0"),
        ({"worker": {"0": "a:1", 0: "b:1"}}, "expected each index once"),
        ({"my-job": ["a:1"]}, "expected a letter, then letters, digits and underscores"),
        ({"": ["a:1"]}, "expected a letter"),
    ],
)
def test_what_cannot_be_a_cluster(cluster: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ClusterSpec(cluster)


@pytest.mark.parametrize(
    "cluster",
    [None, "worker", ["a:1"], {1: ["a:1"]}, {"worker": "a:1"}, {"worker": 1}, {"worker": [1]},
     {"worker": {True: "a:1"}}, {"worker": {"x": "a:1"}}],
)  # fmt: skip
def test_what_has_another_type(cluster: Any) -> None:
    with pytest.raises(DTypeError, match="expected"):
        ClusterSpec(cluster)


def test_port_0_is_any_port_and_may_appear_again() -> None:
    assert ClusterSpec({"local": ["localhost:0", "localhost:0"]}).num_tasks("local") == 2


@pytest.mark.parametrize("ask", ["num_tasks", "task_indices", "job_tasks"])
def test_a_job_that_is_not_there(ask: str) -> None:
    with pytest.raises(ValueError, match=r"expected one of its jobs \(ps, worker\); got 'chief'"):
        getattr(ClusterSpec(DENSE), ask)("chief")


def test_a_task_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"expected a task of the cluster \(0, 1\); got 2"):
        ClusterSpec(DENSE).task_address("ps", 2)


def test_a_spec_is_not_the_dict_it_was_made_of() -> None:
    cluster = {"worker": ["a:1"]}
    spec = ClusterSpec(cluster)
    cluster["worker"].append("b:1")
    spec.as_dict()["worker"] = []
    assert spec.num_tasks("worker") == 1


@pytest.mark.parametrize(
    "text", ["{", "[]", "1", '{"a":["h:1"],"a":[]}', "[" * 100_000, '{"a":' + "9" * 5000 + "}"]
)
def test_json_that_is_no_cluster(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_cluster(text)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    try:
        address = parse_address(text)
    except InvalidArgumentError:
        return
    assert parse_address(str(address)) == address


def test_addresses() -> None:
    assert parse_address("[::1]:80") == Address("[::1]", 80)
    assert parse_address("my_host.example.com.:80").host == "my_host.example.com."
