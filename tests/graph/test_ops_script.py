"""Groups, Python functions, printing, assertions, strings."""

from __future__ import annotations

import base64
import gc
import sys
from typing import Any

import numpy as np
import pytest

import flowrt.graph.ops.surface.all  # noqa: F401  (an op of one module may use ops of later ones)
from flowrt import dtypes
from flowrt.errors import (
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    UnimplementedError,
    UnknownError,
)
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Operation
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.evaluate import evaluate, evaluate_node
from flowrt.graph.node import Subgraph
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.text import assertions
from flowrt.graph.ops.text.assertions import Assert, add_check_numerics_ops, check_numerics
from flowrt.graph.ops.text.formatting import as_string, string_format, summarize_value
from flowrt.graph.ops.text.python_calls import (
    Print,
    group,
    no_op,
    numpy_function,
    print_,
    py_func,
    timestamp,
    tuple_,
    with_dependencies,
)
from flowrt.graph.ops.text.strings import (
    decode_base64,
    decode_raw,
    encode_base64,
    reduce_join,
    regex_replace,
    string_join,
    string_length,
    string_lower,
    string_strip,
    string_to_number,
    string_upper,
    substr,
)
from tests.graph.evaluation import value_of, values_of


@pytest.fixture(autouse=True)
def graph() -> Any:
    with Graph() as g:
        yield g


def run(op: Operation) -> None:
    """Run ``op`` and everything before it."""
    stack, needed = [op], set()
    while stack:
        current = stack.pop()
        needed.add(current.name)
        stack += [x.op for x in current.inputs] + list(current.control_inputs)
    nodes = {o.name: o.node for o in op.graph.get_operations() if o.name in needed}
    states: dict[str, Any] = {}

    def state(node: Any) -> Any:
        if node.name not in states:
            states[node.name] = node.op.state(node)
        return states[node.name]

    evaluate(Subgraph(nodes, targets=(op.name,)), {}, state)


def test_the_interpreter_refuses_what_keeps_a_state_without_it() -> None:
    tensor = numpy_function(lambda: True, [], dtypes.bool_, stateful=False)
    with pytest.raises(InvalidArgumentError, match="run it in a session"):
        evaluate_node(tensor.op.node, [])


# --- order


def test_group_waits_for_everything_in_a_nest() -> None:
    a, b, c = constant(1), constant(2), no_op()
    gate = group([a, {"k": b}], c)
    assert gate.type == "NoOp"
    assert gate.name == "group_deps"
    assert set(gate.control_inputs) == {a.op, b.op, c}


def test_group_gathers_on_each_device_first(graph: Graph) -> None:
    with graph.device("/cpu:0"):
        a, b = no_op(), no_op()
    with graph.device("/cpu:1"):
        c = no_op()
    gate = group(a, b, c, name="step")
    assert gate.name == "step"
    by_device = {g.device: set(g.control_inputs) for g in gate.control_inputs}
    assert by_device == {a.device: {a, b}, c.device: {c}}


def test_group_of_nothing_is_a_no_op_and_of_something_else_an_error() -> None:
    assert group().control_inputs == ()
    with pytest.raises(DTypeError, match="expected a Tensor or an Operation"):
        group(3)


def test_tuple_makes_every_tensor_wait_for_all() -> None:
    a, b, extra = constant(1.0), constant(2.0), no_op()
    x, none, y = tuple_([a, None, b], control_inputs=[extra])
    assert none is None
    assert values_of([x, y]) == [1, 2]
    (gate,) = x.op.control_inputs
    assert y.op.control_inputs == (gate,)
    assert set(gate.control_inputs) == {a.op, b.op, extra}
    with pytest.raises(InvalidArgumentError, match="at least one"):
        tuple_([None])


def test_tuple_keeps_sparse_gradients_sparse_and_operations_operations() -> None:
    sparse = IndexedSlices(constant([[1.0]]), constant([0]), constant([2, 1]))
    x, op = tuple_([sparse, no_op()])
    assert isinstance(x, IndexedSlices)
    assert isinstance(op, Operation)


def test_with_dependencies_waits_and_passes_gradients() -> None:
    x, before = constant(2.0), no_op()
    y = with_dependencies([before], x)
    assert before in y.op.control_inputs
    assert value_of(gradients(y, x)[0]) == 1


