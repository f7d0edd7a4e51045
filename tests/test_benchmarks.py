"""The side-by-side benchmarks: what they ask, who runs when, and what they make of the answers."""

import ast
import json
import math
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from benchmarks import __main__ as bench
from benchmarks import (
    bars,
    checkpoints,
    cluster,
    cluster_scaling,
    collectives,
    data_parallel,
    fully_sharded,
    layouts,
    models,
    pipelines,
    plots,
    redistribution,
    scaling,
    sides,
    timing,
)
from benchmarks.bars import BARS, Bar
from benchmarks.cases import CASES
from benchmarks.report import Row, format_seconds, remarks_of, rows_of, summary_of, table_lines
from benchmarks.sides import NotRun, Side
from benchmarks.timing import MIN_CALLS, Outcome, median_s, timed, timed_from_first

FOLDER = Path(bench.__file__).parent


def ran(run: float, value: float | None = None) -> Outcome:
    return Outcome({"run": run}, value)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


# --- timing


def test_a_median_is_of_seven_calls_or_more_after_as_many_that_do_not_count() -> None:
    calls: list[int] = []

    def call() -> int:
        calls.append(len(calls) + 1)
        return calls[-1]

    assert median_s(call, at_least_s=0, warm_s=0) >= 0
    assert len(calls) == 2 * MIN_CALLS


def test_the_number_is_of_the_third_call_after_the_first_where_that_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "median_s", lambda call: 0.5)
    calls = iter(range(1, 100))
    assert timed(lambda: next(calls), "step", value=lambda n: 10 * n) == Outcome({"step": 0.5}, 30.0)
    calls = iter(range(1, 100))
    outcome = timed_from_first(lambda: next(calls))
    assert list(outcome.figures) == ["first_step", "step"]
    assert outcome.value == 4


# --- medians, ratios, bars


def test_a_ratio_is_of_medians_over_the_rounds() -> None:
    (row,) = rows_of("c", {"flowrt": [ran(1), ran(9), ran(2)], "jax": [ran(4), ran(3), ran(100)]})
    assert row == Row("c", "run", {"flowrt": 2, "jax": 4})
    assert row.ratio("jax") == 0.5
    assert row.ratio("torch") is None


def test_each_measure_is_a_row() -> None:
    outcome = Outcome({"build": 1.0, "run": 2.0})
    assert [row.measure for row in rows_of("c", {"flowrt": [outcome]})] == ["build", "run"]


def test_a_bar_of_several_peers_is_against_the_fastest() -> None:
    row = Row("c", "run", {"flowrt": 3.0, "torch": 4.0, "torch_compile": 2.0})
    judged = row.judged(Bar(1.0, ("torch", "torch_compile")))
    assert judged is not None
    assert (judged.ratio, judged.is_met) == (1.5, False)
    judged = row.judged(Bar(1.0, ("torch", "jax")))
    assert judged is not None
    assert (judged.ratio, judged.is_met) == (0.75, True)


def test_a_bar_is_met_at_its_limit() -> None:
    judged = Row("c", "run", {"flowrt": 1.0, "jax": 2.0}).judged(Bar(0.5, ("jax",)))
    assert judged is not None
    assert judged.is_met


def test_a_bar_is_not_judged_without_figures() -> None:
    assert Row("c", "run", {"flowrt": 1.0}).judged(Bar(1.0, ("jax",))) is None
    assert Row("c", "run", {"jax": 1.0}).judged(Bar(1.0, ("jax",))) is None


def test_bars_are_of_cases_and_peers_that_there_are() -> None:
    programs = (
        checkpoints, cluster, collectives, data_parallel, fully_sharded, layouts, models, pipelines,
        redistribution,
    )  # fmt: skip
    cases = {*CASES, *[name for program in programs for name in program.CASES]}
    to_compare_with = {"data_parallel_one", "data_parallel_central_storage", "layouts_gpt_one"}
    assert {case for case, _ in BARS} == cases - to_compare_with
    assert {peer for many in BARS.values() for bar in many for peer in bar.peers} <= set(sides.PEERS)


