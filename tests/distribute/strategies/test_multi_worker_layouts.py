"""`MultiWorkerLayoutStrategy` between real processes: `multi_worker_layouts_script.py` on each of them."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.mesh import Mesh
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, of_net, trained
from tests.distribute.strategies.test_multi_worker import answer_of, workers

SCRIPT = Path(__file__).with_name("multi_worker_layouts_script.py")


def answers(what: str, count: int) -> list[Any]:
    with workers(what, count, [SCRIPT] * count) as processes:
        return [answer_of(process) for process in processes]


@functools.cache
def on_one_device(net: str) -> tuple[list[float], list[Any]]:
    return trained(NETS[net])


@pytest.mark.parametrize(
    ("net", "what", "count"),
    [
        pytest.param("mlp", "dp", 2, marks=pytest.mark.slow),
        ("cnn", "dp", 2),
        pytest.param("lstm", "dp", 2, marks=pytest.mark.slow),
        ("lstm", "tp", 2),
        pytest.param("lstm", "dp x tp", 4, marks=pytest.mark.slow),
        ("lstm", "dp x tp", 2),
        pytest.param("lenet", "dp x tp", 4, marks=pytest.mark.slow),
        ("gpt", "tp", 2),
        pytest.param("mlp", "tp", 3, marks=pytest.mark.slow),  # uneven: 8 columns
        ("gpt", "tp x turns", 2),
        ("gpt", "dp x tp", 4),
        ("embedding", "dp x tp", 2),  # two devices a process
    ],
)
def test_training_in_processes_is_that_of_one_device(net: str, what: str, count: int) -> None:
    expected, expected_variables = on_one_device(net)
    (losses, variables), *others = answers(f"train:{net}:{what}", count)
    np.testing.assert_allclose(losses, expected, 1e-12)
    for found, wanted in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-8)
    assert others == [[losses, variables]] * (count - 1)


@pytest.mark.parametrize(
    ("first", "end", "count"), [(0, 6, 2), pytest.param(305, 320, 3, marks=pytest.mark.slow), (411, 413, 4)]
)
def test_results_of_random_graphs_are_those_of_one_device(first: int, end: int, count: int) -> None:
    assert answers(f"graphs:{first}:{end}", count) == [[]] * count


@pytest.mark.parametrize(
    ("first", "end", "count"), [(0, 6, 2), pytest.param(500, 508, 4, marks=pytest.mark.slow)]
)
def test_so_are_those_with_loops_and_branches(first: int, end: int, count: int) -> None:
    assert answers(f"loops:{first}:{end}", count) == [[]] * count


def test_processes_give_the_bits_of_devices() -> None:
    """All coordinates in one session, and each process its own: a sum of two has one order."""
    (losses, variables), _ = answers("train:mlp:tp", 2)
    layouts = of_net(NETS["mlp"], COLUMNS)
    expected, expected_variables = trained(NETS["mlp"], Mesh([("tp", 2)]), None, layouts)
    assert losses == expected
    assert variables == [each.tolist() for each in expected_variables]


def test_a_shuffled_dataset_is_one_in_all_processes_and_ends_in_all() -> None:
    """Each epoch's two steps have all rows between them, whatever their order."""
    first, second = answers("reads", 2)
    assert first == second
    sums, total = first
    squares = sum(i**2 for i in range(8))
    assert [sums[0] + sums[1], sums[2] + sums[3]] == [squares, squares]
    assert total == 2 * squares


def test_draws_without_a_seed_are_one_and_python_is_called_once() -> None:
    (losses, called), (others, called_elsewhere) = answers("draws", 2)
    assert losses == others
    assert len({loss for loss, _ in losses}) == 3
    assert called == [loss for loss, _ in losses]
    assert called_elsewhere == []


def test_checkpoints_are_those_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes save under one name, and restore from it."""
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    for before, after, saved in answers("saves", 2):
        assert before == after == saved
    with tf.Graph().as_default():
        w = tf.get_variable("w", [5, 3], tf.float64)
        with tf.Session() as session:
            tf.train.Saver().restore(session, f"{tmp_path}/model")
            assert session.run(w).tolist() == saved


def test_a_monitored_loop_saves_when_the_first_process_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step subtracts 1 from each element."""
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    for begun, last_step in ((0, 3), (3, 5)):
        monkeypatch.setenv("LAST_STEP", str(last_step))
        first, second = answers("monitors", 2)
        assert first[:2] == second[:2] == [begun, [-float(last_step)] * 2]
        for step, value in first[2].items():
            assert value == [-float(step)] * 2
        assert str(last_step) in first[2]
    assert len([*tmp_path.glob("events*")]) == 2, "one for each run, of the first process"


def test_strings_flags_and_unknown_sizes_travel_and_a_process_fetches_its_copy_alone() -> None:
    (*first, alone), (*second, _) = answers("fetches", 2)
    assert first == second
    where, texts, flags, *parts = first
    assert (where, flags, parts) == ([0, 2], [True, False, True], [[3, -1], [2]])
    assert [float(text) for text in texts] == [3, -1, 2]
    assert alone == [1.5]


# --- what goes wrong


def test_a_step_that_differs_is_shown_to_all() -> None:
    for kind, message in answers("differ", 4):
        assert kind == "InvalidArgumentError"
        assert "expected all ranks to run the same step over one mesh" in message
        assert re.search(r"Const 'mul/y' .* value=0.125 .* at rank \(dp=0, tp=0\)", message)
        assert re.search(r"Const 'mul/y' .* value=0.25 .* at rank \(dp=0, tp=1\)", message)


def test_a_process_that_ends_is_named_by_its_coordinate() -> None:
    with workers("killed", 4, [SCRIPT] * 4) as processes:
        for task in (0, 2, 3):
            kind, message = answer_of(processes[task])
            assert (kind, "rank (dp=0, tp=1)" in message) == ("UnavailableError", True), message


def test_a_process_that_stops_is_named_by_its_coordinate_and_axis() -> None:
    with workers("stuck", 2, [SCRIPT] * 2) as processes:
        kind, message = answer_of(processes[0])
    assert kind == "DeadlineExceededError"
    assert re.search(r"group 'dp': .* within 5 s; rank \(dp=1, tp=.\) \(\S+\) did not come", message)


def test_a_variable_of_each_process_cannot_be_used_in_a_step_of_all() -> None:
    for kind, message in answers("outside", 2):
        assert kind == "InvalidArgumentError"
        assert "variable 'step': expected one made in the scope of the strategy" in message


def test_a_mesh_has_equally_many_devices_of_each_worker() -> None:
    spec = tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=0)
    with pytest.raises(InvalidArgumentError, match=r"many devices of each of 2 workers; got \[dp=3\], of 3"):
        tf.distribute.MultiWorkerLayoutStrategy(Mesh([("dp", 3)]), cluster_resolver=resolver)
    named = Mesh([("dp", 2)], ["/cpu:0", "/cpu:1"])
    with pytest.raises(InvalidArgumentError, match="expected a mesh without devices"):
        tf.distribute.MultiWorkerLayoutStrategy(named, cluster_resolver=resolver)


def test_one_worker_alone_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with tf.Graph().as_default(), tf.distribute.MultiWorkerLayoutStrategy(Mesh([("dp", 2)]), "dp").scope():
        w = tf.get_variable("w", [2], tf.float64, tf.ones_initializer(), layout=["dp"])
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(w.initializer)
            assert session.run(w * 2).tolist() == [2, 2]
