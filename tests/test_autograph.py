"""Conversion of source: Python's control flow as graph; what cannot be is one error or one warning."""

from __future__ import annotations

import functools
import itertools
import sys
import traceback
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.autograph import conversion
from flowrt.autograph.experimental import do_not_convert, set_loop_options
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError

pytest.importorskip("malt", reason="diastatic-malt is not installed (extra autograph)")

AT = (-2.0, -0.5, 0.0, 0.5, 1.0, 2.5, 7.0)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph() as graph:
        yield graph


def run(fetches: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feed)


def types() -> set[str]:
    """The operations of all functions in the graph, with those inside."""
    found: set[str] = set()

    def visit(nodes: Any) -> None:
        for node in nodes:
            found.add(node.op.name)
            for value in node.attrs.values():
                if hasattr(value, "feeds"):
                    visit(value)

    visit([op.node for op in tf.get_default_graph().get_operations()])
    return found


# --- programs: as Python runs them on numbers, so does the graph on tensors


def branches(x, n):
    if x > 1:
        y = x * 2
    elif x < 0:
        y = -x
    else:
        y = x + 10
    return y


def nested_branches(x, n):
    y = 0.0
    if x > 0:
        if n > 2:
            y = x
        else:
            y = 2 * x
    return y + 1.0


def early_returns(x, n):
    if x > 2:
        return x
    if x < 0:
        return -x * 3
    x = x + 1
    return x * x


def while_loop(x, n):
    i, total = 0, 0.0
    while i < n and total < 5.0:
        total = total + x * x + 0.5
        i += 1
    return total


def break_and_continue(x, n):
    total = 0.0
    for i in range(n):
        if i == 1:
            continue
        total += x + float(i)
        if total > 6.0:
            break
    return total


def return_from_a_loop(x, n):
    for i in range(n):
        if x + float(i) > 2.0:
            return x * 10.0
    return x


def return_from_nested_loops(x, n):
    for i in range(n):
        for j in range(i):
            if x * float(j) > 2.0:
                return x + float(i * 100 + j)
    return -x


def while_true(x, n):
    count = 0
    while True:
        x = x * 2.0 + 1.0
        count += 1
        if x > 10.0 or count >= n:
            break
    return x


def logic(x, n):
    a = x > 0 and n > 2
    b = x < -1 or (n == 3 and not a)
    return 1.0 if a or b else (2.0 if n != 3 else x)


def helpers(x, n):
    def twice(value):
        return helper(value) * 2.0

    return twice(x) + functools.partial(helper, value=x * 3.0)() + Callable(2.0)(x)


def helper(value):
    if value > 1.0:
        return value
    return -value


class Callable:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        if x > 0:
            x = x * self.factor
        return x


def python_loop_with_a_break_on_a_tensor(x, n):
    total = 0.0
    for k in (1.0, 2.0, 3.0):
        total = total + k * x
        if total > 4.0:
            break
    return total


def state_in_a_structure(x, n):
    state = {"a": x, "pair": (0.0, 1.0)}
    for _ in range(n):
        a, (b, c) = state["a"], state["pair"]
        state = {"a": a * 0.5, "pair": (b + a, c * 2.0)}
    return state["a"] + state["pair"][0] + state["pair"][1]


