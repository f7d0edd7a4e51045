"""``flowrt summary``: sums over a step by name scope."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import flowrt as tf
from flowrt.cli.main import main
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.viz import step_summary, summary_table

SCRIPT = """\
import numpy as np
import flowrt as tf

x = tf.placeholder(tf.float32, [None, 8], name="x")
with tf.name_scope("net"):
    net = tf.layers.dense(x, 4, name="hidden")
    net = tf.layers.dense(net, 2, name="out", use_bias=False)
loss = tf.reduce_sum(net, name="loss")
train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run([train, loss], {x: np.ones([16, 8])})
"""


def test_a_scripts_training_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert main(["summary", str(script), "--json", "--depth", "2"]) == 0
    rows = {row["scope"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["(all)"]["parameters"] == 8 * 4 + 4 + 4 * 2
    assert rows["(all)"]["state_bytes"] == rows["(all)"]["parameter_bytes"] == 4 * 44  # one slot each
    assert rows["hidden"]["parameters"] == 36
    assert rows["net/hidden"]["flops"] == 2 * 16 * 8 * 4 + 16 * 4
    assert rows["net"]["flops"] == rows["net/hidden"]["flops"] + rows["net/out"]["flops"]
    assert rows["net/out"]["result_bytes"] == 4 * 16 * 2
    assert list(rows).index("net") + 1 == list(rows).index("net/hidden")
    tf.reset_default_graph()
    assert main(["summary", str(script), "--json", "--fetch", "loss"]) == 0
    scopes = [row["scope"] for row in json.loads(capsys.readouterr().out)]
    assert set(scopes) == {"(all)", "hidden", "net", "out", "loss"}
    tf.reset_default_graph()
    assert main(["summary", str(script)]) == 0
    head, everything, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["scope", "operations", "parameters", "state", "FLOP", "results"]
    assert everything.split()[:2] == ["(all)", str(rows["(all)"]["operations"])]
    assert everything.split()[2:7] == ["44", "176", "B", "176", "B"]


def test_an_operation_is_in_the_scope_of_its_name() -> None:
    tf.reduce_sum(tf.placeholder(tf.float32, [4, 4]), name="loss")
    assert [(row.scope, row.flops) for row in step_summary(tf.get_default_graph())] == [
        ("(all)", 16),
        ("loss", 16),
    ]


def test_functions_count_with_the_operation_that_owns_them() -> None:
    x = tf.placeholder(tf.float32, [4, 4])
    with tf.name_scope("loop"):
        _, y = tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, tf.matmul(v, v)), [0, x])
    total, *_ = step_summary(tf.get_default_graph(), fetches=y)
    assert total.flops >= 2 * 4**3
    assert "(all)" in summary_table([total])


def test_what_counts_as_floating_point_operations() -> None:
    """A sum reads 32 numbers, an update 8; a transposed, concatenated or gathered tensor is only moved."""
    table, fed = tf.get_variable("table", [4, 2]), tf.placeholder(tf.float32, [16, 1])
    gathered = tf.gather(fed + table[0, 0], tf.placeholder(tf.int32, [16]))
    moved = tf.concat([tf.transpose(tf.reshape(gathered, [4, 4])), tf.reshape(fed, [4, 4])], 0)
    loss = tf.reduce_sum(moved)
    update = tf.train.AdamOptimizer().apply_gradients([(tf.placeholder(tf.float32, [4, 2]), table)])
    assert step_summary(tf.get_default_graph(), fetches=loss)[0].flops == 16 + 32
    rows = {row.scope: row for row in step_summary(tf.get_default_graph(), fetches=update, depth=2)}
    assert rows["Adam/update_table"].flops == 8


def test_mistakes_in_python_are_told() -> None:
    x = tf.placeholder(tf.float32, [], name="x")
    with pytest.raises(InvalidArgumentError, match="depth: expected an integer >= 1; got 0"):
        step_summary(tf.get_default_graph(), depth=0)
    with pytest.raises(DTypeError, match="feed_dict: expected a dict; got \\["):
        step_summary(tf.get_default_graph(), x, [x])  # type: ignore[arg-type]


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["summary", str(tmp_path / "none.py")]) == 2
    assert "expected a Python file; there is none" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["summary", "x.py", "--depth", "0"])
    assert capsys.readouterr().err.endswith("expected an integer >= 1; got 0\n")
