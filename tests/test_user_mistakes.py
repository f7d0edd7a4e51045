"""What a new user gets wrong, and what the error then says: one test a mistake."""

import importlib
import math
import re

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.cuda import cuda
from flowrt.errors import (
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnknownError,
)

HERE = r"\S*test_user_mistakes\.py:\d+"

VirtualDevices = tf.GPUOptions.Experimental.VirtualDevices


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


# --- tensors taken for arrays


@pytest.mark.parametrize("call", [np.sqrt, np.sum, np.exp, lambda t: np.maximum(1.0, t), np.add.accumulate])
@pytest.mark.parametrize("make", [tf.constant, tf.Variable])
def test_a_numpy_function_of_a_tensor(make, call):
    t = make([1.0, 4.0], name="x")
    with pytest.raises(DTypeError, match=rf"{HERE}.* 'x:0' has no value yet: .* [rR]un it in a session"):
        call(t)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (np.sum, r"Use flowrt\.reduce_sum\(\), or run it"),
        (np.max, r"Use flowrt\.reduce_max\(\), or run it"),
        (np.add.accumulate, r"Use flowrt\.cumsum\(\), or run it"),
        (np.log1p, r"Use flowrt\.log1p\(\), or run it"),
        (np.cbrt, r"expected an array\. Run it"),
        (np.mean, r"Use flowrt's functions in place of NumPy's, or run it"),
    ],
)
def test_the_advice_for_a_numpy_function_is_a_function_that_there_is(call, advice):
    with pytest.raises(DTypeError, match=advice):
        call(tf.constant([1.0]))


@pytest.mark.parametrize(
    "call",
    [
        lambda: tf.nn.relu(tf.constant(1.0), 3),
        lambda: tf.constant(1.0, name=3),
        lambda: tf.placeholder(tf.float32, [], 3),
        lambda: tf.Variable(1.0, name=3),
        lambda: tf.name_scope(3).__enter__(),
    ],
)
def test_a_name_that_is_not_a_string(call):
    with pytest.raises(
        DTypeError, match=rf"\({HERE}\): (operation name|name scope): expected a string; got 3"
    ):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: tf.constant([[1], [2, 3]], name="c"),
            r"'c' \(HERE\): expected nested lists of equal lengths",
        ),
        (
            lambda: tf.constant([1, 2], shape=[1]),
            r"'Const' \(HERE\): expected values of shape \[1\]; got shape \[2\]",
        ),
        (lambda: tf.constant(1.5, tf.int32), r"'Const' \(HERE\): expected int32; got 1\.5"),
        (
            lambda: tf.placeholder(tf.float32, "a"),
            r"Placeholder 'Placeholder' \(HERE\): attribute 'shape': expected",
        ),
        (lambda: tf.zeros(["a"]), r"'zeros' \(HERE\): expected a dimension"),
        (
            lambda: tf.pad([1], [[1, 1]], "EDGE"),
            r"\(HERE\): pad: expected mode CONSTANT, REFLECT or SYMMETRIC",
        ),
        (
            lambda: tf.layers.conv2d(tf.zeros([1, 3, 3, 1]), 2, 3, padding="full"),
            r"\(HERE\): padding: expected valid",
        ),
        (lambda: tf.losses.mean_squared_error([1], [1, 2]), r"\(HERE\): mean_squared_error: expected labels"),
        (lambda: tf.get_variable("v"), r"\(HERE\): variable 'v': expected a shape"),
    ],
)
def test_an_error_of_an_argument_names_the_line(call, message):
    with pytest.raises(InvalidArgumentError, match=message.replace("HERE", HERE)):
        call()


def branch(t):
    return 1 if t > 0 else 2


def loop(t):
    while t < 3:
        t += 1


def rows(t):
    for _ in t:
        pass


CONTROL_FLOW = {
    "if": (branch, "no truth value.*cond.* for if"),
    "while": (loop, "no truth value.*while_loop.* for while"),
    "and": (lambda t: t > 0 and t < 3, "no truth value.*logical_and.* for and, or and not"),
    "not": (lambda t: not t, "no truth value.*logical_not"),
    "for": (rows, "cannot be iterated.*map_fn.* scan.* unstack"),
    "range": (range, "not a Python integer.*while_loop.* for range"),
    "index": (lambda t: ["a", "b"][t], "not a Python integer.*gather.* for an index"),
}


