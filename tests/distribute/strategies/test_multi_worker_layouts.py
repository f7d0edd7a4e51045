"""`MultiWorkerLayoutStrategy` between real processes: `multi_worker_layouts_script.py` on each of them."""

from __future__ import annotations

import functools
import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.mesh import Mesh
from flowrt.train.checkpoints import shard_file
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, of_net, trained
from tests.distribute.strategies.standing_workers import Answers
from tests.distribute.strategies.test_multi_worker import answer_of, workers

SCRIPT = Path(__file__).with_name("multi_worker_layouts_script.py")


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
        ("mlp", "dp x tp", 4),
        pytest.param("gpt", "dp x tp", 4, marks=pytest.mark.slow),
        ("embedding", "dp x tp", 2),  # two devices a process
    ],
)
def test_training_in_processes_is_that_of_one_device(
    answers: Answers, net: str, what: str, count: int
) -> None:
    expected, expected_variables = on_one_device(net)
    (losses, variables), *others = answers(f"train:{net}:{what}", count)
    np.testing.assert_allclose(losses, expected, 1e-12)
    for found, wanted in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-8)
    assert others == [[losses, variables]] * (count - 1)


@pytest.mark.parametrize(
    ("first", "end", "count"),
    [
        (0, 3, 2),
        (411, 412, 4),
        pytest.param(3, 6, 2, marks=pytest.mark.slow),
        pytest.param(305, 320, 3, marks=pytest.mark.slow),
    ],
)
def test_results_of_random_graphs_are_those_of_one_device(
    answers: Answers, first: int, end: int, count: int
) -> None:
    assert answers(f"graphs:{first}:{end}", count) == [[]] * count


@pytest.mark.parametrize(
    ("first", "end", "count"), [(0, 3, 2), pytest.param(500, 508, 4, marks=pytest.mark.slow)]
)
def test_so_are_those_with_loops_and_branches(answers: Answers, first: int, end: int, count: int) -> None:
    assert answers(f"loops:{first}:{end}", count) == [[]] * count


def test_processes_give_the_bits_of_devices(answers: Answers) -> None:
    """All coordinates in one session, and each process its own: a sum of two has one order."""
    (losses, variables), _ = answers("train:mlp:tp", 2)
    layouts = of_net(NETS["mlp"], COLUMNS)
    expected, expected_variables = trained(NETS["mlp"], Mesh([("tp", 2)]), None, layouts)
    assert losses == expected
    assert variables == [each.tolist() for each in expected_variables]


def test_processes_give_the_bits_of_a_master(answers: Answers) -> None:
    """Many controllers and a single one: the same operations on the same tasks."""
    (losses, variables), _ = answers("train:mlp:tp", 2)
    layouts = of_net(NETS["mlp"], COLUMNS)
    with ReservedPorts(2) as reserved:
        spec = {"worker": [f"127.0.0.1:{port}" for port in reserved.ports]}
        servers = [tf.train.Server(spec, "worker", index) for index in range(2)]
        mesh = Mesh([("tp", 2)])
        expected, expected_variables = trained(NETS["mlp"], mesh, None, layouts, target=servers[0].target)
        for server in servers:
            server.stop()
    assert losses == expected
    assert variables == [each.tolist() for each in expected_variables]


def test_a_shuffled_dataset_is_one_in_all_processes_and_ends_in_all(answers: Answers) -> None:
    """Each epoch's two steps have all rows between them, whatever their order."""
    first, second = answers("reads", 2)
    assert first == second
    sums, total = first
    squares = sum(i**2 for i in range(8))
    assert [sums[0] + sums[1], sums[2] + sums[3]] == [squares, squares]
    assert total == 2 * squares


def test_draws_without_a_seed_are_one_and_python_is_called_once(answers: Answers) -> None:
    (losses, called), (others, called_elsewhere) = answers("draws", 2)
    assert losses == others
    assert len({loss for loss, _ in losses}) == 3
    assert called == [loss for loss, _ in losses]
    assert called_elsewhere == []