PROGRAMS = [
    branches, nested_branches, early_returns, while_loop, break_and_continue, return_from_a_loop,
    return_from_nested_loops, while_true, logic, helpers, python_loop_with_a_break_on_a_tensor,
    state_in_a_structure,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_converted_program_does_what_python_does(program):
    x, n = tf.placeholder(tf.float32, []), tf.placeholder(tf.int32, [])
    converted = tf.function(program, autograph=True)
    both, known = converted(x, n), converted(x, 3)
    with tf.Session() as session:
        for value, count in itertools.product(AT, (0, 1, 3, 5)):
            expected = program(value, count)
            assert session.run(both, {x: value, n: count}) == pytest.approx(expected, rel=1e-5)
        assert session.run(known, {x: 0.5}) == pytest.approx(program(0.5, 3), rel=1e-5)
    assert types() & {"If", "While"}


@pytest.mark.parametrize("program", [branches, early_returns, while_loop, return_from_a_loop, while_true])
def test_gradients_go_through_what_was_converted(program):
    x, h = tf.placeholder(tf.float32, []), 1e-5
    y = tf.function(lambda x: program(x, tf.constant(3)), autograph=True)(x)
    (g,) = tf.gradients(y, x)
    with tf.Session() as session:
        for value in (-1.5, 0.3, 2.6):
            expected = (program(value + h, 3) - program(value - h, 3)) / (2 * h)
            assert session.run(g, {x: value}) == pytest.approx(expected, rel=1e-4)


# --- what loops go through


def test_a_for_goes_through_the_rows_of_a_tensor():
    @tf.function(autograph=True)
    def f(rows, weights):
        total = tf.zeros([2])
        for row in rows:
            total += row
        for i, (row, weight) in enumerate(zip(rows, weights)):  # noqa: B905
            total += row * weight * tf.cast(i, tf.float32)
        for i in range(len(rows), 0, -1):
            total += float(i)
        return total

    rows = tf.placeholder(tf.float32, [None, 2])
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = run(f(rows, [1.0, 2.0, 3.0]), {rows: values})
    expected = values.sum(0) + (values * [[0], [2], [6]]).sum(0) + 6
    np.testing.assert_array_equal(found, expected)


def test_tensor_arrays_pass_through_loops():
    @tf.function(autograph=True)
    def squares(n):
        array = tf.TensorArray(tf.int32, n)
        for i in range(n):
            array = array.write(i, i * i)
        return array.stack()

    n = tf.placeholder(tf.int32, [])
    np.testing.assert_array_equal(run(squares(n), {n: 4}), [0, 1, 4, 9])


def test_tensor_arrays_pass_through_branches():
    @tf.function(autograph=True)
    def squares_of_odd(n):
        array = tf.TensorArray(tf.int32, size=0, dynamic_size=True)
        i = 0
        while True:
            i += 1
            if i > n:
                break
            if i % 2 == 0:
                continue
            array = array.write(i // 2, i * i)
        return array.stack()

    n = tf.placeholder(tf.int32, [])
    np.testing.assert_array_equal(run(squares_of_odd(n), {n: 6}), [1, 9, 25])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_loop_takes_the_options_that_it_begins_with(count):
    @tf.function(autograph=True)
    def f(x, n):
        twice = x
        for i in range(n):
            set_loop_options(shape_invariants=[(x, [None, 2])], maximum_iterations=2)
            x = tf.concat([x, x + float(i)], 0)
        while len(twice) < 2 * n:
            tf.autograph.experimental.set_loop_options(shape_invariants=[(twice, tf.TensorShape(None))])
            twice = tf.concat([twice, twice], 0)
        for _ in (1, 2):  # Python's: no graph, no shapes
            set_loop_options(shape_invariants=[(x, [1])])
            x = tf.concat([x, x], 0)
        return x, twice

    x, n = tf.ones([1, 2]), tf.placeholder(tf.int32, [])
    grown, twice = f(x, n)
    assert grown.shape.as_list() == [None, 2]
    found = run([grown, twice], {n: count})
    assert [len(rows) for rows in found] == [4 * 2 ** min(count, 2), {0: 1, 1: 2, 3: 8}[count]]
    assert run(tf.gradients(grown, x), {n: count})[0].tolist() == [[4.0 * 2 ** min(count, 2)] * 2]


def test_a_list_of_a_blocks_own_and_lists_of_python_values_grow():
    sizes = []

    @tf.function(autograph=True)
    def f(n):
        total = 0
        for i in range(n):
            rows = []
            for k in (1, 2):
                rows.append(i * k)  # noqa: PERF401
            sizes.append(len(rows))
            total += tf.add_n(rows)
        return total

    n = tf.placeholder(tf.int32, [])
    assert run(f(n), {n: 3}) == 9
    assert sizes == [2]


def test_a_called_function_rebinds_what_the_block_carries_or_made():
    @tf.function(autograph=True)
    def f(x):
        total = 0.0

        def add(value):
            nonlocal total
            total = total + value

        while x < 3:
            total = total * 2
            add(x)
            largest = x

            def lift():
                nonlocal largest
                largest = largest + 1

            lift()
            x = largest
        return total

    assert run(f(tf.placeholder_with_default(0.0, []))) == (0 * 2 + 1) * 2 + 2


def counts_itself(x):
    global calls  # noqa: PLW0603
    while x < 3:
        x = x + 1
        calls += 1
    total, calls = calls, 0
    return total


def test_a_block_rebinds_a_global_name_itself():
    assert run(tf.function(counts_itself, autograph=True)(tf.placeholder_with_default(0.0, []))) == 3


def test_what_a_refused_block_rebound_is_as_before():
    count, x = 0, tf.placeholder(tf.float32, [])

    def increment():
        nonlocal count
        count += 1

    def counts(x):
        if x > 0:
            increment()
        return x

    with pytest.raises(InvalidArgumentError, match="name 'count'"):
        tf.function(counts, autograph=True)(x)
    assert count == 0
    with pytest.raises(InvalidArgumentError, match="name 'calls'"):
        tf.function(module_level_counts, autograph=True)(tf.constant(1.0))
    assert calls == 0


def test_print_of_tensors_prints_when_the_step_runs(capsys):
    @tf.function(autograph=True)
    def f(n):
        print("traced", sep="")
        for i in range(n):
            print("i", i, sep="=", end=";")
        if n > 1:
            print("many", {"n": n}, file=sys.stderr)
        return n

    n = tf.placeholder(tf.int32, [])
    y = f(n)
    assert capsys.readouterr().out == "traced\n"
    run(y, {n: 2})
    assert capsys.readouterr() == ("i=0;i=1;", "many {'n': 2}\n")
    run(y, {n: 0})
    assert capsys.readouterr() == ("", "")


def test_effects_of_the_branch_taken_happen():
    v = tf.Variable(0.0)

    @tf.function(autograph=True)
    def f(x):
        if x > 0:
            v.assign_add(1.0)
        else:
            v.assign_add(-10.0)
        while v < 3.0:
            v.assign_add(1.0)
        assert v < 100.0, "too large"

    x = tf.placeholder(tf.float32, [])
    op = f(x)
    with tf.Session() as session:
        session.run(v.initializer)
        session.run(op, {x: 1.0})
        assert session.run(v) == 3
        v.load(200.0, session)
        with pytest.raises(InvalidArgumentError, match="too large"):
            session.run(op, {x: 1.0})


def test_python_values_stay_python_values():
    seen = []

    @tf.function(autograph=True)
    def f(x, flag, items):
        name = None
        if flag:
            name = "yes"
        if x > 0:
            seen.append(name)
            width = 3
        else:
            width = 3
        for item in items:
            x = x + item
        return tf.ones([width]) * x

    assert f(tf.constant(1.0), True, [1, 2]).shape.as_list() == [3]
    assert seen == ["yes"]


def test_what_might_fail_runs_only_where_and_and_or_let_it():
    @tf.function(autograph=True)
    def f(n, x):
        safe = n != 0 and 12 // n > 3
        cheap = n > 0 or x + 1.0 > 2.0
        return safe, cheap

    n, x = tf.placeholder(tf.int32, []), tf.placeholder(tf.float32, [])
    outputs = f(n, x)
    (traced,) = [op.node.attrs["f"] for op in tf.get_default_graph().get_operations() if "f" in op.node.attrs]
    assert [node.op.name for node in traced if node.op.name in ("If", "LogicalOr")] == ["If", "LogicalOr"]
    with tf.Session() as session:
        for number, value in itertools.product((-1, 0, 1, 2, 3, 4), (0.0, 2.0)):
            expected = (number != 0 and 12 // number > 3, number > 0 or value + 1 > 2)
            assert session.run(outputs, {n: number, x: value}) == expected


def test_functions_call_converted_functions_and_methods():
    class Net:
        @tf.function(autograph=True)
        def __call__(self, x):
            if x > 0:
                return self.inner(x)
            return x

        def inner(self, x):
            while x < 10.0:
                x = x * 2.0
            return x

    x = tf.placeholder(tf.float32, [])
    y = Net()(x)
    assert [run(y, {x: v}) for v in (-1.0, 3.0)] == [-1, 12]


# --- without conversion


def test_a_trace_alone_has_only_what_python_did():
    """A condition keeps one branch, with a warning if it is a tensor; what only a run knows is an error."""

    def f(x, double):
        if double:
            return x * 2
        return tf.exp(x)

    x = tf.constant(1.0)
    assert run(tf.function(f)(x, True)) == 2
    with pytest.warns(tf.errors.TracerWarning, match="'double:0' is True"):
        assert run(tf.function(f)(x, x > 0)) == 2
    assert "Exp" not in types()
    with pytest.raises(DTypeError, match="has no truth value"):
        tf.function(f)(x, tf.placeholder(tf.bool, []))
    assert run(tf.function(f, autograph=True)(x, x > 0)) == 2
    assert "Exp" in types()


# --- what cannot be


def one_branch_only(x):
    if x > 0:
        y = x
    return y


def returns_on_one_path(x):  # noqa: RET503 (that is the mistake)
    if x > 0:
        return x


def two_dtypes(x):
    if x > 0:
        y = 1
    else:
        y = 2.5
    return y


def two_structures(x):
    if x > 0:
        y = (x, x)
    else:
        y = x
    return y


def tensor_or_none(x):
    y = None
    if x > 0:
        y = x
    return y


def loop_changes_the_dtype(x):
    while x < 3:
        x = tf.cast(x, tf.int32)
    return x


def loop_changes_the_shape(x):
    while tf.reduce_sum(x) < 3:
        x = tf.stack([x, x])
    return x


def loop_makes_the_variable(x):
    while x < 3:
        x = x + 1
        last = x
    return last


def loop_changes_an_object(x):
    what = "a"
    while x < 3:
        x = x + 1
        what = "b"
    return what


def loop_appends_to_a_list(x):
    rows = []
    while x < 3:
        x = x + 1
        rows.append(x)
    return rows


def for_appends_to_a_list(x):
    rows = [x]
    for i in tf.range(tf.cast(x, tf.int32)):
        rows.append(2 * i)  # noqa: PERF401
    return rows


def loop_makes_a_longer_list(x):
    rows = []
    while x < 3:
        x = x + 1
        rows = [*rows, x]
    return rows


def branch_appends_to_a_list(x):
    rows = []
    if x > 0:
        rows.append(x)
    return rows


def called_function_counts(x):
    count = 0

    def increment():
        nonlocal count
        count += 1

    while x < 3:
        x = x + 1
        increment()
    return x + count


def loops_own_function_counts(x):
    count = 0
    for i in tf.range(tf.cast(x, tf.int32)):

        def increment():
            nonlocal count
            count += 1

        x = x + tf.cast(i, tf.float32)
        increment()
    return x + count


def branch_calls_what_makes_a_name(x):
    def make():
        nonlocal made
        made = x * 2

    if x > 0:
        make()
    made = x
    return made


calls = 0


def count_a_call():
    global calls  # noqa: PLW0603
    calls += 1


def count_twice():
    count_a_call()
    count_a_call()


def module_level_counts(x):
    if x > 0:
        count_twice()
    return x


def condition_counts(x):
    def goes_on():
        nonlocal tests
        tests += 1
        return x < 3

    tests = 0
    while goes_on():
        x = x + 1
    return x


def invariants_that_are_no_pairs(x):
    while x < 3:
        set_loop_options(shape_invariants=[None])
        x = x + 1
    return x


def invariants_of_another_variable(x):
    other = tf.ones([3])
    while x < 3:
        tf.autograph.experimental.set_loop_options(shape_invariants=[(other, [None])])
        x = x + 1
    return x


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (one_branch_only, InvalidArgumentError, "variable 'y' in both branches or before the if"),
        (returns_on_one_path, InvalidArgumentError, "expected a return on every path"),
        (two_dtypes, DTypeError, "one dtype for variable 'y' after both branches; got int32 and float32"),
        (
            two_structures,
            InvalidArgumentError,
            "variable 'y' to be convertible to tensors after both branches",
        ),
        (
            tensor_or_none,
            InvalidArgumentError,
            "variable 'y' to be convertible to tensors after both branches",
        ),
        (loop_changes_the_dtype, DTypeError, "variable 'x' to stay float32; got int32 after an iteration"),
        (
            loop_changes_the_shape,
            InvalidArgumentError,
            r"variable 'x' to keep the shape \[\]; got \[2\] after .*options\(shape_invariants=\[\(x, ",
        ),
        (loop_makes_the_variable, InvalidArgumentError, "value for variable 'last' before the loop"),
        (loop_changes_an_object, InvalidArgumentError, "variable 'what' to stay 'a', or like it; got 'b'"),
        (loop_appends_to_a_list, InvalidArgumentError, "list 'rows' to keep its length 0, .*TensorArray"),
        (for_appends_to_a_list, InvalidArgumentError, "list 'rows' to keep its length 1, .*TensorArray"),
        (loop_makes_a_longer_list, InvalidArgumentError, "variable 'rows' to stay .*TensorArray"),
        (branch_appends_to_a_list, InvalidArgumentError, "list 'rows' to keep its length 0, .*TensorArray"),
        (called_function_counts, InvalidArgumentError, "name 'count', .* to stay 0, .* got 1.*return the"),
        (loops_own_function_counts, InvalidArgumentError, "name 'count', .* to stay 0, .* got 1"),
        (branch_calls_what_makes_a_name, InvalidArgumentError, "name 'made', .* to stay no value"),
        (module_level_counts, InvalidArgumentError, "name 'calls', .* to stay 0, .* got 2"),
        (condition_counts, InvalidArgumentError, "name 'tests', .* to stay 1, .* got 2"),
        (
            invariants_that_are_no_pairs,
            InvalidArgumentError,
            "list of pairs \\(variable, shape\\); got \\[None",
        ),
        (
            invariants_of_another_variable,
            InvalidArgumentError,
            "of variables that it changes; got <.*'ones:0'",
        ),
    ],
)
def test_what_cannot_be_is_one_error_with_the_users_line(program, error, message):
    first = program.__code__.co_firstlineno
    lines = "|".join(str(first + i) for i in range(9))
    with pytest.raises(error, match=rf"test_autograph\.py:({lines})\): .*{message}"):
        tf.function(program, autograph=True)(tf.placeholder(tf.float32, []))


def test_operations_of_converted_code_have_the_users_line():
    def f(x):
        if x > 0:
            x = tf.exp(x)
        return x

    traced = tf.function(f, autograph=True).get_concrete_function(tf.TensorSpec([]))
    line = f.__code__.co_firstlineno
    (branch,) = [op for op in traced.graph.get_operations() if op.type == "If"]
    (exp,) = [node for node in branch.node.attrs["then_branch"] if node.op.name == "Exp"]
    assert str(branch.source).endswith(f"test_autograph.py:{line + 1}")
    assert str(exp.source).endswith(f"test_autograph.py:{line + 2}")


def lacks_an_attribute(x):
    def inner(value):
        return value.no_such_name

    while x > 0:
        x = inner(x)
    return x


def test_a_traceback_of_converted_code_has_the_users_lines():
    with pytest.raises(AttributeError, match="no_such_name") as caught:
        tf.function(lacks_an_attribute, autograph=True)(tf.placeholder(tf.float32, []))
    first = lacks_an_attribute.__code__.co_firstlineno
    frames = traceback.extract_tb(caught.value.__traceback__)
    own = [(frame.name, frame.lineno - first) for frame in frames if frame.filename == __file__][1:]
    assert own == [("lacks_an_attribute", 4), ("loop_body", 5), ("inner", 2)]
    assert frames[-1].line == "return value.no_such_name"


class Base:
    def scale(self, x):
        return x * 3.0


class Derived(Base):
    def scale(self, x):
        return super().scale(x)


def rows_of(x):
    yield x
    yield x * 2.0


def with_super(x):
    return Derived().scale(x)


def with_a_generator(x):
    return sum(rows_of(x))


def tripled(x):
    if (y := x * 3.0) is not None:
        return y
    return x


def with_an_assignment_expression(x):
    return tripled(x)


@pytest.mark.parametrize(
    ("program", "what", "reason"),
    [
        (with_super, "Derived.scale", "super"),
        (with_a_generator, "rows_of", "generators"),
        (with_an_assignment_expression, "tripled", r"assignment expressions \(:=\)"),
    ],
)
def test_what_is_not_converted_runs_as_it_is_and_says_where(program, what, reason):
    with pytest.warns(
        RuntimeWarning, match=rf"{what} \(.*test_autograph\.py:\d+\) is not converted: {reason}"
    ) as caught:
        y = tf.function(program, autograph=True)(tf.constant(2.0))
    assert caught[0].filename == __file__
    assert run(y) == 6


def test_source_that_cannot_be_read_falls_back():
    namespace: dict[str, Any] = {}
    code = compile("def f(x):\n    return x + 1\n", "nowhere.py", "exec")
    type(test_source_that_cannot_be_read_falls_back)(code, namespace)()
    with pytest.warns(RuntimeWarning, match=r"f \(nowhere\.py:1\) is not converted"):
        y = tf.function(namespace["f"], autograph=True)(tf.constant(1.0))
    assert run(y) == 2


def test_to_graph_converts_a_function_but_not_what_is_to_stay():
    @do_not_convert
    def as_written(x: Any) -> Any:
        return x if x is not None else 0

    def program(x: Any) -> Any:
        if x > 0:
            return as_written(x) * 2
        return -x

    converted = tf.autograph.to_graph(program)
    assert run([converted(tf.constant(3.0)), converted(tf.constant(-3.0))]) == [6, 3]
    assert conversion.convert(as_written) is as_written

    class Program:
        def __call__(self, x: Any) -> Any:
            return program(x)

    assert run(tf.autograph.to_graph(Program())(tf.constant(3.0))) == 6
    with pytest.raises(DTypeError, match="to_graph: expected a function; got 3"):
        tf.autograph.to_graph(3)


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    conversion._transpiler.cache_clear()
    monkeypatch.setitem(sys.modules, "malt.core", None)
    with pytest.raises(UnimplementedError, match=r"pip install diastatic-malt, or .* the extra 'autograph'"):
        tf.function(branches, autograph=True)(tf.constant(1.0), 1)