@pytest.mark.parametrize(("use", "message"), CONTROL_FLOW.values(), ids=list(CONTROL_FLOW))
def test_python_control_flow_of_a_tensor_says_what_to_use_and_where(use, message):
    t = tf.constant(1, name="x")
    with pytest.raises(DTypeError, match=rf"^\({HERE}\): Tensor '\S+:0' .*{message}") as caught:
        use(t)
    assert "function(autograph=True)" in caught.value.message


@pytest.mark.parametrize(
    ("value", "use", "message"),
    [
        ([1.0, 2.0], bool, r"truth value: expected one element; got shape \[2\]. Use .*where.*reduce_all"),
        ([], bool, r"truth value: expected one element; got shape \[0\]. Use .*reduce_all"),
        ("yes", bool, r"truth value: expected a bool or a number; got string. Use flowrt.equal\(\)"),
        ([1, 2], range, r"Python integer: expected one element; got shape \[2\]"),
    ],
)
@pytest.mark.parametrize("trace", [lambda f: f, tf.function], ids=["graph", "trace"])
def test_what_is_no_truth_and_no_integer_whatever_its_value_is(value, use, message, trace):
    x = tf.constant(value, name="x")
    with pytest.raises(DTypeError, match=rf"Tensor 'x:0' (has no|is not a) {message}") as caught:
        trace(lambda: use(x))()
    assert "no values yet" not in caught.value.message


def test_converted_code_is_not_told_to_convert():
    n = tf.placeholder(tf.int32, [])

    def first_or_second(n):
        return tf.constant([1, 2][n])

    def nested(n):
        return tf.cond(n > 0, lambda: first_or_second(n), lambda: n)

    for program in (first_or_second, nested):
        with pytest.raises(DTypeError, match=r"integer.*autograph has not converted this") as caught:
            tf.function(program, autograph=True)(n)
        assert "flowrt.functions.function(autograph=True)" not in caught.value.message
    with pytest.raises(DTypeError, match=r"not a Python integer.*function\(autograph=True\)"):
        tf.function(first_or_second)(n)


def test_the_length_of_a_tensor():
    with pytest.raises(DTypeError, match=rf"^\({HERE}\): Tensor 'x:0' has no len\(\): use .shape"):
        len(tf.constant([1], name="x"))


