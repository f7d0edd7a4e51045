"""`init_from_checkpoint`: which variable gets which tensor, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.storage.cases import tensors

FIXTURES = Path(__file__).parents[1] / "storage" / "fixtures"


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A checkpoint of flowrt's with "old/w", "old/b" and "step"."""
    with tf.Graph(), tf.Session() as session:
        with tf.variable_scope("old"):
            tf.get_variable("w", initializer=[1.0, 2.0])
            tf.get_variable("b", initializer=3.0)
        tf.get_variable("step", initializer=4)
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(tmp_path / "m"), 7)


def variables() -> dict[str, tf.Variable]:
    with tf.variable_scope("new"):
        made = [tf.get_variable("w", initializer=[0.0, 0.0]), tf.get_variable("b", initializer=0.0)]
    return {v.op.name: v for v in [*made, tf.get_variable("step", initializer=0)]}


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ({"old/": "new/"}, [[1, 2], 3, 0]),
        ({"old/w": "new/w"}, [[1, 2], 0, 0]),
        ([("old/b", "new/b:0"), ("step", "step")], [[0, 0], 3, 4]),
    ],
)
def test_names_and_scopes(saved: str, assignments: Any, expected: Any) -> None:
    for path in (saved, str(Path(saved).parent)):
        with tf.Graph(), tf.Session() as session:
            found = variables()
            tf.train.init_from_checkpoint(path, assignments)
            session.run(tf.global_variables_initializer())
            assert [session.run(v).tolist() for v in found.values()] == expected


def test_a_variable_and_names_without_a_scope(saved: str) -> None:
    with tf.Graph(), tf.Session() as session:
        found = variables()
        tf.train.init_from_checkpoint(saved, {"old/b": found["new/b"]})
        twice = tf.Variable(found["new/b"].initialized_value() * 2)
        session.run(tf.global_variables_initializer())
        assert session.run([found["new/b"], twice]) == [3, 6]
    with tf.Graph(), tf.Session() as session, tf.variable_scope("top"):
        step = tf.get_variable("step", initializer=0)
        tf.train.init_from_checkpoint(saved, {"/": "top/"})
        session.run(step.initializer)
        assert session.run(step) == 4


def test_a_checkpoint_of_tensorflows() -> None:
    with tf.Graph(), tf.Session() as session:
        v = tf.get_variable("v", [35, 2])
        tf.contrib.framework.init_from_checkpoint(str(FIXTURES / "version_1"), {"by_rows": v})
        session.run(v.initializer)
        np.testing.assert_array_equal(session.run(v), tensors()["by_rows"])


@pytest.mark.parametrize(
    ("assignments", "error", "message"),
    [
        ({"old/": "nwe/"}, tf.errors.NotFoundError, r"no variables in 'nwe/'"),
        ({"old/w": "new/x"}, tf.errors.NotFoundError, r"no variable 'new/x'. Nearest: new/w"),
        ({"old/x": "new/w"}, tf.errors.NotFoundError, r"got 'old/x'. Nearest: old/w"),
        ({"old/b": "new/w"}, tf.errors.InvalidArgumentError, r"'new/w' has shape \(2,\); tensor 'old/b'"),
        ({"step": "new/b"}, tf.errors.DTypeError, r"'new/b' is float32; tensor 'step' of .* is int32"),
        ({"old": "new/"}, tf.errors.InvalidArgumentError, r"expected a scope for 'new/': 'old/'; got 'old'"),
        ({"old/w": 3}, tf.errors.DTypeError, r"'old/w': expected a variable or a name; got 3"),
        ({3: "new/w"}, tf.errors.DTypeError, r"expected names in the checkpoint; got 3"),
    ],
)
def test_what_does_not_fit_changes_nothing(saved: str, assignments: Any, error: Any, message: str) -> None:
    with tf.Graph(), tf.Session() as session:
        found = variables()
        with pytest.raises(error, match=message):
            tf.train.init_from_checkpoint(saved, {"old/w": "new/w", **assignments})
        session.run(tf.global_variables_initializer())
        assert session.run(found["new/w"]).tolist() == [0, 0]


def test_copies_are_refused(saved: str) -> None:
    with tf.Graph(), tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        tf.get_variable("w", initializer=[0.0, 0.0])
        with pytest.raises(tf.errors.UnimplementedError, match="'w': expected one copy of it; it has 2"):
            tf.train.init_from_checkpoint(saved, {"old/w": "w"})