def strings(*values: bytes) -> Any:
    """A constant vector, made so that NumPy cannot drop zero bytes at the end."""
    array = np.empty(len(values), object)
    array[:] = values
    return constant(array)


# --- Python functions


def test_py_func_gets_arrays_and_returns_what_it_says() -> None:
    x = constant([1.0, 2.0])
    y = py_func(lambda a, n: a * n, [x, np.float32(3)], dtypes.float32)
    assert y.dtype is dtypes.float32
    assert y.shape.rank is None
    np.testing.assert_array_equal(value_of(y), [3, 6])


def test_py_func_returns_a_list_for_a_list_of_dtypes_and_an_operation_for_none() -> None:
    a, b = py_func(lambda: (1, [2.5, 3.5]), [], ["int64", "float32"])
    one, many = values_of([a, b])
    assert one == 1
    assert many.dtype == np.float32
    (single,) = py_func(lambda: [7], [], ["int32"])
    assert value_of(single) == 7
    calls: list[int] = []
    op = py_func(lambda: calls.append(1), [], [])
    assert isinstance(op, Operation)
    run(op)
    assert calls == [1]


def test_py_func_gets_scalars_as_values_that_can_be_keys_and_names() -> None:
    """As in TensorFlow: a path to be opened, a number to look something up by."""
    number = py_func(lambda k: {2: 5.0}[k], [constant(2)], "float32")
    assert value_of(number) == 5.0
    kinds = [py_func(lambda x: type(x).__name__, [x], "string") for x in (constant("a"), constant(1.5))]
    assert [kind.item() for kind in values_of(kinds)] == [b"bytes", b"float32"]


def test_py_func_takes_and_returns_strings() -> None:
    upper = py_func(lambda s: s.upper(), [constant("abc")], dtypes.string)
    assert value_of(upper).item() == b"ABC"
    several = numpy_function(
        lambda s: np.array([t + b"!" for t in s], object), [strings(b"a", b"b\0")], dtypes.string
    )
    assert value_of(several).tolist() == [b"a!", b"b\0!"]


def test_py_func_cannot_change_its_inputs_and_may_change_its_results_later() -> None:
    def spoil(a: Any) -> Any:
        a[0] = 5.0
        return a

    with pytest.raises(InvalidArgumentError, match="read-only"):
        value_of(py_func(spoil, [constant([1.0])], "float32"))
    kept = np.zeros(2, np.float32)
    result = value_of(py_func(lambda: kept, [], "float32"))
    kept[:] = 9
    assert result.tolist() == [0, 0]


@pytest.mark.parametrize(
    "function, Tout, message",
    [
        (lambda: np.float64(1), "float32", "expected dtype float32; got float64"),
        (lambda: 1.5, "int32", "expected int32"),
        (lambda: (1, 2), ["int32"], "2 values"),
        (lambda: None, "float32", "got None"),
        (lambda: 1, ["int32", "int32"], "expected .*lambda.* to return int32, int32; got 1 values"),
        (lambda: [[[1], [1, 2]]], "int32", "lists of equal lengths"),
        (lambda: [1, 2], "int32", "2 values"),
    ],
)
def test_py_func_refuses_results_of_another_kind(function: Any, Tout: Any, message: str) -> None:
    result = py_func(function, [], Tout)
    with pytest.raises(InvalidArgumentError, match=message):
        value_of(result[0] if isinstance(result, list) else result)


@pytest.mark.parametrize(
    "raised, expected",
    [
        (ValueError("bad"), InvalidArgumentError),
        (TypeError("bad"), InvalidArgumentError),
        (StopIteration("bad"), OutOfRangeError),
        (NotImplementedError("bad"), UnimplementedError),
        (ZeroDivisionError("bad"), UnknownError),
    ],
)
def test_what_a_function_raises_is_the_cause_of_the_error(raised: Exception, expected: Any) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(expected, match=f"fail raised {type(raised).__name__}: bad") as caught:
        value_of(py_func(fail, [], "float32"))
    assert caught.value.__cause__ is raised
    assert caught.value.op == "PyFunc"
    assert "test_ops_script.py" in caught.value.source


def test_a_function_lives_as_long_as_its_graph() -> None:
    with Graph() as other:
        y = py_func(lambda: 1, [], "int32")
    node = y.op.node
    assert node.op.state is not None
    assert node.op.state(node).call() == 1
    del y, other
    gc.collect()
    with pytest.raises(FailedPreconditionError, match="expected the Python function"):
        node.op.state(node)