@pytest.mark.parametrize("make", [tf.constant, tf.Variable])
def test_an_array_to_the_left_of_an_operator_is_no_mistake(make):
    a, b = np.array([3.0, 5.0]), np.array([2.0, 4.0])
    t = make(b)
    cases = [
        (a + t, a + b), (a - t, a - b), (a * t, a * b), (a / t, a / b), (a // t, a // b), (a % t, a % b),
        (a**t, a**b), (a < t, a < b), (a <= t, a <= b), (a > t, a > b), (a >= t, a >= b),
        (np.float64(3) * t, 3 * b), (np.float64(3) - t, 3 - b), (np.float64(3) ** t, 3**b),
        (np.float64(3) < t, b > 3), (np.float64(3) / t, 3 / b),
    ]  # fmt: skip
    assert all(isinstance(tensor, tf.Tensor) for tensor, _ in cases)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for got, (_, expected) in zip(session.run([tensor for tensor, _ in cases]), cases, strict=True):
            np.testing.assert_array_equal(got, expected)
    assert ((a == t), (a != t)) == (False, True)


def test_integers_and_matrices_to_the_left_of_an_operator_are_no_mistake():
    a, t = np.array([[6, 3], [1, 2]]), tf.constant([[3, 5], [1, 7]], tf.int64)
    b = np.array([[3, 5], [1, 7]])
    with tf.Session() as session:
        for got, expected in ((a @ t, a @ b), (a & t, a & b), (a | t, a | b), (a ^ t, a ^ b)):
            np.testing.assert_array_equal(session.run(got), expected)


@pytest.mark.parametrize("convert", [float, int, math.sqrt])
def test_a_tensor_taken_for_a_number(convert):
    with pytest.raises(DTypeError, match=r"Tensor 'x:0' has no value yet"):
        convert(tf.constant(1.0, name="x"))


def test_an_assignment_to_an_element():
    t = tf.constant([1.0], name="x")
    with pytest.raises(DTypeError, match=r"'x:0' is immutable.*tensor_scatter_nd_update.*assign"):
        t[0] = 2


# --- shapes


def test_a_value_that_a_shape_rule_cannot_read_is_short_in_the_message():
    x = tf.constant(np.arange(10_000.0))
    with pytest.raises(InvalidArgumentError) as caught:
        tf.transpose(x, np.zeros((1, 30), np.int32))
    assert re.search(r"x: float64\[10000\], perm: int32\[1, 30\]=\(\(0, 0, [0, ]{52}\)$", str(caught.value))


def test_a_matrix_times_a_vector():
    with pytest.raises(InvalidArgumentError, match=r"b: expected a matrix; got shape \[3\]"):
        tf.matmul(tf.ones([2, 3]), tf.ones([3]))


@pytest.mark.parametrize(
    ("b", "transpose_b", "helps"),
    [([4, 2], False, False), ([2, 4], False, True), ([4, 3], False, True), ([3, 4], True, True)],
)
def test_transposing_is_proposed_where_it_would_help(b, transpose_b, helps):
    for rows in (None, 2):
        a = tf.placeholder(tf.float32, [rows, 3])
        with pytest.raises(InvalidArgumentError, match=r"expected a \[m, k\] and b \[k, n\]") as caught:
            tf.matmul(a, tf.ones(b), transpose_b=transpose_b)
        only_a_helps = b == [2, 4] and rows is None
        assert ("Transpose one?" in str(caught.value)) == (helps and not only_a_helps)


def test_a_bias_of_another_length():
    with pytest.raises(
        InvalidArgumentError, match=r"bias: expected one element for each of the 3 ch.*; got 4"
    ):
        tf.nn.bias_add(tf.ones([1, 3]), tf.ones([4]))
    with pytest.raises(InvalidArgumentError, match=r"bias: expected a vector; got shape \[1, 3\]"):
        tf.nn.bias_add(tf.ones([1, 3]), tf.ones([1, 3]))


# --- sessions


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device_count": 2}, r"ConfigProto device_count: expected a dict like {'CPU': 2}; got 2"),
        ({"device_count": {"CPU": 0}}, r"device_count: expected a dict like"),
        ({"allow_soft_placement": "yes"}, r"allow_soft_placement: expected True or False; got 'yes'"),
        ({"intra_op_parallelism_threads": -1}, r"_threads: expected an integer of at least 0; got -1"),
        ({"operation_timeout_in_ms": 1.5}, r"_in_ms: expected an integer; got 1\.5"),
        ({"operation_timeout_in_ms": -5}, r"_in_ms: expected an integer of at least 0; got -5"),
        ({"gpu_options": {}}, r"gpu_options: expected a GPUOptions; got {}"),
    ],
)
def test_a_setting_of_the_wrong_kind(fields, message):
    with pytest.raises(InvalidArgumentError, match=message):
        tf.ConfigProto(**fields)


@pytest.mark.parametrize("fraction", [0, -1, 2.0, float("nan"), float("inf")])
def test_a_share_of_a_gpu_that_is_no_share(fraction):
    message = (
        rf"^GPUOptions per_process_gpu_memory_fraction: expected a number above 0, up to 1; got {fraction}$"
    )
    with pytest.raises(InvalidArgumentError, match=message):
        tf.GPUOptions(per_process_gpu_memory_fraction=fraction)


@pytest.mark.parametrize("limits", [["a"], [1.5], [True], [0], [-5], [40, 0], [None]])
def test_a_limit_of_a_virtual_device_that_is_no_size(limits):
    with pytest.raises(InvalidArgumentError) as caught:
        VirtualDevices(memory_limit_mb=limits)
    expected = "expected a list of integers of at least 1"
    assert str(caught.value) == f"VirtualDevices memory_limit_mb: {expected}; got {limits}"


@pytest.mark.parametrize(
    "virtual",
    [[3], [None], [VirtualDevices(memory_limit_mb=[1, 2], priority=[1])], [VirtualDevices(priority=[1])]],
)
def test_virtual_devices_that_are_none(virtual):
    with pytest.raises(InvalidArgumentError) as caught:
        tf.GPUOptions.Experimental(virtual_devices=virtual)
    expected = "expected a list of VirtualDevices, each with as many priorities as limits or none"
    assert str(caught.value) == f"GPUExperimental virtual_devices: {expected}; got {virtual}"