@pytest.mark.parametrize(("is_installed", "limit"), [(True, 1.05), (False, 2.4)])
def test_lenets_bar_is_stricter_with_onednn(
    is_installed: bool, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def distribution(name: str) -> None:
        assert name == "onednn-cpu-gomp"
        if not is_installed:
            raise bars.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(bars.importlib.metadata, "distribution", distribution)
    assert bars.lenet_limit() == limit


# --- the table


def test_the_table_shows_medians_ratios_and_missed_bars() -> None:
    row = Row("mlp_adam", "step", {"flowrt": 9e-3, "tensorflow": 10e-3, "jax": 10e-3})
    head, rule, line = table_lines([row], ["flowrt", "tensorflow", "torch", "jax"])
    assert len(cells(head)) == len(cells(rule)) == len(cells(line))
    assert cells(head) == ["case", "measure", "flowrt", "TensorFlow", "PyTorch", "JAX", "bars"]
    assert cells(line) == [
        "`mlp_adam`",
        "step",
        "9 ms",
        "10 ms (0.9)",
        "",
        "10 ms (0.9)",
        "0.85 x TensorFlow: 0.9 **above**, 1 x JAX: 0.9",
    ]
    assert summary_of([row]) == "1 of 2 bars hold."


def test_a_case_that_flowrt_has_not_got_is_a_row_and_a_remark() -> None:
    rounds = {"flowrt": [NotRun("no while_loop yet", False)] * 2, "jax": [ran(1e-6)] * 2}
    (row,) = rows_of("while_10k", rounds)
    *_, line = table_lines([row], ["flowrt", "jax"])
    assert cells(line)[2:] == ["not run", "1 us", "0.004 x TensorFlow, 2 x JAX"]
    assert list(remarks_of("while_10k", rounds)) == ["`while_10k`: not run by flowrt: no while_loop yet"]
    assert summary_of([row]) == "0 of 0 bars hold; 2 without figures."


def test_a_case_that_nobody_ran_is_a_row_too() -> None:
    (row,) = rows_of("while_10k", {"flowrt": [NotRun("not there", False)]})
    *_, line = table_lines([row], ["flowrt"])
    assert cells(line)[:3] == ["`while_10k`", "", "not run"]


def test_without_peers_there_are_no_bars() -> None:
    head, rule, line = table_lines([Row("mlp_adam", "step", {"flowrt": 9e-3})], ["flowrt"])
    assert [cells(each) for each in (head, rule, line)] == [
        ["case", "measure", "flowrt"],
        ["---", "---", "---"],
        ["`mlp_adam`", "step", "9 ms"],
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5e-8, "0.015 us"), (1.234e-6, "1.23 us"), (43e-3, "43 ms"), (1.0, "1 s"), (33.64, "33.6 s")],
)
def test_times_have_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_sides_that_computed_different_numbers_are_told() -> None:
    rounds = {"flowrt": [ran(1, 2.30)], "jax": [ran(1, 2.31)], "torch": [ran(1, 2.40)]}
    (remark,) = remarks_of("c", rounds)
    assert remark == "`c`: **not the same work**: PyTorch computed 2.4, flowrt 2.3"


def test_a_number_that_is_none_or_nan_is_told() -> None:
    assert "not the same work" in next(remarks_of("c", {"flowrt": [ran(1, 1.0)], "jax": [ran(1, math.nan)]}))


def test_rounds_that_differ_are_told() -> None:
    rounds = {"flowrt": [ran(1.0), ran(1.2)], "jax": [ran(1.0), ran(1.5)]}
    assert list(remarks_of("c", rounds)) == ["`c`: rounds differed by more than a quarter: JAX 50%"]


# --- sides: interpreters that answer what they are told to


def interpreter(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = -V ] && echo Python 3.11.9 && exit\n{script}\n')
    path.chmod(0o755)
    return path


def answering(path: Path, answer: dict[str, object]) -> Path:
    """An interpreter that writes its arguments down and prints ``answer``."""
    return interpreter(path, f"echo {path.stem} \"$3\" >> {path.parent}/log\necho '{json.dumps(answer)}'")


def test_a_side_says_what_it_has(tmp_path: Path) -> None:
    path = answering(tmp_path / "jax", {"version": "1.2", "cases": ["noop_run"]})
    assert sides.find_side("jax", path) == Side("jax", path, "1.2", ("noop_run",))


def test_what_a_side_lacks_is_no_failure_and_a_crash_is(tmp_path: Path) -> None:
    lacking = Side("flowrt", answering(tmp_path / "a", {"not_there": "no while_loop"}), "1", ("c",))
    assert sides.measure(lacking, "c") == NotRun("no while_loop", is_failure=False)
    crashing = Side(
        "flowrt", interpreter(tmp_path / "b", "echo first >&2; echo last >&2; exit 3"), "1", ("c",)
    )
    assert sides.measure(crashing, "c") == NotRun("last", is_failure=True)
    silent = Side("flowrt", interpreter(tmp_path / "d", "exit 3"), "1", ("c",))
    assert sides.measure(silent, "c") == NotRun("exit status 3, no message", is_failure=True)


def test_a_side_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "TIMEOUT_S", 0.2)
    stuck = Side("flowrt", interpreter(tmp_path / "a", "exec sleep 60"), "1", ("c",))
    assert sides.measure(stuck, "c") == NotRun("not done after 0.2 s", is_failure=True)


