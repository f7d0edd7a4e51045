"""Source lines: found once an instruction, of the right code, with all calls that led there."""

from __future__ import annotations

from typing import Any

import flowrt as tf
from flowrt.graph.source import Source


def lines_of(text: str) -> set[str]:
    code = compile(text, "step.py", "exec")
    return {str(Source(code, at)) for at in range(0, len(code.co_code), 2)}


def test_code_that_differs_in_its_lines_alone_has_its_own_lines() -> None:
    assert {"step.py:1", "step.py:2"} <= lines_of("x = 1\ny = 2\n")
    assert {"step.py:1", "step.py:4"} <= lines_of("x = 1\n\n\ny = 2\n")
    assert "step.py:2" not in lines_of("x = 1\n\n\ny = 2\n")


def layer(x: tf.Tensor) -> tf.Tensor:
    return tf.tanh(x)


def tower(x: tf.Tensor) -> tf.Tensor:
    return layer(x)


def calls(tensor: tf.Tensor) -> list[tuple[str, str]]:
    return [(frame.name, frame.line) for frame in tensor.op.traceback]


def test_all_calls_that_made_an_operation_are_kept() -> None:
    x = tf.constant(1.0)
    for _ in range(2):  # found anew, and by comparison with the one before
        one, other = tower(x), layer(x)
        assert calls(one)[1:] == [("tower", "return layer(x)"), ("layer", "return tf.tanh(x)")]
        assert calls(one)[0][1] == "one, other = tower(x), layer(x)"
        assert [name for name, _ in calls(other)][1:] == ["layer"]
    assert str(one.op.node.source) == one.op.source
    assert "/flowrt/" not in "".join(
        tf.layers.dense(tf.ones([2, 2]), 3, activation=tower).op.traceback.format()
    )


def test_calls_of_one_line_from_two_places_differ_at_the_outermost() -> None:
    def train(x: tf.Tensor) -> tf.Tensor:
        return tower(x)

    def evaluate(x: tf.Tensor) -> tf.Tensor:
        return tower(x)

    x = tf.constant(1.0)
    names = [calls(each(x))[-3][0] for each in (train, evaluate, evaluate, train)]
    assert names == ["train", "evaluate", "evaluate", "train"]


def test_code_without_a_module_builds() -> None:
    """As ``exec`` runs it in a namespace that has no name."""
    found: dict[str, Any] = {"tf": tf}
    exec("x = tf.constant(1)\ny = x + 1", found)  # noqa: S102
    assert found["y"].op.type == "AddV2"
