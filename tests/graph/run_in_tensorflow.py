"""Runs in an environment with TensorFlow, for `tests/graph/test_functions_in_tensorflow.py`:

    PYTHON_WITH_TENSORFLOW tests/graph/run_in_tensorflow.py FOLDER

Each graph FOLDER/NAME.pb is run for each feed of "x" in FOLDER/feeds.json; FOLDER/values.json gets the values
of "y" and "dy". For the ops in FOLDER/ops.json FOLDER/outputs.json gets the names of their outputs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_registry


def values_of(path: Path, feeds: list[float]) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(tf.GraphDef.FromString(path.read_bytes()), name="")
        session.run("v/Assign")
        return [[float(v) for v in session.run(["y:0", "dy:0"], {"x:0": feed})] for feed in feeds]


def outputs_of(op: str) -> list[str] | None:
    definition = op_def_registry.get(op)
    return None if definition is None else [argument.name for argument in definition.output_arg]


def main(folder: Path) -> None:
    tf.disable_eager_execution()
    feeds = json.loads((folder / "feeds.json").read_text())
    values = {path.stem: values_of(path, feeds) for path in folder.glob("*.pb")}
    (folder / "values.json").write_text(json.dumps(values))
    outputs = {op: outputs_of(op) for op in json.loads((folder / "ops.json").read_text())}
    (folder / "outputs.json").write_text(json.dumps(outputs))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