@pytest.mark.parametrize("priority", [["a"], [1.5], [True]])
def test_a_priority_that_is_no_number(priority):
    with pytest.raises(InvalidArgumentError, match="VirtualDevices priority: expected a list of integers"):
        VirtualDevices(priority=priority)


def test_settings_of_the_right_kind_are_no_mistake():
    tf.ConfigProto(
        device_count={"GPU": 0, "CPU": 2}, device_filters=("/job:ps",), inter_op_parallelism_threads=-1
    )
    tf.GPUOptions(per_process_gpu_memory_fraction=1)
    tf.GPUOptions(per_process_gpu_memory_fraction=np.float32(0.5))
    tf.GPUOptions.Experimental(
        virtual_devices=[VirtualDevices(priority=[0, 1], memory_limit_mb=(1, np.int64(2)))]
    )
    tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0)


def test_a_config_or_a_graph_as_the_first_argument_of_a_session(graph):
    with pytest.raises(DTypeError, match="the first argument is the target; pass config="):
        tf.Session(tf.ConfigProto())
    with pytest.raises(DTypeError, match="the first argument is the target; pass graph="):
        tf.Session(graph)


def test_an_operation_as_a_feed():
    x = tf.placeholder(tf.float32, name="x")
    with tf.Session() as session:
        for key in ("x", x.op):
            with pytest.raises(
                DTypeError, match=r"expected a tensor; got the op.* 'x'. Did you mean 'x:0'\?"
            ):
                session.run(x + 1, {key: 1.0})


def test_a_tensor_of_another_graph():
    with tf.Graph().as_default():
        other = tf.constant(1.0)
    with tf.Session() as session, pytest.raises(InvalidArgumentError, match=r"of this graph.*graph=\.\.\."):
        session.run(other)


def test_none_in_place_of_an_operation():
    with pytest.raises(
        DTypeError, match=r"got None. gradients\(\) and summary.merge_all\(\) may return None"
    ):
        tf.get_default_graph().as_graph_element(None)


def test_a_device_that_does_not_exist():
    with tf.device("/gpu:0"):
        x = tf.constant(1.0)
    with tf.Session() as session:
        with pytest.raises(
            InvalidArgumentError, match="allow_soft_placement=True moves it to an existing device"
        ):
            session.run(x)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        assert session.run(x) == 1


def test_a_gpu_where_there_is_none(monkeypatch):
    monkeypatch.setattr(cuda, "_reason_against_cuda", lambda: "the driver is on holiday")
    with tf.device("/gpu:0"):
        x = tf.constant(1.0)
    with tf.Session() as session:
        with pytest.raises(
            InvalidArgumentError, match=r"CPU:0\. There is no GPU: the driver is on holiday\."
        ):
            session.run(x)


# --- checkpoints


@pytest.fixture
def saved(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        for i in range(7):
            tf.Variable(0.0, name=f"weights{i}")
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(tmp_path / "m"))


def test_a_directory_or_a_file_in_place_of_a_checkpoints_prefix(saved, tmp_path):
    tf.Variable(0.0, name="weights0")
    with tf.Session() as session:
        with pytest.raises(InvalidArgumentError, match=r"a directory\. Use latest_checkpoint\(directory\)"):
            tf.train.Saver().restore(session, str(tmp_path))
        with pytest.raises(InvalidArgumentError, match=r"remove '\.index\.json' from it"):
            tf.train.Saver().restore(session, saved + ".index.json")


def test_a_variable_that_a_checkpoint_has_not(saved):
    tf.Variable(0.0, name="zzz")
    names = ", ".join(f"weights{i}" for i in range(5))
    with tf.Session() as session, pytest.raises(NotFoundError, match=rf"'zzz'\. It has {names} and 2 more$"):
        tf.train.Saver().restore(session, saved)


def test_a_saver_of_something_else(tmp_path):
    for given in ({"a": 1}, [1], 1, tf.Variable(0.0)):
        with pytest.raises(DTypeError, match=r"Saver: expected .*variables; got"):
            tf.train.Saver(given)
    with pytest.raises(DTypeError, match="save: expected a session first; got None"):
        tf.train.Saver().save(None, str(tmp_path / "m"))


