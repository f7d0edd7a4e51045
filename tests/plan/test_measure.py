"""Tables of measured nodes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flowrt.executor.buffers.buffer_assignment import Storage
from flowrt.graph.resources.groups import ranks_here
from flowrt.plan.choice import Choice
from flowrt.plan.step import lone_member
from flowrt.plan.step.applied import applied
from flowrt.plan.step.costs import Demand, Timed, is_free, signature
from flowrt.plan.step.device_parts import GROUP, DevicePart, device_parts, parts_of
from flowrt.plan.step.measure import LEAST_S, Table, load_table, measure, save_table, table_path
from flowrt.plan.step.recorded import record
from tests.plan.cases import request_of, requested, wide


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FLOWRT_CACHE_DIR", str(tmp_path))
    return tmp_path


def _computing(part: DevicePart) -> dict[str, str]:
    """The operation of each node that computes, by its signature."""
    storage = part.partition.buffers.storage
    return {
        signature(part.partition.subgraph, node): node.op.name
        for node in part.partition.schedule.order
        if not is_free(node) and storage.get(node.name) not in (Storage.VIEW, Storage.CONSTANT)
    }


@pytest.mark.parametrize("case", ["tp gpt", "stage 3", "1f1b"])
def test_all_but_what_travels_is_measured_in_its_program(case: str) -> None:
    parts = device_parts(requested(case))
    table = measure(parts, limit_s=1.0, processes=2)
    wanted = {key: op for part in parts for key, op in _computing(part).items()}
    missing = {op for key, op in wanted.items() if key not in table.rows}
    assert missing <= {"_GroupStart", "_GroupWait", "_TaggedSend", "_TaggedRecv"}
    assert all(0 < row.seconds < 1 for row in table.rows.values())


def test_equal_nodes_are_measured_once_and_known_ones_not_again() -> None:
    parts = device_parts(request_of(None, wide))
    first = measure(parts)
    products = [key for key in first.rows if key.startswith("MatMul(")]
    assert len(products) == 3  # forward, and for each of the two gradients, of equal layers
    marked = Table({key: row._replace(seconds=7.0) for key, row in first.rows.items()})
    assert measure(parts, marked) is marked


def test_operations_that_were_not_measured_have_rates() -> None:
    costs = measure(device_parts(request_of(None, wide)), limit_s=0.1).costs()
    assert costs.rates.bandwidth > 0
    assert costs.rates.flops["float32"] > 0


def test_programs_that_read_a_dataset_are_measured(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import numpy as np, flowrt as tf\n"
        "data = tf.data.Dataset.from_tensor_slices(np.ones([8, 4], 'f')).batch(4, drop_remainder=True)\n"
        "x = tf.data.make_one_shot_iterator(data.repeat()).get_next()\n"
        "loss = tf.reduce_sum(tf.matmul(x, tf.Variable(tf.ones([4, 2]), name='w')))\n"
        "train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)\n"
        "session = tf.Session()\n"
        "session.run(tf.global_variables_initializer())\n"
        "session.run(train)\n"
    )
    table = measure(parts_of(applied(record(str(script)), Choice(dp=2))), limit_s=0.1)
    assert any(key.startswith("MatMul(") for key in table.rows)


def test_what_others_would_give_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only goes on while results of others are made up."""
    now, value_of = 0.0, lone_member._value_of

    def slowly(dtype: object) -> float:
        nonlocal now
        now += 1.0
        return value_of(dtype)

    monkeypatch.setattr(time, "thread_time", lambda: now)
    monkeypatch.setattr(lone_member, "_value_of", slowly)
    table = measure(device_parts(requested("stage 3")), limit_s=0.1)
    assert now > 0
    assert {row.seconds for row in table.rows.values()} == {LEAST_S}


def test_a_measured_program_leaves_its_group() -> None:
    parts = device_parts(requested("1f1b"))
    measure(parts, limit_s=0.1)
    assert ranks_here(GROUP) == ()


def test_tables_come_back_from_their_files(cache: Path) -> None:
    path = table_path()
    assert path is not None
    assert path.is_relative_to(cache)
    assert load_table(path).rows == {}
    table = Table({"MatMul(...)": Timed(Demand(8.0, 16, "float32"), 1e-6)})
    save_table(table, path)
    assert load_table(path) == table
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"rows": 1}', '{"rows": {"a": [1]}}', '{"rows": {"a": [-1, 1, 1, "x"]}}']
)
def test_a_damaged_file_is_as_none_and_told(text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = table_path()
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert load_table(path).rows == {}
    assert "measured costs are not used" in caplog.text


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_CACHE_DIR", "")
    assert table_path() is None
    save_table(Table({}), None)
    assert load_table(None).rows == {}
