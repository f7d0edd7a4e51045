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


@pytest.fixture(scope="module")
def outputs() -> dict[str, Any]:
    """The outputs of each cell, by its name; of the client's messages, those that update an output."""
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, allow_errors=True, timeout=100, kernel_name="python3").execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


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