def test_a_stateless_function_is_pure() -> None:
    assert py_func(lambda: 1, [], "int32", stateful=False).op.op_def.is_pure
    assert not py_func(lambda: 1, [], "int32").op.op_def.is_pure
    with pytest.raises(DTypeError, match="expected a function"):
        py_func(3, [], "int32")  # type: ignore[arg-type]


# --- printing


@pytest.mark.parametrize(
    "value, limit, text",
    [
        (np.arange(5.0), 3, "0 1 2..."),
        (np.arange(6).reshape(2, 3), 3, "[0 1 2]..."),
        (np.arange(24).reshape(2, 3, 4), 5, "[[0 1 2 3][4...]]..."),
        (np.arange(4).reshape(2, 2), -1, "[0 1][2 3]"),
        (np.array([True, False]), 3, "1 0"),
        (np.array([b"a", b"b"], object), 3, "a b"),
        (np.float32(1 / 3), 3, "0.333333343"),
        (np.float64(1 / 3), 3, "0.33333333333333331"),
        (np.float32(0.1), 3, "0.1"),
        (np.float32(1e10), 3, "1e+10"),
        (np.float16(1.1), 3, "1.09960938"),
        (np.inf, 3, "inf"),
        (np.zeros((0, 2)), 3, ""),
    ],
)
def test_values_are_summarized_as_tensorflow_does(value: Any, limit: int, text: str) -> None:
    assert summarize_value(value, limit) == text


def test_print_passes_its_input_on_and_writes_the_data(capsys: Any) -> None:
    x = constant([1.0, 2.0])
    y = Print(x, [x, constant("s"), np.arange(5)], message="now ")
    assert value_of(y).tolist() == [1, 2]
    assert capsys.readouterr().err == "now [1 2][s][0 1 2...]\n"
    assert value_of(gradients(y, x)[0]).tolist() == [1, 1]


def test_print_stops_after_the_first_n_times(capsys: Any) -> None:
    y = Print(constant(1), [constant(2)], first_n=2)
    assert y.op.op_def.state is not None
    state = y.op.op_def.state(y.op.node)
    for _ in range(4):
        y.op.op_def.kernel(np, 1, (2,), "", 2, 3, state)
    assert capsys.readouterr().err == "[2]\n[2]\n"


def test_print_v2_formats_tensors_and_plain_values(capsys: Any) -> None:
    run(print_("x:", constant(1.5), constant(["s", "t"]), [constant(1), "two", 3]))
    assert capsys.readouterr().err == 'x: 1.5 ["s" "t"] [1, \'two\', 3]\n'
    run(print_(np.arange(10), "100%s {}", output_stream=sys.stdout, sep="|", end="!"))
    assert capsys.readouterr().out == "[0 1 2 ... 7 8 9]|100%s {}!"
    run(print_(np.arange(8).reshape(2, 2, 2)))
    assert capsys.readouterr().err == "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]\n"


def test_print_v2_appends_to_a_file(tmp_path: Any) -> None:
    op = print_("a", output_stream=f"file://{tmp_path / 'log'}")
    run(op)
    run(op)
    assert (tmp_path / "log").read_text() == "a\na\n"
    with pytest.raises(DTypeError, match="output_stream"):
        print_("a", output_stream=3)


def test_timestamp_moves_on() -> None:
    now = timestamp()
    assert now.dtype is dtypes.float64
    assert value_of(now) <= value_of(now)


# --- assertions


def test_assert_fails_with_the_data() -> None:
    with pytest.raises(InvalidArgumentError, match=r"assertion failed: \[hey\] \[0 1 2\.\.\.\] \[2\]"):
        run(Assert(False, ["hey", np.arange(5), 2.0]))
    run(Assert(True, ["hey"]))


def fed(value: Any) -> Any:
    """A tensor whose value the graph does not know while it is built."""
    return py_func(lambda: np.asarray(value, np.float32), [], "float32")