def test_saving_before_initializing_names_the_variables_line(tmp_path):
    tf.Variable(0.0, name="w")
    with tf.Session() as session, pytest.raises(FailedPreconditionError) as caught:
        tf.train.Saver().save(session, str(tmp_path / "m"))
    assert "test_user_mistakes.py:" in str(caught.value)
    assert "'w' has no value yet" in str(caught.value)


# --- layers, data, names


def test_an_activation_by_name():
    x = tf.constant([[-1.0, 2.0]])
    same = tf.layers.dense(x, 2, "relu", kernel_initializer=tf.constant_initializer([[1.0, 0.0], [0.0, 1.0]]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(same), [[0, 2]])
    with pytest.raises(DTypeError, match=r"function of flowrt\.nn; got 'rellu'. Nearest: relu"):
        tf.layers.conv2d(tf.ones([1, 3, 3, 1]), 1, 3, activation="rellu")
    with pytest.raises(DTypeError, match=r"expected a function or the name of one in flowrt\.nn; got 3"):
        tf.layers.dense(x, 2, 3)


def test_a_mistyped_argument_of_a_layer():
    with pytest.raises(DTypeError, match=rf"{HERE}\): layers\.conv2d: .*'activaton'\. Nearest: activation"):
        tf.layers.conv2d(tf.ones([1, 3, 3, 1]), 1, 3, activaton=tf.nn.relu)
    with pytest.raises(DTypeError, match=rf"{HERE}\): layers\.dense: .*required argument: 'inputs'\.$"):
        tf.layers.dense()


def test_an_axis_that_was_not_given_as_a_tensor_is_not_told_as_an_input():
    x = tf.ones([5])
    with pytest.raises(InvalidArgumentError, match=r"2 equal parts; got 5; inputs are \(float32\[5\]\)$"):
        tf.split(x, 2)
    with pytest.raises(InvalidArgumentError, match=r"; inputs are \(float32\[5\], float32\[5, 2\]\)$"):
        tf.concat([x, tf.ones([5, 2])], 0)
    with pytest.raises(
        InvalidArgumentError, match=r"vector; got shape \[1, 1\]; inputs are \(float32\[\]\)$"
    ):
        tf.fill([[1]], 1.0)
    fed = tf.placeholder(tf.float32)
    with tf.Session() as session:
        with pytest.raises(InvalidArgumentError, match=r"; inputs are \(float32\[3\]\)$"):
            session.run(tf.split(fed, 2), {fed: [1, 2, 3]})


def test_a_message_does_not_end_in_a_blank_when_no_name_is_near():
    for call in (lambda: tf.qqqqqqqq, lambda: tf.get_default_graph().get_operation_by_name("q")):
        with pytest.raises((AttributeError, NotFoundError), match=r"\.$"):
            call()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("my text"), InvalidArgumentError),
        (KeyError("my text"), UnknownError),
        (OSError("my text"), UnknownError),
        (NotFoundError("my text"), NotFoundError),
    ],
)
def test_a_generator_that_fails(error, kind):
    def generator():
        yield 1
        raise error

    element = tf.data.Dataset.from_generator(generator, tf.int32, []).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert session.run(element) == 1
        with pytest.raises(kind, match=rf"generator raised {type(error).__name__}: .*my text") as caught:
            session.run(element)
    assert caught.value.__cause__ is error


# --- names


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("config.experimental.get_memory_info", r"separate pools\. Instead: Session\.devices"),
        ("config.experimental.set_virtual_device_configuration", r"Instead: .*virtual_devices"),
        ("contrib.tpu.shard", "there are no TPUs"),
        ("config.experimental.set_memory_groth", r"Nearest: config\.experimental\.set_memory_growth$"),
        ("contrib.tpu.infeed_enque", r"no such name\. Nearest: contrib\.tpu\.infeed_enqueue,"),
        ("datasett", r"no such name\. Nearest: data$"),
        ("confg", r"no such name\. Nearest: config, conj, cond$"),
    ],
)
def test_a_name_that_there_is_not(path, message):
    *modules, name = path.split(".")
    module = tf
    for part in modules:
        module = getattr(module, part)
    with pytest.raises(AttributeError, match=rf"^flowrt\.{re.escape(path)}: .*{message}"):
        getattr(module, name)


# --- dtypes and values