SAVED = {"w": np.arange(21.0).reshape(7, 3), "u": np.arange(7) * 1.5, "step": np.array(5)}


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("layout", "count", "expected_bytes"),
    [
        ("rows", 2, [104, 128]),
        pytest.param("columns", 4, [8, 56, 56, 112], marks=pytest.mark.slow),
        ("whole", 2, [64, 168]),
    ],
)
def test_processes_save_together_and_restore_what_they_saved(
    answers: Answers, layout: str, count: int, expected_bytes: list[int], checkpoints: Path
) -> None:
    """Of equal copies one process writes one: that with the fewest bytes so far."""
    found = answers(f"saves:{layout}", count)
    expected = {name: value.tolist() for name, value in SAVED.items()}
    zeros = {name: np.zeros_like(value).tolist() for name, value in SAVED.items()}
    for values, _ in found:
        assert values == [expected, zeros, expected]
    assert sorted(sum(nbytes) for _, nbytes in found) == expected_bytes
    assert len([*checkpoints.glob("*.safetensors")]) == count


def scope_of(layout: list[str | None] | None) -> AbstractContextManager[Any]:
    """On three devices of this process, or without a mesh."""
    return nullcontext() if layout is None else tf.distribute.LayoutStrategy(Mesh([("a", 3)])).scope()


def save_here(checkpoints: Path, layout: list[str | None] | None) -> None:
    """In this process, with the layout of the matrix."""
    with tf.Graph().as_default():
        with scope_of(layout):
            for name, value in SAVED.items():
                given = {"layout": layout} if layout is not None and name == "w" else {}
                tf.get_variable(name, initializer=tf.constant(value), **given)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
            session.run(tf.global_variables_initializer())
            tf.train.Saver().save(session, f"{checkpoints}/model")


@pytest.mark.parametrize(("saved", "restored", "count"), [(None, "rows", 2), (["a", None], "columns", 4)])
def test_processes_restore_what_other_meshes_saved(
    answers: Answers, saved: list[str | None] | None, restored: str, count: int, checkpoints: Path
) -> None:
    save_here(checkpoints, saved)
    expected = {name: value.tolist() for name, value in SAVED.items()}
    assert answers(f"restores:{restored}", count) == [expected] * count


def test_what_processes_saved_is_restored_in_one(answers: Answers, checkpoints: Path) -> None:
    answers("saves:rows", 2)
    for layout in (None, ["a", None], [None, "a"]):
        with tf.Graph().as_default():
            given = {} if layout is None else {"layout": layout}
            with scope_of(layout):
                w = tf.get_variable("w", [7, 3], tf.float64, **given)
            with tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
                tf.train.Saver().restore(session, f"{checkpoints}/model")
                np.testing.assert_array_equal(session.run(w), SAVED["w"])


def test_damage_that_one_process_finds_is_an_error_in_all_and_no_variable_changes(
    answers: Answers, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_file, "BLOCK_BYTES", 32)
    save_here(checkpoints, ["a", None])
    (path,) = checkpoints.glob("*.safetensors")
    data = path.read_bytes()
    at = data.rindex(SAVED["w"][6].tobytes())  # the last row, which the second process has
    path.write_bytes(data[:at] + b"?" + data[at + 1 :])
    found = answers("restores:rows", 2)
    assert ["process 1: " in message for _, message, _ in found] == [True, False]
    for kind, message, values in found:
        assert kind == "DataLossError"
        assert re.search(r"safetensors: tensor 'w', piece \[5:7, 0:3\]: expected CRC-32", message)
        assert values == [np.ones_like(value).tolist() for value in SAVED.values()]


def test_processes_load_foreign_files(answers: Answers, checkpoints: Path) -> None:
    safetensors.numpy.save_file(
        {"weight": np.ascontiguousarray(SAVED["w"].T), "bias": SAVED["u"]}, f"{checkpoints}/w.safetensors"
    )
    assert answers("loads", 2) == [[SAVED["w"].tolist(), SAVED["u"].tolist()]] * 2


