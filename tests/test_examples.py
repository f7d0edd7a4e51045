"""The examples as a user runs them: by name, in an empty folder, each in a process of its own."""

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
from tests.each import nightly

ROOT = Path(__file__).resolve().parent.parent


def run_example(name: str, *arguments: str, folder: Path) -> str:
    """What ``python examples/NAME ARGUMENTS`` prints."""
    done = run_python("-W", "error", str(ROOT / "examples" / name), *arguments, folder=folder)
    assert not done.stderr
    return done.stdout


def run_launched(name: str, *arguments: str, folder: Path, processes: int = 2) -> str:
    """What ``flowrt-run --standalone --nproc PROCESSES examples/NAME ARGUMENTS`` prints."""
    launcher = ("-m", "flowrt.cli.run", "--standalone", "--nproc", str(processes))
    return run_python(*launcher, str(ROOT / "examples" / name), *arguments, folder=folder).stdout


def run_python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def number_after(words: str, text: str) -> float:
    found = re.search(rf"{re.escape(words)}\s+([0-9.]+)", text)
    assert found, f"expected {words!r} and a number; got {text!r}"
    return float(found[1])


def difference_in(text: str) -> float:
    """The largest difference of a loss to one device's."""
    found = re.search(r"largest difference (\S+)", text)
    assert found is not None
    return float(found[1])


def path_after(word: str, text: str, folder: Path) -> Path:
    found = re.search(rf"^{re.escape(word)}\s+(\S+)", text, re.MULTILINE)
    assert found, f"expected {word!r} and a path; got {text!r}"
    return folder / found[1]


def test_gpt_sharded_trains_where_it_does_not_fit(tmp_path: Path) -> None:
    printed = run_example("gpt_sharded.py", folder=tmp_path)
    assert "one of 12 MiB: expected" in printed
    assert number_after("one large device:", printed) > 15
    for what in ("4 of 12 MiB, fully sharded", "one of 12 MiB, weights on the host"):
        (line,) = [line for line in printed.splitlines() if line.startswith(what)]
        assert number_after(f"{what}:", line) <= 12
        assert float(line.rpartition(" ")[2]) < 1e-4


@pytest.mark.parametrize("arguments", nightly([(), ("--dp", "3", "--tp", "1", "--turns", "2")], 1))
def test_gpt_layouts_has_the_losses_of_one_device(arguments: tuple[str, ...], tmp_path: Path) -> None:
    printed = run_example("gpt_layouts.py", *arguments, folder=tmp_path)
    assert number_after("step   0: loss", printed) > 3
    assert number_after("step  15: loss", printed) < 2.6
    assert difference_in(printed) < 1e-5


@pytest.mark.parametrize(
    "arguments",
    nightly([("--schedule", "zbv"), ("--dp", "2", "--tp", "2", "--remat", "--schedule", "gpipe")], 1),
)
def test_gpt_pipeline_has_the_losses_of_one_device(arguments: tuple[str, ...], tmp_path: Path) -> None:
    printed = run_example("gpt_pipeline.py", *arguments, "--steps", "11", folder=tmp_path)
    assert number_after("Send:", printed) > 0
    assert number_after("step  10: loss", printed) < 0.65 * number_after("step   0: loss", printed)
    assert difference_in(printed) < 1e-5


def test_gpt_pipeline_runs_through_two_processes(tmp_path: Path) -> None:
    printed = run_launched("gpt_pipeline.py", "--steps", "3", "--micro-batches", "8", folder=tmp_path)
    assert number_after("Send:", printed) > 0
    assert difference_in(printed) < 1e-5


def test_rlhf_raises_the_reward_of_what_is_generated(tmp_path: Path) -> None:
    printed = run_example("rlhf.py", "--rounds", "16", folder=tmp_path)
    assert number_after("round   0: reward", printed) < 0.3
    assert number_after("round  15: reward", printed) > 0.9


@pytest.mark.parametrize("devices", nightly(["3", "2"], 1))
def test_experts_have_the_losses_of_one_device(devices: str, tmp_path: Path) -> None:
    printed = run_example("experts.py", "--devices", devices, folder=tmp_path)
    assert number_after("AllToAll:", printed) == 3  # there and back, and back again for the gradient
    assert number_after("step  15: loss", printed) < 0.65 * number_after("step   0: loss", printed)
    assert difference_in(printed) < 1e-5


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


def test_digits_ps_trains_the_weights_of_one_process(tmp_path: Path) -> None:
    printed = run_launched("digits_ps.py", "--steps", "20", folder=tmp_path)
    assert "sync: 20 updates" in printed
    found = re.search(r"differ from those of one process by ([0-9.e+-]+)", printed)
    assert found
    assert float(found[1]) < 1e-12


def test_digits_ps_with_a_backup_worker_makes_each_step_once_and_ends(tmp_path: Path) -> None:
    arguments = ("--mode", "backup=1", "--steps", "30")
    printed = run_launched("digits_ps.py", *arguments, processes=3, folder=tmp_path)
    assert "backup=1: 30 updates" in printed
    assert "steps per worker: [30, 30, 30]" in printed


@pytest.mark.parametrize(
    ("steps", "most_bits"), [("50", 4.0), pytest.param("100", 3.5, marks=pytest.mark.slow)]
)
def test_lstm_text_learns_to_spell_and_pads_little(steps: str, most_bits: float, tmp_path: Path) -> None:
    printed = run_example("lstm_text.py", "--steps", steps, folder=tmp_path)
    bits = [float(b) for b in re.findall(r"([0-9.]+) bits per character", printed)]
    assert bits[-1] < most_bits  # who knows how frequent each character is needs 4.2
    assert bits == sorted(bits, reverse=True)
    padding = [float(p) for p in re.findall(r"([0-9.]+)% of [0-9,]+ numbers are padding", printed)]
    assert max(padding) < 25  # of batches of lines as they come it would be 41
    assert len(printed.partition("--- a sample\n")[2].splitlines()) == 10


def test_char_lm_learns_to_spell(tmp_path: Path) -> None:
    printed = run_example("char_lm.py", folder=tmp_path)
    bits = [float(b) for b in re.findall(r"([0-9.]+) bits per character", printed)]
    assert bits[-1] < 2.0  # who knows how frequent each character is needs 4.2, and each pair 2.9
    assert bits[-1] < bits[0]
    sample = printed.partition("--- a sample\n")[2]
    assert len(sample) > 200


def test_the_digits_without_scikit_learn_name_the_extra(tmp_path: Path) -> None:
    code = "import sys; sys.modules['sklearn'] = None; import digits"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.fullmatch(r"The digits need scikit-learn .*: pip install 'flowrt\[examples\]'\n", done.stderr)
