"""``import tensorflow`` finds flowrt after `install`, and only then."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt
from flowrt.compat import before_one, tensorflow
from flowrt.errors import AlreadyExistsError

ROOT = Path(__file__).parent.parent


@pytest.fixture
def alias() -> Iterator[types.ModuleType]:
    tensorflow.install()
    yield importlib.import_module("tensorflow")
    tensorflow.uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] in ("tensorflow", "keras")]


def test_a_module_of_the_alias_is_flowrts_own(alias: types.ModuleType) -> None:
    for path in (
        "compat.v1", "contrib.slim", "contrib.layers", "python.framework.ops", "python.ops.array_ops",
        "layers", "examples.tutorials.mnist.input_data", "nn.rnn_cell",
        "contrib.tensorboard.plugins.projector",
    ):  # fmt: skip
        assert importlib.import_module(f"tensorflow.{path}") is importlib.import_module(f"flowrt.{path}"), (
            path
        )
    assert alias.get_variable is flowrt.get_variable
    assert alias.nn.relu is flowrt.nn.relu
    assert alias.train.AdamOptimizer is flowrt.train.AdamOptimizer
    assert alias.__version__ == "1.15.0"


def test_scripts_import_from_the_alias_in_every_form(alias: types.ModuleType) -> None:
    names: dict[str, object] = {}
    exec(  # noqa: S102
        "import tensorflow as tf\n"
        "import tensorflow.contrib.slim as slim\n"
        "import tensorflow.contrib.layers\n"
        "from tensorflow.contrib.layers.python.layers import utils\n"
        "from tensorflow.contrib import rnn, layers\n"
        "from tensorflow.python.ops import array_ops, rnn_cell\n"
        "from tensorflow.train import AdamOptimizer\n"
        "from tensorflow import *\n",
        names,
    )
    assert names["slim"] is flowrt.contrib.slim
    assert names["tensorflow"] is names["tf"] is alias
    assert names["layers"] is flowrt.contrib.layers or names["layers"] is flowrt.layers
    assert names["get_variable"] is flowrt.get_variable


def test_keras_is_found_under_all_its_names(alias: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {}
    exec(  # noqa: S102
        "from tensorflow.keras.layers import Dense as d1\n"
        "from tensorflow.python.keras.layers.core import Dense as d2\n"
        "from tensorflow.python.keras.engine.input_spec import InputSpec\n"
        "from tensorflow.python.keras import backend\n"
        "from keras.layers.core import Dense as d3\n"
        "from keras.layers.convolutional import Conv2D, MaxPooling2D\n"  # flowrt's module has no pooling
        "from keras.engine import Layer, Model\n"
        "from keras.utils import np_utils\n"
        "import keras.backend as k\n",
        names,
    )
    assert names["d1"] is names["d2"] is names["d3"] is flowrt.keras.layers.Dense
    assert names["k"].mean is names["backend"].mean is flowrt.keras.backend.mean  # type: ignore[attr-defined]
    tensorflow.uninstall()
    tensorflow.install()
    monkeypatch.setattr(tensorflow, "_is_installed", lambda name: True)
    assert importlib.util.find_spec("keras") is None  # the real one would be found by Python itself


def test_a_folder_that_is_called_keras_does_not_hide_keras(
    alias: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "keras").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    tensorflow._is_installed.cache_clear()
    assert importlib.import_module("keras.layers").Dense is flowrt.keras.layers.Dense


def test_names_of_before_one_are_found_only_through_the_alias(alias: types.ModuleType) -> None:
    for path, names in before_one.NAMES.items():
        view = importlib.import_module(f"tensorflow.{path}".strip("."))
        own = importlib.import_module(f"flowrt.{path}".strip("."))
        for name in names:
            assert getattr(view, name), name
            assert not hasattr(own, name), name
    with flowrt.Graph().as_default(), flowrt.Session() as session:
        x = alias.pack([alias.mul(2.0, 3.0), alias.sub(2.0, 3.0), alias.neg(1.0)])
        product = alias.batch_matmul(np.ones((2, 3, 1)), np.ones((2, 3, 4)), adj_x=True)
        alias.scalar_summary("loss", x[0])
        alias.histogram_summary("all", x)
        alias.image_summary("image", np.zeros((1, 2, 2, 1), np.float32), max_images=1)
        merged = alias.merge_all_summaries()
        np.testing.assert_array_equal(session.run(x), [6, -1, -1])
        assert session.run(product).shape == (2, 1, 4)
        assert len(flowrt.Summary.FromString(session.run(merged)).value) == 3


def test_what_is_saved_can_be_imported_as_a_graph(alias: types.ModuleType, tmp_path: Path) -> None:
    path = str(tmp_path / "model.ckpt")
    tf: Any = alias
    result = tf.add(tf.Variable(1.0, name="a"), 2.0, name="add")
    saver = tf.train.Saver(max_to_keep=1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in (1, 2):
            saver.save(session, path, step)
    assert [file.name for file in tmp_path.glob("*.meta")] == ["model.ckpt-2.meta"]
    tf.reset_default_graph()
    saver = tf.train.import_meta_graph(f"{path}-2.meta")
    with tf.Session() as session:
        saver.restore(session, f"{path}-2")
        assert session.run(result.name) == 3.0


def test_what_cannot_be_resolved_says_what_is_nearest(alias: types.ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"lite: TensorFlow's formats are not supported\. Instead"):
        importlib.import_module("tensorflow.lite.layers")
    with pytest.raises(ModuleNotFoundError, match=r"contrib\.slimm: flowrt has no such name\. Nearest"):
        importlib.import_module("tensorflow.contrib.slimm")
    with pytest.raises(ModuleNotFoundError, match=r"tensorflow\.get_variable: expected a module"):
        importlib.import_module("tensorflow.get_variable")
    with pytest.raises(ImportError, match=r"get_varible: .*Nearest: get_variable"):
        from tensorflow import get_varible  # noqa: F401
    with pytest.raises(AttributeError, match=r"get_varible: .*Nearest: get_variable"):
        _ = alias.get_varible
    assert not hasattr(alias, "__file__")


def test_installing_twice_is_installing_once(alias: types.ModuleType) -> None:
    tensorflow.install()
    tensorflow.uninstall()
    tensorflow.uninstall()
    tensorflow.install()
    assert importlib.import_module("tensorflow") is alias


def test_the_alias_refuses_beside_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    with pytest.raises(AlreadyExistsError, match="expected a process without TensorFlow"):
        tensorflow.install()
    assert tensorflow._FINDER not in sys.meta_path


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "flowrt.cli.tf1", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=100)


def test_importing_flowrt_does_not_install_the_alias() -> None:
    code = "import flowrt, sys; flowrt.compat.tensorflow; print('tensorflow' in sys.modules, len([f for f in "
    code += "sys.meta_path if type(f).__module__ == 'flowrt.compat.tensorflow']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False 0\n"


def test_the_command_runs_an_unchanged_script(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import tensorflow as tf\ntwo = tf.constant(2.0)\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, tensorflow as tf, beside\n"
        "from tensorflow.examples.tutorials.mnist import input_data\n"
        "flags = tf.app.flags\n"
        "flags.DEFINE_float('scale', 1.0, 'scale')\n"
        "data = input_data.read_data_sets('nowhere', one_hot=True)\n"
        "x = tf.placeholder(tf.float32, [None, 784])\n"
        "y = tf.reduce_sum(x, 1) * beside.two * flags.FLAGS.scale\n"
        "def main(_):\n"
        "    with tf.Session() as sess:\n"
        "        print(sess.run(y, {x: data.train.next_batch(3)[0] * 0 + 1}), __file__ == sys.argv[0])\n"
        "tf.app.run()\n"
    )
    done = run(str(script), "--scale=0.5", FLOWRT_MNIST="digits")
    assert done.stdout == "[784. 784. 784.] True\n", done.stderr
    done = run(str(tmp_path / "none.py"))
    assert (done.returncode, done.stderr.count("expected a Python file")) == (2, 1)


def test_the_command_runs_a_module_and_passes_its_errors_on(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("import tensorflow as tf\nraise SystemExit(7)\n")
    done = run("-m", "failing", PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert done.returncode == 7, done.stderr


def test_flags_of_absl_are_read_by_app_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import tensorflow as tf\n"
        "from absl import flags\n"
        "flags.DEFINE_integer('steps', 1, 'how many')\n"
        "tf.app.flags.DEFINE_string('data', '', 'where')\n"
        "def main(argv):\n"
        "    print(flags.FLAGS.steps, tf.app.flags.FLAGS.data, argv[1:])\n"
        "tf.app.run()\n"
    )
    command = [sys.executable, "-m", "flowrt.cli.tf1", str(script), "--steps=7", "--data=here", "rest"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    assert result.stdout.split("\n")[0] == "7 here ['rest']"
