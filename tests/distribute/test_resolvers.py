"""Where a cluster comes from: each source, their order, and their contradictions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.launch.local_cluster import expand_nodes, local_cluster, task_variables
from flowrt.distribute.resolvers import VARIABLES, resolve
from flowrt.distribute.resolvers.cluster_resolver import (
    KubernetesClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    UnionClusterResolver,
)
from flowrt.distribute.resolvers.slurm import expand_counts, expand_nodelist
from flowrt.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError

TWO = {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}
OTHER = {"worker": ["127.0.0.1:3333", "127.0.0.1:3334"]}
PS = {"ps": ["p:1"], "worker": ["w:1", "w:2"]}
ROOT = Path(__file__).resolve().parents[2]


def tf_config(
    cluster: object = TWO, job: object = "worker", index: object = 0, **more: object
) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}, **more})}


def flowrt_variables(cluster: object = TWO, task: str = "worker:1") -> dict[str, str]:
    return {"FLOWRT_CLUSTER": json.dumps(cluster), "FLOWRT_TASK": task}


def torchrun(rank: int = 1, size: int = 2, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **more
    }  # fmt: skip


def slurm(rank: int, nodes: str = "n[1-2]", counts: str = "1(x2)", **more: str) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank), "SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": counts,
        "FLOWRT_PORT": "7000", **more,
    }  # fmt: skip


def open_mpi(rank: int, size: int, local: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local), "FLOWRT_PORT": "7000",
    }  # fmt: skip


KUBERNETES = {
    "JOB_COMPLETION_INDEX": "1", "FLOWRT_TASKS": "2", "FLOWRT_SUBDOMAIN": "train", "FLOWRT_PORT": "2222",
    "HOSTNAME": "digits-1",
}  # fmt: skip


def failure(environ: dict[str, str], **flags: Any) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        resolve(environ, **flags)
    return str(caught.value)


# --- each source


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({}, "1 worker from the default (a single process); I am worker 0 at 127.0.0.1:0"),
        (tf_config(), "2 workers from TF_CONFIG; I am worker 0 at 127.0.0.1:2222"),
        (tf_config(index="1"), "2 workers from TF_CONFIG; I am worker 1 at 127.0.0.1:2223"),
        (tf_config(PS, "ps"), "1 ps, 2 workers from TF_CONFIG; I am ps 0 at p:1"),
        (flowrt_variables(), "2 workers from FLOWRT_CLUSTER; I am worker 1 at 127.0.0.1:2223"),
        (flowrt_variables(task="1"), "2 workers from FLOWRT_CLUSTER; I am worker 1 at 127.0.0.1:2223"),
        (torchrun(), "2 workers from torchrun; I am worker 1 at 127.0.0.1:29502"),
        (torchrun(FLOWRT_PORT="9000"), "2 workers from torchrun; I am worker 1 at 127.0.0.1:9001"),
        (torchrun(MASTER_ADDR="::1"), "2 workers from torchrun; I am worker 1 at [::1]:29502"),
        (slurm(1), "2 workers from Slurm; I am worker 1 at n2:7000"),
        (slurm(2, counts="2,1", SLURM_LOCALID="0"), "3 workers from Slurm; I am worker 2 at n2:7000"),
        (slurm(1, counts="2,1", SLURM_LOCALID="1"), "3 workers from Slurm; I am worker 1 at n1:7001"),
        (slurm(3, counts="", SLURM_NTASKS="4"), "4 workers from Slurm; I am worker 3 at n2:7001"),
        (open_mpi(1, 2, 2), "2 workers from Open MPI; I am worker 1 at 127.0.0.1:7001"),
        (KUBERNETES, "2 workers from Kubernetes; I am worker 1 at digits-1.train:2222"),
    ],
)
def test_a_source_alone(environ: dict[str, str], line: str) -> None:
    assert str(resolve(environ)) == f"cluster: {line}"


@pytest.mark.parametrize("in_file", [True, False])
def test_flags_come_first(tmp_path: Path, in_file: bool) -> None:
    text = json.dumps(PS)
    if in_file:
        (tmp_path / "cluster.json").write_text(text)
        text = str(tmp_path / "cluster.json")
    assert str(resolve({}, text, "worker", 1)) == (
        "cluster: 1 ps, 2 workers from --cluster; I am worker 1 at w:2"
    )


def test_sources_complete_each_other() -> None:
    assert resolve({"FLOWRT_CLUSTER": json.dumps(TWO)}, task=1).address == "127.0.0.1:2223"
    assert resolve({"FLOWRT_CLUSTER": json.dumps(TWO)} | open_mpi(1, 2, 1)).task == 1
    assert resolve({"FLOWRT_CLUSTER": json.dumps(TWO)} | torchrun(0, 2, LOCAL_WORLD_SIZE="1")).task == 0
    assert resolve({"FLOWRT_CLUSTER": json.dumps(PS)} | slurm(2, counts="2,1")).job == "worker"


def test_a_launcher_of_one_process_says_nothing() -> None:
    assert resolve(slurm(0, "n1", "1") | tf_config()).source == "TF_CONFIG"
    assert resolve(torchrun(0, 1)).address == "127.0.0.1:0"


def test_runs_on_one_host_take_different_ports() -> None:
    ports = set()
    for job in range(20):
        environ = slurm(0, FLOWRT_PORT="", SLURM_JOB_ID=str(job))
        addresses = {resolve(environ | {"SLURM_PROCID": rank}).spec for rank in "01"}
        assert len(addresses) == 1  # all tasks of a run compute the same
        ports.add(resolve(environ).address)
    assert len(ports) > 15


# --- contradictions and mistakes


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (flowrt_variables() | tf_config(OTHER, index=1), ["FLOWRT_CLUSTER", "TF_CONFIG", "3333"]),
        (flowrt_variables() | tf_config(), ["1 from FLOWRT_TASK", "0 from TF_CONFIG"]),
        (flowrt_variables() | torchrun(0), ["1 from FLOWRT_TASK", "0 from torchrun"]),
        (flowrt_variables() | torchrun(1, 3), ["2 workers from FLOWRT_CLUSTER", "3 processes from torchrun"]),
        (torchrun(1, 4) | slurm(1), ["4 workers from torchrun", "2 processes from Slurm"]),
        (torchrun(1, 2) | slurm(0, "n1", "2"), ["1 from torchrun", "0 from Slurm"]),
        (torchrun(1, 2) | slurm(1), ["127.0.0.1:7001']} from torchrun", "n2:7000']} from Slurm"]),
    ],
)
def test_two_sources_that_disagree_are_both_named(environ: dict[str, str], said: list[str]) -> None:
    message = failure(environ)
    assert all(part in message for part in said), message


def test_a_flag_does_not_hide_a_contradiction() -> None:
    assert "0 from --task and 1 from FLOWRT_TASK" in failure(flowrt_variables(), task=0)
    message = failure(flowrt_variables(), cluster=json.dumps(OTHER))
    assert "--cluster" in message
    assert "FLOWRT_CLUSTER" in message


def test_sources_that_agree_are_fine() -> None:
    found = resolve(flowrt_variables() | tf_config(index=1) | torchrun(1), json.dumps(TWO), "worker", 1)
    assert (found.source, found.task) == ("--cluster", 1)
    on_one_host = torchrun(1, 2, MASTER_ADDR="localhost") | slurm(1, "n1", "2", SLURM_LOCALID="1")
    assert resolve(on_one_host).source == "torchrun"  # one host by two names


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            flowrt_variables(task=""),
            "FLOWRT_CLUSTER has 2 workers; expected a setting for this process's task",
        ),
        (
            flowrt_variables(PS, "1"),
            "FLOWRT_CLUSTER has 1 ps, 2 workers; expected a setting for this process's job",
        ),
        (flowrt_variables(task="worker:7"), r"FLOWRT_CLUSTER has 2 workers: .*\(0, 1\); got 7"),
        (flowrt_variables(task="worker:x"), "FLOWRT_TASK: expected a number; got 'x'"),
        (flowrt_variables(task="worker:"), "FLOWRT_TASK: expected a number"),
        ({"FLOWRT_CLUSTER": "/no/such/file"}, "FLOWRT_CLUSTER: expected JSON or a file with it"),
        ({"FLOWRT_CLUSTER": "{"}, "FLOWRT_CLUSTER: cluster: expected JSON"),
        ({"FLOWRT_CLUSTER": tf_config()["TF_CONFIG"]}, "FLOWRT_CLUSTER: .* has the format of TF_CONFIG"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG: expected JSON"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG: expected an object"),
        (tf_config(index="x"), "TF_CONFIG: expected a number as the task's index; got 'x'"),
        (tf_config(index=True), "TF_CONFIG: expected a number"),
        (tf_config(job=1), "TF_CONFIG: expected the name of a job"),
        (tf_config({"worker": ["a"]}), "TF_CONFIG: job 'worker', task 0"),
        (tf_config(job="evaluator"), "got evaluator from TF_CONFIG"),
        (torchrun(RANK="x"), "RANK: expected a number; got 'x'"),
        (torchrun(2, 2), "torchrun: expected 1 to 100000 processes, numbered from 0; got number 2 of 2"),
        (torchrun(0, 4, LOCAL_WORLD_SIZE="2"), "only 2 of the 4 processes are on this host"),
        (torchrun(MASTER_ADDR=""), "MASTER_ADDR or MASTER_PORT is missing"),
        (torchrun(FLOWRT_PORT="0"), "FLOWRT_PORT: expected a port of 1 to 65535; got 0"),
        (open_mpi(0, 4, 2), "mpirun does not name hosts, and only 2 of the 4"),
        (slurm(2), "Slurm: expected 1 to 100000 processes, numbered from 0; got number 2 of 2"),
        (slurm(1, counts="1"), "Slurm: expected a number of tasks for each of 2 hosts; got 1"),
        (slurm(1, counts="2,1", SLURM_LOCALID="0"), "srun --distribution=block"),
        (slurm(0, counts="", SLURM_NTASKS="3"), "equal numbers of tasks on 2 hosts; got 3 tasks"),
        ({**KUBERNETES, "FLOWRT_SUBDOMAIN": ""}, "the pod's template must set FLOWRT_SUBDOMAIN"),
        ({**KUBERNETES, "HOSTNAME": "digits-0"}, "a HOSTNAME that ends in -1"),
    ],
)
def test_mistakes(environ: dict[str, str], said: str) -> None:
    assert re.search(said, failure(environ))


@example({"FLOWRT_CLUSTER": "\0"})
@given(
    st.dictionaries(
        st.sampled_from([*VARIABLES, "MASTER_ADDR", "MASTER_PORT", "FLOWRT_PORT"]), st.text(max_size=9)
    )
)
def test_any_environment_resolves_or_is_a_typed_error(environ: dict[str, str]) -> None:
    try:
        found = resolve(environ)
    except InvalidArgumentError:
        return
    assert found.address


# --- Slurm's syntax


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3,07]", ["n1", "n2", "n3", "n07"]),
        ("n[08-10],m", ["n08", "n09", "n10", "m"]),
        ("t[1-2]n[3-4]x", ["t1n3x", "t1n4x", "t2n3x", "t2n4x"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
    ],
)
def test_a_nodelist_is_expanded(text: str, hosts: list[str]) -> None:
    assert expand_nodelist(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["", ",", "n[", "n]", "n[]", "n[a]", "n[3-1]", "n[1-3", "n[1-999999999]", "[1[2]]", "a[0-9999]b[0-9999]"],
)
def test_a_bad_nodelist_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="SLURM_STEP_NODELIST: expected host names"):
        expand_nodelist(text)


@given(st.text(alphabet="ab[]-,0123 ", max_size=20))
def test_any_nodelist_is_expanded_or_refused(text: str) -> None:
    try:
        hosts = expand_nodelist(text)
    except InvalidArgumentError:
        return
    assert all(host and not set(host) & set("[],") for host in hosts)


def test_task_counts() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    for text in ("", "x", "2(x)", "1(x999999999)", "-1"):
        with pytest.raises(InvalidArgumentError, match="expected task counts"):
            expand_counts(text)


# --- what a launcher says to its children


def test_the_variables_of_a_task_resolve_to_it() -> None:
    spec = local_cluster([2001, 2002])
    outer = slurm(0) | tf_config(OTHER) | KUBERNETES | {"PATH": "/bin"}
    for rank in range(2):
        environ = task_variables(outer, spec, 2000, node=0, local=rank, per_node=2)
        found = resolve(environ)
        assert (found.spec, found.task, found.source) == (spec, rank, "FLOWRT_CLUSTER")
        assert environ["PATH"] == "/bin"


def test_nodes_are_expanded_to_their_tasks() -> None:
    spec, master_port = expand_nodes(ClusterSpec({"host": ["a:100", "b:200"]}), 2)
    assert spec.as_dict() == {"worker": ["a:100", "a:101", "b:200", "b:201"]}
    assert master_port == 102
    environ = task_variables({}, spec, master_port, node=1, local=0, per_node=2)
    assert (environ["RANK"], environ["LOCAL_RANK"], environ["FLOWRT_TASK"]) == ("2", "0", "worker:2")


# --- TensorFlow's classes


def test_simple_cluster_resolver() -> None:
    resolver = SimpleClusterResolver(
        ClusterSpec(TWO),
        master="10.0.0.1:9",
        task_type="worker",
        task_id=1,
        environment="cloud",
        rpc_layer="grpc",
    )
    assert resolver.cluster_spec() == ClusterSpec(TWO)
    assert resolver.master() == "grpc://10.0.0.1:9"
    assert resolver.master("worker", 0, rpc_layer="test") == "test://127.0.0.1:2222"
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 1, "cloud")
    assert SimpleClusterResolver(ClusterSpec(TWO)).master() == ""
    assert SimpleClusterResolver(ClusterSpec(TWO), num_accelerators={"GPU": 2}).num_accelerators() == {
        "GPU": 2
    }
    with pytest.raises(FailedPreconditionError, match="list_devices"):
        resolver.num_accelerators("worker", 0)


def test_tf_config_cluster_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(rpc_layer="grpc", environment="cloud")["TF_CONFIG"])
    resolver = TFConfigClusterResolver()
    assert resolver.master() == "grpc://127.0.0.1:2222"
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 0, "cloud")
    assert TFConfigClusterResolver(task_id=1, rpc_layer="x").master() == "x://127.0.0.1:2223"
    monkeypatch.delenv("TF_CONFIG")
    assert not TFConfigClusterResolver().cluster_spec()
    assert TFConfigClusterResolver().master() == ""


def test_slurm_cluster_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm(2, "t02n[13,41]", "2(x2)", CUDA_VISIBLE_DEVICES="").items():
        monkeypatch.setenv(name, value)
    resolver = SlurmClusterResolver({"worker": 3, "ps": 1}, gpus_per_node=2, gpus_per_task=1)
    assert resolver.cluster_spec().as_dict() == {
        "ps": ["t02n13:8888"], "worker": ["t02n13:8889", "t02n41:8888", "t02n41:8889"],
    }  # fmt: skip
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master() == "grpc://t02n41:8888"
    assert resolver.num_accelerators() == {"GPU": 1}
    with pytest.raises(InvalidArgumentError, match="expected jobs of 4 tasks together"):
        SlurmClusterResolver({"worker": 3})
    assert SlurmClusterResolver(port_base=10, tasks_per_node=2).cluster_spec().num_tasks("worker") == 4


def test_kubernetes_cluster_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KUBERNETES.items():
        monkeypatch.setenv(name, value)
    assert KubernetesClusterResolver().master() == "grpc://digits-1.train:2222"
    running = [pod("b", "10.0.0.2"), pod("a", "10.0.0.1")]
    client = SimpleNamespace(
        list_pod_for_all_namespaces=lambda label_selector: SimpleNamespace(items=running)
    )
    resolver = KubernetesClusterResolver({"worker": ["job-name=x"]}, 8470, override_client=client)
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]}
    running[0].status.phase = "Failed"
    with pytest.raises(FailedPreconditionError, match="pod 'b': expected phase Running; got Failed"):
        resolver.cluster_spec()


def pod(name: str, host_ip: str) -> SimpleNamespace:
    status = SimpleNamespace(phase="Running", host_ip=host_ip)
    return SimpleNamespace(metadata=SimpleNamespace(name=name), status=status)


def test_union_cluster_resolver() -> None:
    first = SimpleClusterResolver(
        ClusterSpec(TWO), master="m:1", task_type="worker", task_id=0, rpc_layer="grpc"
    )
    union = UnionClusterResolver(
        first, SimpleClusterResolver(ClusterSpec({"ps": ["p:1"], "worker": ["w:1"]}))
    )
    assert union.cluster_spec().as_dict() == {"worker": [*TWO["worker"], "w:1"], "ps": ["p:1"]}
    assert (union.master(), union.task_type, union.environment) == ("grpc://m:1", "worker", "")
    assert union.master("ps", 0) == "grpc://p:1"
    sparse = SimpleClusterResolver(ClusterSpec({"worker": {5: "x:1"}}))
    assert UnionClusterResolver(first, sparse).cluster_spec().task_indices("worker") == [0, 1, 5]
    overlapping = SimpleClusterResolver(ClusterSpec({"worker": {1: "x:1"}}))
    with pytest.raises(AlreadyExistsError, match="got task 1 twice"):
        UnionClusterResolver(first, overlapping).cluster_spec()
    with pytest.raises(InvalidArgumentError, match="expected cluster resolvers"):
        UnionClusterResolver()
