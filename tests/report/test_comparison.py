"""What was run, in the report, and the table that compares runs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowrt.cli.main import main
from flowrt.protos.event_pb2 import Event
from flowrt.report.comparison import best_kind, common_facts, compared
from flowrt.report.page import make_page
from flowrt.report.read_run import read_run
from flowrt.summary import FileWriter
from flowrt.summary.run_facts import RunFacts, is_facts_file
from tests.report.run_dirs import metadata, scalar, write_curves, write_facts

START = 1e9


def facts(start: float = START, defaults: Mapping[str, str] | None = None, **flags: str) -> RunFacts:
    sections = {
        "run": {"script": "/code/train.py", "command": f"python train.py {' '.join(flags.values())}"},
        "hyper-parameters": flags,
        "host": {"name": "h1"},
    }
    return RunFacts(start, sections, defaults or {})


def write_run(
    directory: Path, record: RunFacts | None, curves: Mapping[str, Sequence[float]], seconds: float = 0.5
) -> Path:
    """A run with a value of each curve every ``seconds``."""
    with FileWriter(directory) as writer:
        for tag, values in curves.items():
            for step, value in enumerate(values):
                event = Event(wall_time=START + step * seconds, step=step, summary=scalar(tag, value))
                writer.add_event(event)
    write_facts(directory, *([record] if record else []))
    return directory


def rows(directory: Path) -> dict[tuple[str, str], tuple[Any, ...]]:
    """The cells and the best of each row, by name and measure."""
    return {
        (row.name, row.measure): (dict(row.cells), set(row.best)) for row in compared(read_run(directory))
    }


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    defaults = {"rate": "0.1", "steps": "3"}
    write_run(
        tmp_path / "a", facts(rate="0.1", steps="3", defaults=defaults),
        {"loss": [3.0, 1.0, 2.0], "top/Accuracy": [0.1, 0.5, 0.25], "rate": [0.1, 0.1, 0.1]},
    )  # fmt: skip
    write_run(
        tmp_path / "b", facts(rate="0.2", steps="3", seed="7", defaults=defaults),
        {"loss": [math.nan, 1.5, math.nan], "top/Accuracy": [0.1, 0.5, 0.125]}, seconds=0.25,
    )  # fmt: skip
    assert rows(tmp_path) == {
        ("rate", "hyper-parameters"): ({"a": "0.1", "b": "0.2 (default 0.1)"}, set()),
        ("seed", "hyper-parameters"): ({"b": "7"}, set()),
        ("duration", ""): ({"a": "1 s", "b": "500 ms"}, set()),
        ("last step", ""): ({"a": "2", "b": "2"}, set()),
        ("steps a second", "median"): ({"a": "2", "b": "4"}, {"b"}),
        ("loss", "last"): ({"a": "2", "b": "nan"}, set()),
        ("loss", "lowest"): ({"a": "1", "b": "1.5"}, {"a"}),
        ("top/Accuracy", "last"): ({"a": "0.25", "b": "0.125"}, {"a"}),
        ("top/Accuracy", "highest"): ({"a": "0.5", "b": "0.5"}, set()),
        ("rate", "last"): ({"a": "0.1"}, set()),
        ("command", "run"): ({"a": "python train.py 0.1 3", "b": "python train.py 0.2 3 7"}, set()),
    }
    assert common_facts(read_run(tmp_path)) == {
        ("run", "script"): "/code/train.py", ("hyper-parameters", "steps"): "3", ("host", "name"): "h1",
    }  # fmt: skip


def test_runs_of_several_directories(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    for name in ("a", "deep/b", "c"):
        write_run(tmp_path / name, facts(name=name), {"loss": [1.0]})
    monkeypatch.chdir(tmp_path / "c")
    assert main(["report", "../a", "../deep/b", "../deep"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    run = read_run(Path("../a"), Path("../deep/b"))
    assert run.folders == ["a", "deep/b"]
    assert [path.parent.name for path in run.files] == ["a", "a", "b", "b"]
    assert main(["report", "../a", "../none"]) == 2
    assert capsys.readouterr().err == (
        "flowrt report: ../none: expected the directory of a run; got no such directory\n"
    )


def test_peak_memory_is_compared_by_device(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with FileWriter(tmp_path / name) as writer:
            writer.add_run_metadata(metadata(), "step_7", 7)
    found = rows(tmp_path)
    assert found["peak memory, worker:0 CPU:0", ""] == ({"a": "400 B", "b": "400 B"}, set())


def test_a_process_that_was_started_again_has_both_values_and_one_history(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", facts(rate="0.1"), {"loss": [3.0, 0.5]})
    with FileWriter(folder) as writer:
        for step, value in enumerate([2.0, 1.0]):
            writer.add_event(Event(wall_time=START + 100 + step, step=step, summary=scalar("loss", value)))
    write_facts(folder, facts(START + 100, rate="0.2"), facts(rate="0.1"))
    write_run(tmp_path / "b", None, {"loss": [1.0, 1.0]})
    found = rows(tmp_path)
    assert common_facts(read_run(tmp_path))["hyper-parameters", "rate"] == "0.1 | 0.2"
    assert found["loss", "last"] == ({"a": "1", "b": "1"}, set())
    assert found["loss", "lowest"] == ({"a": "0.5", "b": "1"}, {"a"})
    assert "There is no record of b." in make_page(read_run(tmp_path))


@pytest.mark.parametrize(
    ("tag", "kind"),
    [("loss", "lowest"), ("train/lossScale", "lowest"), ("crossEntropyError", "lowest"), ("acc", "highest"),
     ("eval/mean_reward", "highest"), ("global_step", None), ("glossary", None), ("loss/accuracy", None)],
)  # fmt: skip
def test_which_value_is_the_best(tag: str, kind: str | None) -> None:
    assert best_kind(tag) == kind


def test_setup_is_text(tmp_path: Path) -> None:
    write_run(tmp_path, facts(name="<script>alert(1)</script>"), {"loss": [1.0]})
    page = make_page(read_run(tmp_path))
    assert "python train.py &lt;script&gt;alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "<h2>Comparison" not in page


def test_damaged_facts_are_one_line_and_the_rest_is_shown(tmp_path: Path, capsys: Any) -> None:
    write_run(tmp_path, facts(rate="0.1"), {"loss": [1.0]})
    (path,) = filter(is_facts_file, tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-5])
    assert main(["report", str(tmp_path)]) == 0
    err = capsys.readouterr().err
    assert err.startswith(f"flowrt report: {path.name}: expected the facts of a run; got JSONDecodeError: ")
    assert err.count("\n") == 1
    page = (tmp_path / "report.html").read_text()
    assert "The run has no record of script, host and versions." in page
    assert "<b>loss</b>" in page


def test_runs_of_before_facts_were_recorded(tmp_path: Path) -> None:
    path = write_curves(tmp_path, "loss", steps=2)
    for other in set(tmp_path.iterdir()) - {path}:
        os.unlink(other)
    assert "The run has no record of script, host and versions." in make_page(read_run(tmp_path))
