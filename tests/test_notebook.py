"""A notebook, run as Jupyter runs it: cards, pages, progress, lines of cells, tracebacks."""

from __future__ import annotations

import re
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

CELLS = {
    "imports": "import flowrt as tf\nfrom flowrt.base.progress import Progress",
    "model": """
def model(x):
    h = tf.layers.dense(x, 4, name="hidden")
    return tf.check_numerics(tf.log(h), "log")

x = tf.placeholder(tf.float32, [None, 3], name="x")
y = model(x)
y""",
    "graph": "tf.get_default_graph()",
    "session": "session = tf.Session()\nsession.run(tf.global_variables_initializer())\nsession",
    "failing step": "session.run(y, {x: [[0, 0, 0]]})",
    "failing call": "tf.matmul(x, x[0])",
    "users error": "tf.map_fn(lambda row: undefined, x)",
    "page": "tf.viz.show(session, fetches=y, feed_dict={x: [[0, 0, 0]]})",
    "progress": """
import time
with Progress("restoring", 8, "tensors") as progress:
    for i in range(8):
        progress.update(i)
        time.sleep(0.1)
""",
}


MISTAKES = {
    "shapes": (
        "ones = tf.ones([2, 3])\ntf.matmul(ones, ones)",
        2,
        "(In[{n}]:2): expected a [m, k] and b [k, n]",
    ),
    "no feed": (
        "fed = tf.placeholder(tf.float32, [2], name='fed')\nsession.run(fed)",
        2,
        "'fed' (In[{n}]:1): expected a value in feed_dict for this placeholder of float32[2]; got none",
    ),
    "feed of another shape": (
        "session.run(y, {x: [1.0,\n                2.0]})",
        1,
        "'x' (In[2]:5): feed_dict: expected float32 of shape [?, 3]; got [1. 2.] of shape [2]",
    ),
    "no value": (
        "w = tf.get_variable('w', [2])\nsession.run(w)",
        2,
        "(In[{n}]:1): variable 'w' has no value yet",
    ),
    "cell run again": (
        "# as in the cell above\nw = tf.get_variable('w', [2])",
        2,
        "(In[{n}]:2): variable 'w': expected a new name; got that of an existing variable.",
    ),
    "another graph": (
        "with tf.Graph().as_default():\n    other = tf.constant(1.0)\nsession.run(other)",
        3,
        "(In[{n}]:2): <flowrt.Tensor 'Const:0' shape=() dtype=float32> is not an element of this graph.",
    ),
    "branch": (
        "flag = tf.constant(True)\nif flag:\n    pass",
        2,
        "(In[{n}]:2): Tensor 'Const:0' has no truth value",
    ),
    "loop": ("for row in x:\n    pass", 1, "(In[{n}]:1): Tensor 'x:0' cannot be iterated"),
    "NumPy": ("import numpy\nnumpy.sin(y)", 2, "has no value yet: expected an array. Use flowrt.sin()"),
    "height": ("tf.viz.show(\n    height=10)", 1, "show: expected a height of 100 pixels or more; got 10"),
    "view": ("tf.viz.show(view='plced')", 1, "got 'plced'. Nearest: placed"),
    "end of data": (
        "data = tf.data.Dataset.range(1)\nrow = data.make_one_shot_iterator().get_next()\n"
        "session.run(row), session.run(row)",
        3,
        "(In[{n}]:2): end of sequence",
    ),
    "index": (
        "i = tf.placeholder(tf.int32, [])\npicked = tf.gather([1.0, 2.0], i)\nsession.run(picked, {i: 5})",
        3,
        "(In[{n}]:2): indices: expected an index in [0, 2); got 5",
    ),
    "closed": (
        "session.close()\nsession.run(y, {x: [[1, 2, 3]]})",
        2,
        "(In[{n}]:2): expected an open session; the session is closed.",
    ),
}
"""Cells below those of `CELLS`, the line at which each fails, and a part of what is told; n is its number."""


@pytest.fixture(scope="module")
def outputs() -> dict[str, Any]:
    """The outputs of each cell, by its name; of the client's messages, those that update an output."""
    sources = CELLS | {name: cell for name, (cell, _, _) in MISTAKES.items()}
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, allow_errors=True, timeout=100, kernel_name="python3").execute()
    return {name: cell.outputs for name, cell in zip(sources, notebook.cells, strict=True)}


def error_of(outputs: Any) -> list[str]:
    """The lines of a traceback, without colours."""
    (error,) = outputs
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"])).splitlines()


@pytest.mark.slow  # a kernel takes five seconds to start
def test_a_notebook_shows_what_a_user_wants_to_know(outputs: dict[str, Any]) -> None:
    (tensor,), (graph,), (session,) = outputs["model"], outputs["graph"], outputs["session"]
    assert "In[2]:3" in tensor["data"]["text/html"]
    assert "data:image/svg+xml" in graph["data"]["text/html"]
    assert "2 of 64 B; 16 parameters are trained" in session["data"]["text/html"]
    (page,) = outputs["page"]
    assert page["data"]["text/html"].startswith("<iframe ")
    (progress,) = outputs["progress"]
    assert progress["data"] == {"text/plain": ""}  # which it was not in between

    step = error_of(outputs["failing step"])
    assert [line for line in step if "Cell" in line] == ["Cell In[5], line 1"]
    assert step[-6:] == [
        "InvalidArgumentError: CheckNumerics 'CheckNumerics' (In[2]:3): log: expected finite values; got"
        " Inf values",
        "CheckNumerics 'CheckNumerics' was made by",
        '  File "In[2]", line 6, in <module>',
        "    y = model(x)",
        '  File "In[2]", line 3, in model',
        '    return tf.check_numerics(tf.log(h), "log")',
    ]
    for name in ("failing call", "users error"):
        assert not [line for line in error_of(outputs[name]) if "/flowrt/" in line]
    assert "(In[6]:1)" in error_of(outputs["failing call"])[-1]


@pytest.mark.slow  # of the same kernel
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_cell_is_told_in_eight_lines(name: str, outputs: dict[str, Any]) -> None:
    _, line, told = MISTAKES[name]
    number = len(CELLS) + list(MISTAKES).index(name) + 1
    shown = error_of(outputs[name])
    assert len(shown) <= 8, "\n".join(shown)
    assert f"Cell In[{number}], line {line}" in shown
    assert told.replace("{n}", str(number)) in shown[-1]
