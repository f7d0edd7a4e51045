"""Tables of what steps cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import flowrt as tf
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.profiler import ProfileOptionBuilder, Profiler, profile
from flowrt.profiler.costs import Row, by_scope, flat, node_costs
from flowrt.profiler.profile import shown
from flowrt.profiler.profile_options import read_options
from flowrt.profiler.steps import read_step
from flowrt.protos.step_stats_pb2 import RunMetadata
from tests.profiler.made_stats import BASE, DEVICES, add, several_stats

QUIET = {"output": "none"}


@pytest.fixture
def metadata() -> Any:
    """Three nodes of two scopes: 4, 2 and 1 us."""
    made = RunMetadata()
    add(made.step_stats, DEVICES[0], "net/a = MatMul()", BASE, BASE + 4000, nbytes=100)
    add(made.step_stats, DEVICES[0], "net/b = Relu(net/a)", BASE + 4000, BASE + 6000, nbytes=50)
    add(made.step_stats, DEVICES[2], "loss = MatMul()", BASE, BASE + 1000, nbytes=1)
    return made


def lines(made: Any) -> list[tuple[str, float]]:
    """What is below the total."""

    def walk(row: Row) -> list[tuple[str, float]]:
        return [line for child in row.children for line in [(child.name, child.micros), *walk(child)]]

    return walk(made.root)


def test_scopes_are_sums_of_what_is_in_them(metadata: Any) -> None:
    made = profile(None, metadata, options=QUIET)
    assert lines(made) == [("net", 6.0), ("net/a", 4.0), ("net/b", 2.0), ("loss", 1.0)]
    assert made.total_micros == 7.0


@pytest.mark.parametrize(
    ("cmd", "expected"),
    [
        ("op", [("MatMul", 5.0), ("Relu", 2.0)]),
        ("device", [("worker:0 CPU:0", 6.0), ("worker:1 CPU:0", 1.0)]),
    ],
)
def test_sums_over_operations_and_devices(metadata: Any, cmd: str, expected: Any) -> None:
    assert lines(profile(None, metadata, cmd=cmd, options=QUIET)) == expected


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_depth": 1}, ["net", "loss"]),
        ({"min_micros": 3}, ["net", "net/a"]),
        ({"min_bytes": 60}, ["net", "net/a"]),
        ({"order_by": "name"}, ["loss", "net", "net/a", "net/b"]),
        ({"order_by": "bytes"}, ["net", "net/a", "net/b", "loss"]),
        ({"start_name_regexes": ["net"]}, ["net", "net/a", "net/b"]),
        ({"show_name_regexes": ["net/"]}, ["net/a", "net/b"]),
        ({"hide_name_regexes": ["net$"]}, ["net/a", "net/b", "loss"]),
        ({"trim_name_regexes": ["net"]}, ["loss"]),
        ({"account_type_regexes": ["Relu"]}, ["net", "net/b"]),
        (ProfileOptionBuilder().with_max_depth(1).order_by("name").build(), ["loss", "net"]),
        (ProfileOptionBuilder.time_and_memory(), ["net", "net/a", "net/b", "loss"]),
    ],
)
def test_options_choose_rows(metadata: Any, options: dict[str, Any], names: list[str]) -> None:
    assert [name for name, _ in lines(profile(None, metadata, options=options | QUIET))] == names


def test_the_table_has_the_columns_that_were_selected(metadata: Any, capsys: Any) -> None:
    profile(None, metadata, options={"select": ["micros", "bytes"], "max_depth": 1})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["time", "memory"]
    assert printed[2].split() == ["net", "6.0", "us", "86%", "150", "B"]
    assert len({line.rindex("B") for line in printed[1:]}) == 1  # in columns


def test_a_table_goes_to_a_file(metadata: Any, tmp_path: Path, capsys: Any) -> None:
    options = ProfileOptionBuilder().with_file_output(str(tmp_path / "table")).build()
    made = profile(None, metadata, options=options)
    assert (tmp_path / "table").read_text() == f"{made}\n"
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"min_time": 1}, InvalidArgumentError, "min_time"),
        ({"order_by": "size"}, InvalidArgumentError, "expected one of name, micros"),
        ({"select": ["params"]}, InvalidArgumentError, "params"),
        ({"output": "file"}, InvalidArgumentError, "outfile"),
        ({"show_name_regexes": ["("]}, InvalidArgumentError, "regular expression"),
        ({"min_params": 1}, UnimplementedError, "min_params"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_options(options)


def test_what_a_receive_waits_is_no_cost_and_its_copy_is(metadata: Any) -> None:
    add(metadata.step_stats, DEVICES[2], f"r = _Recv(x:0 @{DEVICES[0]})", BASE, BASE + 90000)
    add(metadata.step_stats, DEVICES[2], f"r = Memcpy(x:0 @{DEVICES[0]})", BASE + 90000, BASE + 93000)
    assert profile(None, metadata, options=QUIET).total_micros == 10.0


def test_what_is_no_run_metadata_is_refused(metadata: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="RunMetadata"):
        profile(None, None)
    with pytest.raises(InvalidArgumentError, match="cmd"):
        profile(None, metadata, cmd="ops", options=QUIET)
    with pytest.raises(InvalidArgumentError, match="needs the Graph"):
        profile(None, metadata, cmd="code", options=QUIET)


@given(several_stats())
def test_every_view_sums_up_to_the_same(stats: list[Any]) -> None:
    costs = node_costs(map(read_step, stats))
    total = sum(cost.micros for cost in costs)
    for root in (
        by_scope(costs), flat(costs, lambda cost: cost.op), flat(costs, lambda cost: cost.device)
    ):  # fmt: skip
        assert root.micros == pytest.approx(total)
        assert sum(child.micros for child in root.children) == pytest.approx(total)
        kept = shown(root, read_options({}))
        assert sum(child.micros for child in kept.children) == pytest.approx(total)


def test_a_line_of_the_script_has_what_it_made() -> None:
    x = tf.random_uniform([200, 200])
    y = tf.matmul(x, x)  # THIS LINE
    metadata = tf.RunMetadata()
    with tf.Session() as session:
        session.run(y, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    made = profile(tf.get_default_graph(), metadata, cmd="code", options=QUIET)
    (number,) = [
        i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# THIS LINE")
    ]
    assert [name for name, _ in lines(made) if name.endswith(f"test_profile.py:{number}")]


def test_a_profiler_has_the_mean_of_its_steps(metadata: Any) -> None:
    slow = RunMetadata()
    add(slow.step_stats, DEVICES[0], "net/a = MatMul()", BASE, BASE + 13000)
    profiler = Profiler()
    profiler.add_step(1, metadata)
    profiler.add_step(2, slow)
    assert profiler.profile_name_scope(QUIET).total_micros == 10.0
    assert profiler.profile_operations({"step": 2} | QUIET).total_micros == 13.0
    assert lines(profiler.profile_devices(QUIET))[0] == ("worker:0 CPU:0", 19.0)
    with pytest.raises(InvalidArgumentError, match=r"\[1, 2\]"):
        profiler.profile_graph({"step": 3})
