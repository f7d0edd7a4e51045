"""Random files of TensorFlow's: checkpoints, MetaGraphs that go on training, SavedModels with outputs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - names its dtypes for NumPy
import numpy as np
import pytest

import flowrt as tf

INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")
EACH = 34
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(INTERPRETER is None, reason="FLOWRT_TENSORFLOW names no interpreter"),
]


def as_array(given: dict[str, Any]) -> Any:
    if given["dtype"] == "string":
        return np.array([bytes.fromhex(text) for text in given["data"]], object).reshape(given["shape"])
    return np.frombuffer(bytes.fromhex(given["data"]), np.dtype(given["dtype"])).reshape(given["shape"])


def check_same(found: Any, expected: Any, name: str) -> None:
    assert (str(found.dtype), found.shape) == (str(expected.dtype), expected.shape), name
    if expected.dtype == object:
        assert found.ravel().tolist() == expected.ravel().tolist(), name
    else:
        assert found.tobytes() == expected.tobytes(), name


def check_checkpoint(path: str, expected: dict[str, Any]) -> None:
    reader = tf.train.load_checkpoint(path)
    values = {name: as_array(each) for name, each in expected.items()}
    names = {n: s for n, s in reader.get_variable_to_shape_map().items() if n in values}
    assert names == {name: list(value.shape) for name, value in values.items()}
    for name, value in values.items():
        check_same(reader.get_tensor(name), value, name)
    with tf.Graph(), tf.Session() as session:
        variables = {
            name: tf.Variable(np.full_like(value, b"" if value.dtype == object else 0))
            for name, value in values.items()
        }
        saver = tf.train.Saver(variables, file_format="tensorflow")
        saver.restore(session, path)
        for name, value in values.items():
            check_same(np.asarray(session.run(variables[name]), value.dtype), value, name)
        saver.save(session, f"{path}_ours")


def check_meta_graph(path: str, expected: dict[str, Any]) -> None:
    with tf.Graph(), tf.Session() as session:
        tf.train.import_meta_graph(f"{path}.meta").restore(session, path)
        for given, loss in zip(expected["feeds"], expected["losses"], strict=True):
            feed = {name: as_array(each) for name, each in given.items()}
            np.testing.assert_allclose(session.run(["loss:0", "train"], feed)[0], loss, 1e-5)


def check_saved_model(path: str, expected: dict[str, Any]) -> None:
    model = tf.saved_model.load_model(path)
    found = model.signatures["serving_default"](x=as_array(expected["x"]))
    model.close()
    assert found.keys() == expected["outputs"].keys()
    for name, each in expected["outputs"].items():
        np.testing.assert_allclose(found[name], as_array(each), 1e-4, 1e-5)


CHECKS = {"checkpoint": check_checkpoint, "meta_graph": check_meta_graph, "saved_model": check_saved_model}

_READS = """
import json, sys
from pathlib import Path
import numpy as np
import tensorflow as tf
from tests.saved_model.random_files import as_json
for path in sys.argv[1:]:
    reader = tf.compat.v1.train.NewCheckpointReader(path + "_ours")
    for name, value in json.loads(Path(path + ".json").read_text()).items():
        assert as_json(reader.get_tensor(name)) == value, (path, name)
"""


@pytest.mark.parametrize("first", [i * EACH for i in range(6)])
def test_what_tensorflow_wrote(first: int, tmp_path: Path) -> None:
    """204 files, all checkpoints among them written again and read there."""
    root = Path(__file__).parents[2]
    command = [str(INTERPRETER), "-m", "tests.saved_model.random_files", str(tmp_path), str(first), str(EACH)]
    subprocess.run(command, cwd=root, check=True, timeout=300)
    files = sorted(tmp_path.glob("*.json"))
    assert len(files) == EACH
    for file in files:
        kind = file.stem.rstrip("0123456789")
        CHECKS[kind](str(file.with_suffix("")), json.loads(file.read_text()))
    again = [str(file.with_suffix("")) for file in files if file.stem.startswith("checkpoint")]
    subprocess.run([str(INTERPRETER), "-c", _READS, *again], cwd=root, check=True, timeout=300)
