"""The examples with digits, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import flowrt as tf
from flowrt.report.read_run import read_run
from flowrt.summary.event_file import read_events
from tests.example_runs import ROOT, number_after, path_after, run_example, run_launched


def test_digits_mlp_learns_and_does_not_depend_on_the_number_of_devices(tmp_path: Path) -> None:
    printed = run_example("digits_mlp.py", folder=tmp_path)
    assert number_after("test accuracy", printed) >= 0.95
    assert run_example("digits_mlp.py", "--devices", "2", folder=tmp_path) == printed
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What digits_cnn.py prints, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("cnn")
    return run_example("digits_cnn.py", folder=folder), folder


def test_digits_cnn_learns(cnn: tuple[str, Path]) -> None:
    printed, _ = cnn
    assert number_after("test accuracy", printed) >= 0.98


def test_digits_cnn_writes_a_checkpoint_that_loads(cnn: tuple[str, Path]) -> None:
    printed, folder = cnn
    prefix = path_after("checkpoint", printed, folder)
    assert tf.train.latest_checkpoint(str(prefix.parent)) == str(prefix)
    shapes = dict(tf.train.list_variables(str(prefix)))
    assert shapes["conv1/kernel"] == [3, 3, 1, 32]
    assert shapes["logits/kernel"] == [128, 10]
    step = int(tf.train.load_variable(str(prefix), "global_step"))
    assert prefix.name == f"model-{step}"


def test_digits_cnn_writes_events_in_which_the_loss_falls(cnn: tuple[str, Path]) -> None:
    printed, folder = cnn
    (path,) = path_after("events", printed, folder).glob("events.out.tfevents.*")
    values = [value for event in read_events(path) for value in event.summary.value]
    losses = [value.simple_value for value in values if value.tag == "batch_loss"]
    assert len(losses) == int(path_after("checkpoint", printed, folder).name.removeprefix("model-"))
    assert sum(losses[-50:]) < 0.5 * sum(losses[:50])


def test_digits_cnn_leaves_a_run_to_report(cnn: tuple[str, Path]) -> None:
    printed, folder = cnn
    run = read_run(path_after("events", printed, folder))
    assert [trace.tag for trace in run.traces] == ["step_200", "step_400", "step_600"]
    assert len({operation.device for operation in run.traces[-1].step.operations}) == 2
    assert set(run.curves) == {"batch_loss", "learning_rate"}


def test_digits_cnn_draws_the_graph_on_both_devices(cnn: tuple[str, Path]) -> None:
    printed, folder = cnn
    picture = path_after("graph picture", printed, folder)
    text = " ".join(ElementTree.parse(picture).getroot().itertext())
    for word in ("CPU:0", "CPU:1", "conv1", "hidden"):
        assert word in text


def test_digits_cluster_trains_the_weights_of_one_process(tmp_path: Path) -> None:
    printed = run_launched("digits_cluster.py", "--steps", "9", folder=tmp_path)
    for how in ("in-graph", "between-graph"):
        assert f"{how}: 0 of 33 variables differ from one process" in printed


def test_digits_strategies_trains_the_weights_of_one_replica(tmp_path: Path) -> None:
    printed = run_example("digits_strategies.py", "--steps", "150", folder=tmp_path)
    assert number_after("test accuracy", printed) >= 0.9
    found = re.search(r"differ from one replica's by ([0-9.e+-]+)", printed)
    assert found
    assert float(found[1]) < 1e-12


@pytest.mark.slow
def test_digits_ps_trains_the_weights_of_one_process(tmp_path: Path) -> None:
    printed = run_launched("digits_ps.py", "--steps", "20", folder=tmp_path)
    assert "sync: 20 updates" in printed
    found = re.search(r"differ from those of one process by ([0-9.e+-]+)", printed)
    assert found
    assert float(found[1]) < 1e-12


@pytest.mark.slow
def test_digits_ps_with_a_backup_worker_makes_each_step_once_and_ends(tmp_path: Path) -> None:
    arguments = ("--mode", "backup=1", "--steps", "30")
    printed = run_launched("digits_ps.py", *arguments, processes=3, folder=tmp_path)
    assert "backup=1: 30 updates" in printed
    assert "steps per worker: [30, 30, 30]" in printed


def test_the_digits_without_scikit_learn_name_the_extra(tmp_path: Path) -> None:
    code = "import sys; sys.modules['sklearn'] = None; import digits"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.fullmatch(r"The digits need scikit-learn .*: pip install 'flowrt\[examples\]'\n", done.stderr)