def test_a_matrix_of_another_dtype_is_told_with_operation_and_line():
    with pytest.raises(DTypeError) as caught:
        tf.matmul(tf.ones([2, 2]), tf.constant([[1, 2], [3, 4]]))
    expected = r"expected dtype float32; got tensor 'Const:0' of dtype int32\. Use flowrt\.cast\(\)"
    assert re.fullmatch(rf"'MatMul/b' \({HERE}\): {expected}", caught.value.message)


@pytest.mark.parametrize("make", [tf.Variable, tf.convert_to_tensor, tf.stack])
def test_a_ragged_list_is_told_with_the_line(make):
    with pytest.raises(
        InvalidArgumentError, match=rf"\({HERE}\): expected nested lists of equal lengths; got"
    ):
        make([[1, 2], [3]])


def test_a_masked_array_loses_nothing_unseen():
    masked, x = np.ma.array([1.0, 2.0, 3.0], np.float32, mask=[0, 1, 0]), tf.placeholder(tf.float32, [3])
    message = r"expected an array without masked elements; got 1 of 3\. Use filled\(\)"
    with pytest.raises(InvalidArgumentError, match=message):
        tf.constant(masked)
    with tf.Session() as session:
        with pytest.raises(InvalidArgumentError, match=message):
            session.run(x, {x: masked})
        unmasked = np.ma.array([1.0, 2.0, 3.0], np.float32)
        np.testing.assert_array_equal(session.run(x, {x: unmasked}), [1, 2, 3])


# --- devices


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu:0", "/device:CPU:0"),
        ("gpu:1", "/device:GPU:1"),
        ("cpu", "/device:CPU:*"),
        ("CPU:0", "/device:CPU:0"),
        ("job:a/task:1/cpu:0", "/job:a/task:1/device:CPU:0"),
        ("device:NULL:0", "/device:NULL:0"),
    ],
)
def test_the_first_slash_of_a_device_may_be_left_out(text, device):
    with tf.device(text):
        assert tf.constant(1).device == device


@pytest.mark.parametrize("chosen", [3, 0, ["/cpu:0"]])
def test_a_device_function_that_returns_no_device(chosen):
    with tf.device(lambda op: chosen), pytest.raises(DTypeError) as caught:
        tf.constant(1, name="x")
    expected = f"device function: expected a device's name, a DeviceSpec or None; got {chosen!r}"
    assert re.fullmatch(rf"Const 'x' \({HERE}\): {re.escape(expected)}", caught.value.message)


@pytest.mark.parametrize(
    ("device", "hint"),
    [("/cpu:1", "device_count={'CPU': 2}"), ("/device:NULL:0", "device_count={'NULL': 1}")],
)
def test_a_device_that_a_session_can_have(device, hint):
    with tf.device(device):
        y = tf.constant(1.0) * 2
    with tf.Session() as session:
        with pytest.raises(
            InvalidArgumentError, match=rf"ConfigProto\({re.escape(hint)}\) of the session.* creates it\."
        ):
            session.run(y)


@pytest.mark.parametrize("device", ["/device:TPU:0", "/job:x/cpu:0", "/job:x/cpu:1"])
def test_a_device_that_no_session_can_have(device):
    with tf.device(device):
        y = tf.constant(1.0) * 2
    with tf.Session() as session:
        with pytest.raises(InvalidArgumentError) as caught:
            session.run(y)
    assert "creates it" not in caught.value.message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tf.GPUOptions(allocator_type="BFX"),
            "allocator_type: expected 'BFC', or '' for the same; got 'BFX'",
        ),
        (lambda: tf.RunOptions(trace_level=99), "trace_level: expected a level of RunOptions.*; got 99"),
        (lambda: tf.RunOptions(trace_level=-1), "trace_level: expected a level of RunOptions.*; got -1"),
    ],
)
def test_a_setting_that_there_is_not(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x: tf.set_random_seed("a"), "set_random_seed: expected an integer; got 'a'"),
        (lambda x: tf.layers.dense(x, "a"), "Dense: units: expected an integer >= 0; got 'a'"),
        (lambda x: tf.layers.dense(x, 2.5), "Dense: units: expected .*; got 2.5"),
        (lambda x: tf.layers.dense(x, -2), "Dense: units: expected .*; got -2"),
        (lambda x: tf.layers.conv1d(x, "a", 1), "Conv1D: filters: expected .*; got 'a'"),
        (lambda x: tf.train.batch([x], 0), "batch: expected batch_size to be an integer >= 1; got 0"),
        (lambda x: tf.train.batch([x], "a"), "batch: expected batch_size to be an integer >= 1; got 'a'"),
        (lambda x: tf.train.batch([x], 1, num_threads=0), "batch: expected num_threads to be .*; got 0"),
        (lambda x: tf.train.replica_device_setter(ps_tasks=-1), "expected ps_tasks to be .*; got -1"),
        (lambda x: tf.train.replica_device_setter(ps_tasks="a"), "expected ps_tasks to be .*; got 'a'"),
    ],
)
def test_a_number_that_is_none_is_told_at_the_call(use, message):
    x = tf.placeholder(tf.float32, [2, 3, 4], name="x")
    before = len(tf.get_default_graph().get_operations())
    with pytest.raises(InvalidArgumentError, match=message):
        use(x)
    assert len(tf.get_default_graph().get_operations()) == before