def test_sides_run_in_turn_and_only_where_they_have_the_case(tmp_path: Path) -> None:
    answer = {"figures": {"run": 1.0}, "value": 2.0}
    having = {"flowrt": ("x", "y"), "jax": ("x", "y"), "torch": ("x",)}
    found = [Side(name, answering(tmp_path / name, answer), "1", cases) for name, cases in having.items()]
    assert bench.run_case("y", found, 2) == {"flowrt": [ran(1.0, 2.0)] * 2, "jax": [ran(1.0, 2.0)] * 2}
    assert (tmp_path / "log").read_text().splitlines() == ["flowrt y", "jax y"] * 2


# --- the command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments --peers --only-ours is required"),
        (["--only-ours", "--peers", "x"], "not allowed with"),
        (["--only-ours", "--rounds", "0"], "expected a whole number from 1; got 0"),
        (["--only-ours", "nap"], "no case nap; there are noop_run, "),
        (["--peers", "/nowhere"], "expected an environment or an interpreter; got /nowhere"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ("#!/bin/sh\n", 0o755, "it does not say that it is Python 3"),
        ("#!/bin/sh\necho hello", 0o755, "it does not say that it is Python 3"),
        ("#!/bin/sh\nexec sleep 60", 0o755, "no version after 0.2 s"),
        ("no program", 0o755, "Exec format error"),
        ("#!/bin/sh\n", 0o644, "Permission denied"),
    ],
)
def test_peers_of_what_is_no_interpreter_are_a_mistake(
    content: str,
    mode: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sides, "VERSION_S", 0.2 if "sleep" in content else 60)
    path = tmp_path / "file"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(SystemExit) as stop:
        bench.main(["--peers", str(path), "--out", str(tmp_path / "out"), "noop_run"])
    assert stop.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    expected = f"peers: expected a Python interpreter; got {path}: {message}"
    assert last == f"python -m benchmarks: error: {expected}"


@pytest.mark.parametrize("inside", ["", "below"])
def test_a_table_in_the_place_of_a_file_is_a_mistake(
    inside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "file"
    taken.touch()
    with pytest.raises(SystemExit) as stop:
        bench.main(["--only-ours", "--out", str(taken / inside)])
    assert stop.value.code == 2
    assert f"--out: expected a folder, or a place for one; got {taken}" in capsys.readouterr().err


def run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, object]) -> tuple[int, str]:
    """The command's status and its table, where flowrt gives ``answer`` and every peer takes 2 s."""
    ours = Side("flowrt", answering(tmp_path / "ours", answer), "0.1", ("noop_run",))
    monkeypatch.setattr(sides, "ours", lambda: ours)
    theirs = {"version": "1.2", "cases": ["noop_run"], "figures": {"run": 2.0}, "value": None}
    answering(tmp_path / "peers" / "bin" / "python", theirs)
    status = bench.main(["--peers", str(tmp_path / "peers"), "--out", str(tmp_path / "out")])
    return status, (tmp_path / "out" / "table.md").read_text()