def test_what_one_process_cannot_save_is_an_error_in_all_and_leaves_nothing(
    answers: Answers, checkpoints: Path
) -> None:
    for kind, message in answers("uninitialized", 2):
        assert kind == "FailedPreconditionError"
        assert "step" in message
        assert "has no value" in message
    assert [*checkpoints.iterdir()] == []


def test_a_process_killed_while_it_saves_is_named_and_the_checkpoint_stays(checkpoints: Path) -> None:
    save_here(checkpoints, None)
    with workers("killed_saving", 2, [SCRIPT] * 2) as processes:
        kind, message = answer_of(processes[0])
    assert (kind, "rank (a=1, b=" in message) == ("UnavailableError", True), message
    np.testing.assert_array_equal(tf.train.load_variable(f"{checkpoints}/model", "w"), SAVED["w"])


def test_a_monitored_loop_saves_when_the_first_process_says_so_and_goes_on(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step subtracts 1 from each element."""
    for begun, last_step in ((0, 3), (3, 5)):
        monkeypatch.setenv("LAST_STEP", str(last_step))
        with workers("monitors", 2, [SCRIPT] * 2) as processes:  # as after a restart
            first, second = map(answer_of, processes)
        assert first[:2] == second[:2] == [begun, [-float(last_step)] * 2]
        for step, value in first[2].items():
            assert value == [-float(step)] * 2
        assert str(last_step) in first[2]
    assert len([*checkpoints.glob("events*")]) == 2, "one for each run, of the first process"


def test_strings_flags_and_unknown_sizes_travel_and_a_process_fetches_its_copy_alone(
    answers: Answers,
) -> None:
    (*first, alone), (*second, _) = answers("fetches", 2)
    assert first == second
    where, texts, flags, *parts = first
    assert (where, flags, parts) == ([0, 2], [True, False, True], [[3, -1], [2]])
    assert [float(text) for text in texts] == [3, -1, 2]
    assert alone == [1.5]


# --- what goes wrong


def test_a_step_that_differs_is_shown_to_all(answers: Answers) -> None:
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


def test_a_variable_of_each_process_cannot_be_used_in_a_step_of_all(answers: Answers) -> None:
    for kind, message in answers("outside", 2):
        assert kind == "InvalidArgumentError"
        assert "variable 'step': expected one made in the scope of the strategy" in message
        assert "Make the model inside strategy.scope()" in message


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


def test_workers_that_feed_rows_of_their_own_are_told(answers: Answers) -> None:
    """As replicas would: half of the rows would be left out."""
    for kind, message in answers("feeds", 2):
        assert kind == "InvalidArgumentError"
        assert "and feed all of the same batch; got, as number 1, the feed of 'Placeholder'" in message


def test_what_one_process_does_alone_is_said(answers: Answers, checkpoints: Path) -> None:
    for fetch, save, other in answers("alone", 2):
        for text in (fetch, save, other):
            assert "expected all ranks to make the same calls in the same order; got rank (dp=" in text
            assert "Does one of them run, save or restore something alone?" in text
        assert re.search(r"rank \(dp=0\) \S+ \d: all_gather 'first run of a step that fetches loss:0'", fetch)
        assert re.search(r"rank \(dp=0\) \S+ \d: all_gather 'save: sizes'", save)
        assert re.search(r"rank \(dp=0\) \S+ \d: all_gather 'first run of a step that fetches loss:0'", other)
        assert re.search(r"rank \(dp=1\) \S+ \d: all_gather 'first run of a step that runs train'", other)
    assert [*checkpoints.iterdir()] == []


def test_a_forgotten_scope_is_a_warning_where_a_model_is_trained_without_it(answers: Answers) -> None:
    for without_scope, with_scope in answers("forgets", 2):
        (text,) = without_scope
        assert text.startswith("<FullyShardedStrategy over [dp=2]> has no variables, as no scope of it was")
        assert "each process trains a model of its own" in text
        assert with_scope == []