@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("assert_equal", ([1, 2], [1, 2]), ([1, 2], [1, 3])),
        ("assert_none_equal", ([1, 2], [2, 1]), ([1, 2], [1, 3])),
        ("assert_less", ([1, 2], 3), ([1, 3], 3)),
        ("assert_less_equal", ([1, 3], 3), ([1, 4], 3)),
        ("assert_greater", ([4, 5], 3), ([3, 5], 3)),
        ("assert_greater_equal", ([3, 5], 3), ([2, 5], 3)),
        ("assert_near", ([1, 2], [1, 2 + 1e-7]), ([1, 2], [1, 2.001])),
        ("assert_positive", ([1],), ([0],)),
        ("assert_negative", ([-1],), ([0],)),
        ("assert_non_negative", ([0],), ([-1],)),
        ("assert_non_positive", ([0],), ([1],)),
    ],
)
def test_comparisons_hold_or_fail_when_run(name: str, good: Any, bad: Any) -> None:
    check = getattr(assertions, name)
    run(check(*map(fed, good)))
    failing = check(*map(fed, bad), message="MINE")
    assert failing.name == f"{name}_1/Assert/Assert"
    with pytest.raises(InvalidArgumentError, match=r"assertion failed: .*MINE"):
        run(failing)


def test_comparisons_of_constants_fail_while_the_graph_is_built() -> None:
    message = r"test_ops_script\.py:\d+\): MINE expected x == y .*got x \[1, 2\], y \[1, 3\]"
    with pytest.raises(InvalidArgumentError, match=message):
        assertions.assert_equal([1, 2], [1, 3], message="MINE")
    with pytest.raises(
        InvalidArgumentError, match=r"expected x > 0 for all elements; x is x:0; got \[1, -2\]"
    ):
        assertions.assert_positive([1, -2])
    assert assertions.assert_less(1, 2).type == "NoOp"


@pytest.mark.parametrize(
    "name, good, bad",
    [("assert_rank", 2, 1), ("assert_rank_at_least", 1, 3), ("assert_rank_in", [0, 2], [0, 1])],
)
def test_ranks_are_checked_at_once_where_known_and_otherwise_when_run(name: str, good: Any, bad: Any) -> None:
    check = getattr(assertions, name)
    known, unknown = constant([[1.0]]), fed([[1.0]])
    assert check(known, good).type == "NoOp"
    with pytest.raises(InvalidArgumentError, match=r"expected .*rank.*got Const:0 of shape \[1, 1\]"):
        check(known, bad)
    run(check(unknown, good))
    with pytest.raises(InvalidArgumentError, match=r"assertion failed: \[expected .*rank"):
        run(check(unknown, bad))


def test_dtypes_are_checked_while_the_graph_is_built() -> None:
    x = constant([1.0])
    assertions.assert_type(x, "float32")
    assertions.assert_integer(constant(1))
    assert assertions.assert_same_float_dtype([x, None]) is dtypes.float32
    assert assertions.is_numeric_tensor(x)
    assert not assertions.is_numeric_tensor(constant("s"))
    with pytest.raises(DTypeError, match="expected dtype int32"):
        assertions.assert_type(x, "int32")
    with pytest.raises(DTypeError, match="integer"):
        assertions.assert_integer(x)
    with pytest.raises(DTypeError, match="the same floating dtype"):
        assertions.assert_same_float_dtype([x], "float64")
    with pytest.raises(InvalidArgumentError, match="scalar"):
        assertions.assert_scalar(x)


def test_check_numerics_names_what_it_found() -> None:
    assert value_of(check_numerics([1.0], "here")).tolist() == [1]
    with pytest.raises(InvalidArgumentError, match="here: expected finite values; got Inf and NaN"):
        value_of(check_numerics([np.inf, np.nan], "here"))
    with pytest.raises(InvalidArgumentError, match="got NaN values"):
        value_of(check_numerics([np.nan], "here"))
    x = placeholder("float32", [1])
    with pytest.raises(InvalidArgumentError, match="gradient of: here"):
        value_of(gradients(check_numerics(x, "here"), x, [constant([np.inf])])[0], {x: [1.0]})


def test_add_check_numerics_ops_checks_every_floating_tensor() -> None:
    constant(1), constant([1.0]), constant([np.nan], name="broken")
    with pytest.raises(InvalidArgumentError, match="broken:0"):
        run(add_check_numerics_ops())


# --- strings


def texts(tensor: Any) -> Any:
    return value_of(tensor).tolist()


def test_strings_are_joined_element_by_element_and_along_axes() -> None:
    assert texts(string_join([constant(["a", "b"]), "-", constant(["c", "d"])], "_")) == [b"a_-_c", b"b_-_d"]
    table = constant([["a", "b"], ["c", "d"]])
    assert texts(reduce_join(table, 0, separator="+")) == [b"a+c", b"b+d"]
    assert texts(reduce_join(table)) == b"abcd"
    assert texts(reduce_join(table, [0, 1])) == b"acbd"
    assert texts(reduce_join(table, [1, 0], keep_dims=True)) == [[b"abcd"]]