def test_units_may_come_of_a_division():
    assert tf.layers.dense(tf.zeros([2, 3]), 8 / 2).shape == [2, 4]


@pytest.mark.parametrize(
    ("fetches", "feed_dict", "message"),
    [
        ("z:0", None, "fetches: expected the name of a tensor of the graph; got 'z:0'"),
        (
            "totl:0",
            None,
            "fetches: expected the name of a tensor of the graph; got 'totl:0'. Nearest: total:0",
        ),
        (
            ["totl"],
            None,
            "fetches[0]: expected the name of an operation of the graph; got 'totl'. Nearest: total",
        ),
        (
            "total:1",
            None,
            "fetches: expected the name of a tensor of the graph; got 'total:1'. Nearest: total:0",
        ),
        (
            "total:0",
            {"inptu:0": 1},
            "feed_dict: expected the name of a tensor of the graph; got 'inptu:0'. Nearest: input:0",
        ),
        (
            "total:0",
            {"input": 1},
            "feed_dict: expected a tensor; got the operation 'input'. Did you mean 'input:0'?",
        ),
        ("total:0", {3: 1}, "feed_dict: expected a Tensor or its name; got 3"),
    ],
)
def test_a_name_that_the_graph_has_not(fetches, feed_dict, message):
    total = tf.identity(tf.placeholder(tf.int32, [], name="input"), name="total")
    with tf.Session() as session:
        with pytest.raises((NotFoundError, DTypeError)) as caught:
            session.run(fetches, feed_dict)
        assert re.fullmatch(rf"\({HERE}\): {re.escape(message)}", caught.value.message)
        assert session.run(total, {"input:0": 2}) == 2


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("float32", ["a", "b"], r"expected float32\[\?\]; got \['a', 'b'\], a list of dtype <U1"),
        ("int32", [1.5, 2], r"expected int32\[\?\]; got \[1\.5, 2\]: values of dtype float64"),
        ("float32", [[1.5, 2], [3]], r"rectangular array; got the ragged sequence \[\[1\.5, 2\], \[3\]\]"),
        ("float32", 5, r"expected float32 of shape \[\?\]; got 5\. of shape \[\]"),
        ("float32", np.zeros((50, 50)), r"got \[\[0\. 0\. \.\.\. 0\. 0\.\] .{,60}\.\.\. of shape \[50, 50\]"),
    ],
)
def test_a_refused_feed_is_shown(dtype, value, message):
    x = tf.placeholder(dtype, [None], name="x")
    with tf.Session() as session, pytest.raises(InvalidArgumentError, match=message) as caught:
        session.run(x, {x: value})
    assert caught.value.message.startswith("Placeholder 'x' (")


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x, other: x + other, "AddV2 .*broadcast together; got"),
        (lambda x, other: tf.exp(x) < other, "Less .*broadcast together; got"),
        (lambda x, other: tf.where(x > 0, x, other), "SelectV2 .*broadcast together; got"),
        (lambda x, other: tf.stack([x, other]), "Pack .*values of the same shape; got"),
        (lambda x, other: tf.concat([x, other], 1), "ConcatV2 .*equal shapes except along axis 1; got"),
    ],
)
@pytest.mark.parametrize("make", [tf.constant, tf.Variable])
def test_a_fed_shape_that_does_not_fit_what_is_known(make, use, message):
    x, other = tf.placeholder(tf.float32, [None, 4]), make(np.zeros((3, 4), np.float32))
    result = use(x, other)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(InvalidArgumentError, match=rf"{message} \[5, 4\]\D+\[3, 4\]") as caught:
            session.run(result, {x: np.zeros((5, 4))})
        assert re.search(HERE, caught.value.message)
        assert session.run(result, {x: np.zeros((3, 4))}).shape[-1] in (4, 8)


