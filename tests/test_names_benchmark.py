"""`benchmarks.names`: which names of TensorFlow a program uses, and how many programs find all of theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.names import (
    DATA,
    Corpus,
    format_corpus,
    format_report,
    missing,
    names_of,
    read_corpus,
    survey,
)
from flowrt.compat import tensorflow

PROGRAM = """
import tensorflow as tf
import tensorflow.contrib.slim as slim
import tensorflow.contrib.layers
from tensorflow.python.ops import array_ops as ops, rnn_cell
from tensorflow.compat.v1 import placeholder
from elsewhere import tf2
tf.model = tf.Graph()
x = tf.nn.rnn_cell.LSTMCell(3).state_size + tf2.nothing
tf.model.add(slim.conv2d, ops.concat, tf.compat.v1.get_variable, tf.__version__, 'tf.in_a_string')
"""


@pytest.fixture(autouse=True)
def alias() -> Iterator[None]:
    tensorflow.install()
    yield
    tensorflow.uninstall()


def test_the_names_of_a_program_are_found_in_its_text() -> None:
    assert names_of(PROGRAM) == {
        "Graph", "nn.rnn_cell.LSTMCell", "contrib.slim", "contrib.slim.conv2d", "contrib.layers",
        "python.ops.array_ops", "python.ops.array_ops.concat", "python.ops.rnn_cell", "placeholder",
        "get_variable",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("get_variable", None), ("mul", None), ("train.SummaryWriter", None), ("flags.FLAGS.x", None),
        ("python.ops.rnn_cell", None), ("Graph.no_such_method", None), ("lookup.nosuch", "lookup.nosuch"),
        ("contrib.slim.conv2dd", "contrib.slim.conv2dd"), ("nosuch", "nosuch"),
    ],
)  # fmt: skip
def test_a_name_that_is_missing_is_told_as_far_as_it_is(name: str, lost: str | None) -> None:
    assert missing(name) == lost


def test_files_are_counted_by_what_they_miss() -> None:
    corpus = read_corpus(
        format_corpus([["add", "mul"], ["lookup.nosuch", "add"], ["add", "nosuch", "nn.no"]])
    )
    assert corpus == Corpus(("add", "lookup.nosuch", "mul", "nn.no", "nosuch"), ((0, 1), (0, 2), (0, 3, 4)))
    report = survey(corpus)
    assert (report.files, report.complete) == (3, 1)
    assert report.alone == {"lookup.nosuch": 1}
    assert report.blocked == {"lookup.nosuch": 1, "nosuch": 1, "nn.no": 1}
    assert report.spaces == {"lookup": 1}
    assert "1 of 3 files find all names (33.3%)" in format_report(report)


def test_public_programs_keep_the_names_that_they_find() -> None:
    report = survey(read_corpus(DATA.read_text()))
    assert report.files > 1000
    assert report.complete / report.files > 0.81
