"""TensorFlow's inner paths, ``flowrt.python.*``, as public programs import from them; and their versions."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
import flowrt.python.ops.array_ops as array_operations
from flowrt.compat import v1
from flowrt.python import pywrap_tensorflow, source_names
from flowrt.python.client import device_lib, timeline
from flowrt.python.framework import dtypes, errors_impl, ops, tensor_shape, tensor_util
from flowrt.python.lib.io import file_io
from flowrt.python.ops import control_flow_ops, init_ops, math_ops, nn_ops, rnn, variable_scope
from flowrt.python.ops.rnn import rnn_cell_impl
from flowrt.python.ops.rnn_cell import GRUCell
from flowrt.python.platform import gfile, resource_loader, tf_logging
from flowrt.python.training import moving_averages, optimizer, slot_creator
from flowrt.python.util import deprecation, nest


def test_the_paths_have_the_public_objects() -> None:
    pairs = [
        (ops.convert_to_tensor, tf.convert_to_tensor), (ops.GraphKeys, tf.GraphKeys),
        (rnn_cell_impl.GRUCell, tf.nn.rnn_cell.GRUCell),
        (ops.reset_default_graph, tf.reset_default_graph), (ops.Tensor, tf.Tensor),
        (ops.IndexedSlices, tf.IndexedSlices), (ops.RegisterGradient, tf.RegisterGradient),
        (ops.add_to_collection, tf.add_to_collection), (ops.name_scope, tf.name_scope),
        (array_operations.concat, tf.concat), (control_flow_ops.cond, tf.cond),
        (nn_ops.softmax, tf.nn.softmax), (rnn.dynamic_rnn, tf.nn.dynamic_rnn),
        (GRUCell, tf.nn.rnn_cell.GRUCell), (math_ops.reduce_sum, tf.reduce_sum),
        (init_ops.zeros_initializer, tf.zeros_initializer), (gfile.GFile, tf.gfile.GFile),
        (variable_scope.get_variable, tf.get_variable), (nest.flatten, tf.nest.flatten),
        (tf_logging.info, tf.logging.info), (optimizer.Optimizer, tf.train.Optimizer),
        (dtypes.bool, tf.bool), (dtypes.as_dtype, tf.as_dtype),
        (tensor_shape.TensorShape, tf.TensorShape), (tensor_util.constant_value, tf.get_static_value),
        (errors_impl.NotFoundError, tf.errors.NotFoundError), (timeline.Timeline, tf.profiler.Timeline),
        (pywrap_tensorflow.NewCheckpointReader, tf.train.NewCheckpointReader),
    ]  # fmt: skip
    for found, public in pairs:
        assert found is public
    assert callable(moving_averages.assign_moving_average)
    assert any(device.device_type == "CPU" for device in device_lib.list_local_devices())


def test_every_path_with_sources_that_exist_has_names() -> None:
    absent = {"image", "saved_model"}  # modules of TensorFlow that flowrt may not have
    for path, sources in source_names().items():
        module = importlib.import_module(f"flowrt.python.{path}")
        assert module.__all__ or sources in {"", *absent}, path


def test_a_path_as_its_attribute_is_the_module_that_is_imported() -> None:
    import flowrt.python.ops.state_ops  # as scripts write it
    import flowrt.python.summary.summary

    assert flowrt.python.ops.state_ops.assign is tf.assign
    assert flowrt.python.summary.summary.scalar is tf.summary.scalar


def test_helpers_that_scripts_import_from_inner_paths_work(tmp_path: Path) -> None:
    assert nest.map_structure_up_to([0, 0], len, [[1, 2], (3,)]) == [2, 1]
    assert nest.flatten_up_to([0, (0,)], [[1], ([2, 3],)]) == [[1], [2, 3]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected 2 items; got 1"):
        nest.map_structure_up_to([0, 0], len, [[1]])
    assert tensor_shape.unknown_shape(2).as_list() == [None, None]
    assert tensor_shape.unknown_shape().ndims is None
    path = tmp_path / "text"
    file_io.write_string_to_file(path, "two\n")
    with file_io.FileIO(path, "a") as file:
        file.write("lines")
    assert file_io.read_file_to_string(path) == "two\nlines"
    assert file_io.read_file_to_string(path, binary_mode=True) == b"two\nlines"
    assert file_io.file_exists(path)
    assert file_io.get_matching_files(tmp_path / "t*") == [str(path)]
    assert resource_loader.get_data_files_path() == str(Path(__file__).parent)
    assert resource_loader.get_path_to_datafile("a") == str(Path(__file__).parent / "a")
    assert (
        resource_loader.load_resource("__init__.py") == Path(__file__).with_name("__init__.py").read_bytes()
    )


def test_slots_and_dependencies_of_inner_paths_run() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        weights = tf.Variable([1.0, 2.0], name="weights")
        zeros = slot_creator.create_zeros_slot(weights, "momentum")
        counts = slot_creator.create_zeros_slot(weights, "count", tf.int32, colocate_with_primary=False)
        copied = slot_creator.create_slot(weights, weights.initialized_value(), "copy")
        assert [v.op.name for v in (zeros, copied)] == ["weights/momentum", "weights/copy"]
        assert tf.trainable_variables() == [weights]
        added = control_flow_ops.with_dependencies([zeros.assign_add([1.0, 1.0])], tf.constant(3.0))
        session.run(tf.global_variables_initializer())
        assert session.run(added) == 3.0
        np.testing.assert_array_equal(session.run(zeros), [1, 1])
        np.testing.assert_array_equal(session.run(counts), np.zeros(2, np.int32))
        np.testing.assert_array_equal(session.run(copied), [1, 2])


def test_deprecated_functions_and_arguments_warn() -> None:
    @deprecation.deprecated("2030-01-01", "Use g.")
    def f(x: int) -> int:
        return x

    @deprecation.deprecated_args(None, "Use y.", "x", ("z", 1))
    def h(x: Any = None, y: Any = None, z: int = 1) -> Any:
        return deprecation.deprecated_argument_lookup("y", y, "x", x)

    with pytest.warns(
        DeprecationWarning, match="f is deprecated and will be removed after 2030-01-01. Use g"
    ):
        assert f(1) == 1
    with pytest.warns(DeprecationWarning, match="argument x of .*h is deprecated .* in a future version"):
        assert h(x=2) == 2
    with pytest.warns(DeprecationWarning, match="argument z"):
        h(z=2)
    with warnings.catch_warnings(action="error"):
        assert h(y=3, z=1) == 3
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"expected y or its deprecated name x; got both"
    ):
        deprecation.deprecated_argument_lookup("y", 1, "x", 2)


def test_a_missing_name_or_path_says_where_and_what_is_near() -> None:
    with pytest.raises(AttributeError, match=r"flowrt\.python\.ops\.array_ops\.concatt.*Nearest: .*concat"):
        _ = array_operations.concatt
    with pytest.raises(ImportError, match=r"flowrt\.python\.ops\.math_ops\.reduce_summ.*reduce_sum"):
        from flowrt.python.ops.math_ops import reduce_summ  # noqa: F401
    with pytest.raises(ImportError, match=r"flowrt\.python\.framework\.opps.*ops"):
        import flowrt.python.framework.opps
    with pytest.raises(ImportError, match=r"flowrt\.python\.framwork.*framework"):
        import flowrt.python.framwork.ops  # noqa: F401


def test_a_program_with_inner_imports_runs() -> None:
    with ops.Graph().as_default(), ops.name_scope("net"):
        x = ops.convert_to_tensor([[1.0, 2.0]], dtype=dtypes.float32)
        y = array_operations.concat([x, math_ops.add(x, x)], 0)
        average = variable_scope.get_variable("average", [], initializer=init_ops.constant_initializer(1.0))
        moved = moving_averages.assign_moving_average(average, math_ops.reduce_sum(y), 0.5, zero_debias=False)
        with control_flow_ops.control_dependencies([moved]):
            total = array_operations.identity(average.read_value())
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert session.run(total) == 0.5 * 1 + 0.5 * 9
            np.testing.assert_array_equal(session.run(y), [[1, 2], [2, 4]])


def test_v1_says_the_version_of_tensorflow_and_flowrt_its_own() -> None:
    major, minor, _ = v1.__version__.split(".")
    assert (major, minor) == ("1", "15")
    assert v1.__version__ == v1.VERSION == v1.version.VERSION
    assert v1.__version__ in v1.GIT_VERSION
    assert v1.version.GIT_VERSION == v1.GIT_VERSION
    assert tf.__version__ != v1.__version__


def test_writers_of_layers_find_tensorflows_helpers() -> None:
    from flowrt.python.framework import smart_cond
    from flowrt.python.layers import utils

    assert utils.normalize_tuple(2, 3, "strides") == (2, 2, 2)
    assert utils.normalize_padding("SAME") == "same"
    assert utils.convert_data_format("channels_first", 5) == "NCDHW"
    assert [utils.conv_output_length(10, 3, p, 2) for p in ("valid", "same", "full")] == [4, 5, 6]
    assert [utils.deconv_output_length(4, 3, p, 2) for p in ("valid", "same", "full")] == [9, 8, 5]
    assert utils.conv_output_length(None, 3, "same", 1) is None
    fed = tf.placeholder(tf.bool, [])
    assert utils.constant_value(tf.constant(True)) is True
    assert utils.constant_value(fed) is None
    assert smart_cond.smart_cond(False, lambda: 1, lambda: 2) == 2
    chosen = smart_cond.smart_cond(fed, lambda: tf.constant(1), lambda: tf.constant(2))
    with tf.Session() as session:
        assert [session.run(chosen, {fed: value}) for value in (True, False)] == [1, 2]
    for call in (
        lambda: utils.normalize_data_format("NHWC"),
        lambda: utils.convert_data_format("channels_last", 2),
        lambda: utils.smart_cond(True, None, None),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected"):
            call()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("flowrt.lite.x", "flowrt.lite: TensorFlow's formats are not supported. Instead: train.Saver"),
        ("flowrt.laayers", "flowrt.laayers: flowrt has no such name. Nearest: layers"),
        ("flowrt.contrib.slimm", "flowrt.contrib.slimm: flowrt has no such name. Nearest: contrib.slim"),
    ],
)
def test_an_import_of_a_module_that_does_not_exist_says_what_is_near(module: str, message: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=re.escape(message)):
        importlib.import_module(module)


def test_known_values_of_different_ranks_add_up() -> None:
    row, column = tf.constant([4, 5, 6]) * 1, tf.constant([[1], [2]]) * 1
    assert tf.get_static_value(row + column) == ((5, 6, 7), (6, 7, 8))
    assert tf.get_static_value(row + tf.constant(1) * 1) == (5, 6, 7)


def test_files_are_given_text_or_bytes(tmp_path: Path) -> None:
    for mode in ("w", "wb", "a"):
        path = tmp_path / mode
        with tf.gfile.GFile(str(path), mode) as file:
            file.write("\u00e4\n")
            file.write("\u00f6\n".encode())
        assert path.read_text("utf-8") == "\u00e4\n\u00f6\n"
        with tf.gfile.GFile(str(path), "rb") as file:
            assert file.read() == "\u00e4\n\u00f6\n".encode()
    found = tf.gfile.Stat(str(tmp_path / "w"))
    assert (found.length, found.is_directory) == (6, False)
    assert tf.io.gfile.exists(str(tmp_path / "w"))
    assert tf.io.gfile.glob([str(tmp_path / "w*")]) == [str(tmp_path / "w"), str(tmp_path / "wb")]


def test_a_module_of_a_functions_name_is_called_as_the_function() -> None:
    """TensorFlow's package has the function in the place of the module that defines it."""
    from flowrt.contrib.framework.python.ops import add_arg_scope, arg_scope  # type: ignore[import-not-found]
    from flowrt.contrib.framework.python.ops.arg_scope import arg_scope as same  # type: ignore[import-not-found]

    @add_arg_scope
    def layer(width: int = 1) -> int:
        return width

    with arg_scope([layer], width=3):
        assert layer() == 3
    assert same is tf.contrib.framework.arg_scope