def test_a_run_writes_the_table_and_the_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, table = run_with(tmp_path, monkeypatch, {"figures": {"run": 1.0}, "value": None})
    assert status == 0
    assert "flowrt 0.1, TensorFlow 1.2, PyTorch 1.2, torch.compile 1.2, JAX 1.2." in table
    assert "| `noop_run` | run | 1 s | 2 s (0.5) | 2 s (0.5) |" in table
    assert "0 of 1 bars hold." in table
    assert (tmp_path / "out" / "ratios.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_operation_does_not_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, table = run_with(tmp_path, monkeypatch, {"not_there": "flowrt.while_loop is not there yet"})
    assert status == 0
    assert "- `noop_run`: not run by flowrt: flowrt.while_loop is not there yet" in table


def test_a_failing_case_fails_the_run_after_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Side("flowrt", interpreter(tmp_path / "ours", "exit 1"), "0.1", ("x", "y"))
    monkeypatch.setattr(sides, "ours", lambda: ours)
    assert bench.main(["--only-ours", "--out", str(tmp_path)]) == 1
    assert "| `y` |" in (tmp_path / "table.md").read_text()


def test_a_run_that_is_broken_off_leaves_the_cases_that_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(side: Side, case: str) -> Outcome:
        if case == "y":
            raise KeyboardInterrupt
        return ran(1.0)

    monkeypatch.setattr(sides, "ours", lambda: Side("flowrt", tmp_path, "0.1", ("x", "y")))
    monkeypatch.setattr(sides, "measure", measure)
    assert bench.main(["--only-ours", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "python -m benchmarks: interrupted\n"
    assert "| `x` | run | 1 s |\n" in (tmp_path / "table.md").read_text()


def test_peers_that_are_not_installed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Side("flowrt", answering(tmp_path / "ours", {"not_there": "-"}), "0.1", ("x",))
    monkeypatch.setattr(sides, "ours", lambda: ours)
    bare = interpreter(tmp_path / "python", "echo 'ModuleNotFoundError: nothing here' >&2; exit 1")
    assert bench.main(["--peers", str(bare), "--out", str(tmp_path)]) == 0
    assert "- JAX is left out: ModuleNotFoundError: nothing here" in (tmp_path / "table.md").read_text()


def test_the_table_needs_no_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.plots", None)
    monkeypatch.delattr("benchmarks.plots")
    status, table = run_with(tmp_path, monkeypatch, {"figures": {"run": 1.0}, "value": None})
    assert status == 0
    assert "`noop_run`" in table
    assert "no plot: " in capsys.readouterr().err
    assert not (tmp_path / "out" / "ratios.png").exists()


def test_a_case_runs_for_real(tmp_path: Path) -> None:
    arguments = ["add_callable", "--only-ours", "--rounds", "1", "--out", str(tmp_path)]
    assert bench.main(arguments) == 0
    table = (tmp_path / "table.md").read_text()
    assert table.startswith("Medians. flowrt ")
    assert re.search(r"^\| `add_callable` \| run \| [\d.]+ [um]s \|$", table, re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["worker", "timing", "inputs", "cases", "cluster", "peers_torch", "peers_jax"]
)
def test_what_peers_run_imports_nothing_of_flowrt(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    assert not [module for module in modules if module and module.partition(".")[0] == "flowrt"]


# --- clusters


def test_the_tasks_of_a_cluster_work_and_end_with_it() -> None:
    with cluster.local_cluster(tf, 2) as target, tf.Graph():
        with tf.device("/job:worker/task:1"):
            there = tf.placeholder_with_default(20, []) + 1
        with tf.Session(target) as session:
            assert session.run(there) == 21


def test_ranks_of_two_processes_sum_up() -> None:
    outcome = collectives.all_reduce("flowrt", 2, ["4_b", "1_mb"])
    assert outcome.value == 2.0
    assert set(outcome.figures) == {"4_b", "1_mb"}


def test_the_line_of_the_null_step_is_intercept_and_slope() -> None:
    *_, fit = cluster_scaling.table_lines([(n, 1e-3 + n * 2e-4) for n in (1, 2, 4)])
    assert fit == "1 ms and 200 us a worker"


# --- scaling


@given(st.floats(1e-9, 10.0), st.floats(-2.0, 3.0), st.sets(st.integers(1, 10**7), min_size=2))
def test_the_slope_of_a_power_law_is_its_exponent(factor: float, power: float, sizes: set[int]) -> None:
    points = [(float(n), factor * n**power) for n in sizes]
    assert scaling.slope(points) == pytest.approx(power, abs=1e-6)


def test_the_slope_is_of_least_squares() -> None:
    points = [(1.0, 1.0), (10.0, 1.0), (100.0, 100.0)]
    assert scaling.slope(points) == pytest.approx(1.0)  # 0 + 1 + 1 decades up, in the middle 1 too low


def test_one_size_has_no_slope() -> None:
    assert math.isnan(scaling.slope([(10.0, 1.0), (10.0, 2.0)]))


def test_the_slope_in_the_table_is_of_the_sizes_from_the_limit_up() -> None:
    curve = [(1.0, 1.0), (10.0, 1.0), (100.0, 10.0), (1000.0, 100.0)]
    head, rule, line = scaling.table_lines("elements", {"sum": curve}, 10)
    assert len(cells(head)) == len(cells(rule)) == len(cells(line))
    assert cells(head) == ["elements", "1", "10", "100", "1,000", "slope from 10"]
    assert cells(line) == ["sum", "1 s", "1 s", "10 s", "100 s", "1.00"]


def test_sizes_grow_and_reach_what_the_table_promises() -> None:
    assert (scaling.OPS[0], scaling.OPS[-1]) == (100, 1_000_000)
    for sizes in (scaling.OPS, scaling.ELEMENTS):
        assert all(small < large for small, large in pairwise(sizes))
    assert sum(n >= scaling.ARITHMETIC_FROM for n in scaling.ELEMENTS) >= 3


def test_a_small_graph_and_a_small_step_are_timed_for_real() -> None:
    measured = scaling.time_graph(100)
    assert list(measured) == ["build", "compile", "compile with one more", "run"]
    assert min(measured["build"], measured["run"]) > 0
    for program in scaling.PROGRAMS:
        assert scaling.time_step(program, 16) > 0


def test_curves_are_drawn(tmp_path: Path) -> None:
    curve = [(10.0, 1e-5), (100.0, 2e-5)]
    plots.draw_scaling({"operations": {"run": curve}, "elements": {"sum": curve}}, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