def test_numbers_are_formatted_as_tensorflow_does() -> None:
    assert texts(as_string([1.5, 3.14159265, 1e10])) == [b"1.500000", b"3.141593", b"10000000000.000000"]
    assert texts(as_string(1.5, precision=2)) == b"1.50"
    assert texts(as_string(1.5, scientific=True)) == b"1.500000e+00"
    assert texts(as_string(1.5, shortest=True)) == b"1.5"
    assert texts(as_string(5, width=4, fill="0")) == b"0005"
    assert texts(as_string(5, width=4, fill="-")) == b"5   "
    assert texts(as_string(True)) == b"true"
    assert texts(as_string(1 + 2j)) == b"(1.000000,2.000000)"
    with pytest.raises(InvalidArgumentError, match="one character"):
        as_string(5, fill="ab")


def test_strings_are_read_as_numbers() -> None:
    assert value_of(string_to_number(["1.5", " 2 ", "1e3", "inf"])).tolist() == [1.5, 2, 1000, np.inf]
    assert value_of(string_to_number(["12"], "int32")).dtype == np.int32
    for text, dtype in (("x", "float32"), ("1.5", "int32"), ("99999999999", "int32"), ("1_000", "int32")):
        with pytest.raises(InvalidArgumentError, match=f"expected strings that are {dtype} numbers"):
            value_of(string_to_number([text], dtype))


def test_raw_bytes_are_read_as_numbers() -> None:
    assert value_of(decode_raw(strings(b"\1\0\2\0", b"\3\0\4\0"), "int16")).tolist() == [[1, 2], [3, 4]]
    assert value_of(decode_raw(strings(b"\0\1"), "int16", little_endian=False)).tolist() == [[1]]
    for raw in (strings(b"\1\0\2"), strings(b"\1\0", b"")):
        with pytest.raises(InvalidArgumentError, match="one length, a multiple of 2"):
            value_of(decode_raw(raw, "int16"))


def test_strings_are_taken_apart() -> None:
    assert texts(string_strip(["  a b \n"])) == [b"a b"]
    assert texts(substr(["hello", "world"], 1, 3)) == [b"ell", b"orl"]
    assert texts(substr(["hello", "world"], [-3, 0], [2, 9])) == [b"ll", b"world"]
    with pytest.raises(InvalidArgumentError, match="expected a position within b'w'; got 3"):
        value_of(substr(["hello", "w"], 3, 3))
    assert texts(string_length(["hello", "é"])) == [5, 2]
    assert texts(string_length(["é"], unit="UTF8_CHAR")) == [1]
    assert texts(regex_replace(["hello", "w"], "l+", r"<\0>")) == [b"he<ll>o", b"w"]
    assert texts(string_upper(["hé"])) == ["Hé".encode()]
    assert texts(string_upper(["hé"], encoding="utf-8")) == ["HÉ".encode()]
    assert texts(string_lower(["HÉ"], encoding="utf-8")) == ["hé".encode()]


@pytest.mark.parametrize("pad", [False, True])
def test_base64_of_any_bytes(pad: bool) -> None:
    every = [bytes(range(250, 250 + n % 6)) + b"\0" * (n // 6) for n in range(18)]
    encoded = encode_base64(every, pad=pad)
    assert texts(encoded) == [base64.urlsafe_b64encode(e).rstrip(b"=" * (not pad)) for e in every]
    assert texts(decode_base64(encoded)) == every
    for wrong in (b"a", b"+/8=", b"YQ=", b"YQ==YQ==", b"Y Q"):
        with pytest.raises(InvalidArgumentError, match="expected base64 with - and _; got"):
            value_of(decode_base64(strings(wrong)))


def test_trailing_zero_bytes_survive() -> None:
    assert texts(string_join([strings(b"a\0"), strings(b"b\0")])) == [b"a\0b\0"]


def test_a_template_takes_one_tensor_a_placeholder() -> None:
    assert texts(string_format("a {} b {}", [np.arange(1, 8), 1.5])) == b"a [1 2 3 ... 5 6 7] b 1.5"
    with pytest.raises(InvalidArgumentError, match="template with 1 placeholders; got 2"):
        string_format("{} {}", [1])