def test_paths_below_contrib_have_the_public_objects() -> None:
    for path, public in {
        "metrics.python.ops.set_ops.set_union": tf.sets.union,
        "factorization.python.ops.clustering_ops.KMeans": tf.contrib.factorization.KMeans,
        "slim.python.slim.nets.inception_v3.inception_v3": tf.contrib.slim.nets.inception.inception_v3,
    }.items():
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(f"flowrt.contrib.{module}"), name) is public
    utils = importlib.import_module("flowrt.contrib.layers.python.layers.utils")
    assert utils.get_variable_collections({"weights": ["some"]}, "weights") == ["some"]
    assert not utils.get_variable_collections({"weights": ["some"]}, "biases")
    assert utils.get_variable_collections(["all"], "biases") == ["all"]


def test_copies_of_arg_scope_find_the_tools_for_decorators() -> None:
    from flowrt.python.util import tf_contextlib, tf_decorator

    def own(x: int) -> int:
        """Its docstring."""
        return x

    made = tf_decorator.make_decorator(own, lambda x: own(x) + 1)
    assert (made(1), made.__name__, made.__doc__) == (2, "own", "Its docstring.")
    assert tf_decorator.unwrap(made) == ([], own)

    @tf_contextlib.contextmanager
    def scope() -> Any:
        yield 3

    with scope() as value:
        assert value == 3


def test_private_attributes_that_public_programs_read() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 2])
    assert x._op.type == "Placeholder"
    assert len(x.get_shape()._dims) == 2


def test_libraries_hang_their_own_attributes_on_tensors() -> None:
    with tf.Graph().as_default():
        x, w = tf.placeholder(tf.float32), tf.Variable(1.0)
    x.scope = w.scope = "Input"  # type: ignore[attr-defined]
    assert (x.op.outputs[0].scope, w.scope) == ("Input", "Input")  # type: ignore[attr-defined]


def test_a_scope_for_the_compiler_changes_nothing() -> None:
    from flowrt.contrib.compiler import jit

    with tf.Graph().as_default() as graph:
        with jit.experimental_jit_scope(lambda node: True, separate_compiled_gradients=True):
            tf.constant(1.0)
        assert [operation.type for operation in graph.get_operations()] == ["Const"]