@pytest.mark.parametrize(
    "layer",
    [
        lambda x: tf.contrib.layers.fully_connected(x, 3),
        lambda x: tf.contrib.layers.conv2d(x, 3, 3),
        lambda x: tf.contrib.layers.conv2d_transpose(x, 3, 3),
        tf.contrib.layers.flatten,
        tf.contrib.layers.bias_add,
        tf.contrib.layers.batch_norm,
        lambda x: tf.layers.dense(x, 3),
    ],
)
@pytest.mark.parametrize("shape", [None, []])
def test_a_layer_of_inputs_of_too_few_facts_names_itself_and_the_line(layer, shape):
    with pytest.raises(InvalidArgumentError, match=rf"^\({HERE}\): (layer '\w+'|\w+): expected .*inputs"):
        layer(tf.placeholder(tf.float32, shape))


def test_a_mask_that_does_not_fit_is_told_with_both_shapes_and_the_line():
    with pytest.raises(
        InvalidArgumentError, match=rf"^\({HERE}\): boolean_mask: .* shape \[2, 3\] and a mask of shape \[3\]"
    ):
        tf.boolean_mask(np.zeros((2, 3)), [True, False, True])


@pytest.mark.parametrize("index", [0.5, "a", np.float32(1)])
def test_an_index_that_is_no_integer_is_an_error_with_the_line(index):
    x = tf.constant([1.0, 2.0])
    with pytest.raises(DTypeError, match=rf"^\({HERE}\): tensor\[\.\.\.\]: expected ints, .*; got "):
        x[index]
    with pytest.raises(DTypeError, match=rf"^\({HERE}\): Tensor '\w+:0' is immutable: .*tensor_scatter_nd"):
        x[0] = 3.0


def test_a_mistyped_dtype_has_the_nearest_name():
    for use in (tf.placeholder, lambda dtype: tf.cast(1, dtype), lambda dtype: tf.zeros([2], dtype)):
        with pytest.raises(DTypeError, match=r"; got 'flaot32'\. Nearest: float32"):
            use("flaot32")


def test_a_placement_error_does_not_show_the_type_that_folding_gave_an_operation():
    with tf.device("/cpu:3"):
        total = tf.add(1.0, 2.0, name="total")
    with tf.Session() as session:
        with pytest.raises(InvalidArgumentError, match=rf"^'total' \({HERE}\): expected a device that exist"):
            session.run(total)


def test_restoring_what_is_not_there_names_the_line(tmp_path):
    tf.get_variable("v", [2])
    saver = tf.train.Saver()
    with tf.Session() as session:
        for prefix in (str(tmp_path / "model"), tf.train.latest_checkpoint(str(tmp_path))):
            with pytest.raises(InvalidArgumentError, match=rf"^\({HERE}\): restore: expected .*prefix"):
                saver.restore(session, prefix)


def test_a_missing_module_of_compat_v1_says_what_to_use() -> None:
    with pytest.raises(ModuleNotFoundError, match="created by public functions only"):
        importlib.import_module("flowrt.compat.v1.raw_ops")


def test_what_is_no_variable_is_not_assigned_to() -> None:
    x = tf.placeholder(tf.float32, [3], name="x")
    for change in (tf.assign, tf.assign_add, tf.assign_sub):
        with pytest.raises(
            tf.errors.DTypeError, match=r"test_user_mistakes.*expected a variable; got .*'x:0'"
        ):
            change(x, [1.0, 2.0, 3.0])


def test_a_dataset_is_read_by_an_iterator() -> None:
    with pytest.raises(tf.errors.DTypeError, match=r"cannot be iterated.*make_one_shot_iterator"):
        list(tf.data.Dataset.range(3))


def test_a_cast_is_advised_only_where_there_is_one():
    with pytest.raises(DTypeError, match=r"got string$"):
        tf.constant(1.0) + tf.constant(["a"])
    with pytest.raises(DTypeError, match=r"got int32\. Use flowrt\.cast\(\)$"):
        tf.constant(1.0) + tf.constant([1])
