"""Ops that affect the order of a step or the outside world: group, tuple, py_func, print, time.

Rules of this file: ops with outside effects have the effect STATEFUL, so they are never merged, folded or
pruned from a step that requests them. A graph refers to Python functions by token; a graph read from a file
has only tokens and cannot run them.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final
from weakref import WeakValueDictionary

import numpy as np

from flowrt.dtypes import DType, as_dtype
from flowrt.errors import (
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    UnimplementedError,
    UnknownError,
)
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.node import Node
from flowrt.graph.op_def import NONDIFFERENTIABLE, Effect, Effects, OpDef, Privilege, define_op, sample
from flowrt.graph.ops.base.identities import identity, unchanged
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.text.formatting import string_format, summarize_value
from flowrt.graph.source import misuse
from flowrt.graph.typing import Fetch, TensorLike

__all__ = ["group", "no_op", "numpy_function", "Print", "py_func", "py_function", "timestamp"]

# --- order

no_op: OpDef[Operation] = define_op(
    "NoOp",
    "->",
    shape=lambda s: [],
    kernel=lambda xp: (),
    samples=lambda rng: [sample()],
    doc="""Nothing: a point that others can wait for.

    Returns:
        An operation without outputs.
    """,
)


def _operation(graph: Graph, element: Any) -> Operation:
    element = graph.as_graph_element(element.values if isinstance(element, IndexedSlices) else element)
    return element if isinstance(element, Operation) else element.op


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)
    elif isinstance(value, dict):
        yield from _flatten([value[key] for key in sorted(value)])
    else:
        yield value


def group(*inputs: Fetch, name: str | None = None) -> Operation:
    """An operation that ends after all ``inputs``.

    Inputs on several devices are first gathered on each, so that one control edge crosses between two
    devices.

    Args:
        inputs: Operations, tensors, variables, nests of them.
        name: The operation's name.

    Returns:
        An operation without outputs.

    Raises:
        DTypeError: An input is something else.

    Example:
        >>> v = tf.Variable(1.0)
        >>> both = tf.group(v.assign_add(1.0), v.assign_add(1.0))
        >>> session.run(v.initializer)
        >>> session.run(both)
        >>> v.eval()
        np.float32(3.0)
    """
    graph = get_default_graph()
    with graph.name_scope(name or "group_deps") as scope:
        by_device: dict[str, list[Operation]] = {}
        for element in _flatten(inputs):
            operation = _operation(graph, element)
            by_device.setdefault(operation.device, []).append(operation)
        if len(by_device) < 2:
            return _gather(graph, [op for ops in by_device.values() for op in ops], scope)
        gathered = []
        for device, operations in sorted(by_device.items()):
            with graph.device(device or None):
                gathered.append(_gather(graph, operations, None))
        return _gather(graph, gathered, scope)


def _gather(graph: Graph, operations: list[Operation], name: str | None) -> Operation:
    with graph.control_dependencies(operations):
        return no_op(name=name)


def with_dependencies(dependencies: Sequence[Any], output_tensor: Any, name: str | None = None) -> Any:
    """``output_tensor`` (or `IndexedSlices`) as it is, available only after ``dependencies``."""
    graph = get_default_graph()
    sparse = isinstance(output_tensor, IndexedSlices)
    values = output_tensor.values if sparse else output_tensor
    with graph.name_scope(name or "control_dependency") as scope:
        with graph.colocate_with(values), graph.control_dependencies(dependencies):
            later = identity(values, name=scope)
    return IndexedSlices(later, output_tensor.indices, output_tensor.dense_shape) if sparse else later


def tuple_(
    tensors: Sequence[Any], name: str | None = None, control_inputs: Sequence[Any] | None = None
) -> list[Any]:
    """``tensors`` as they are, each available only after all of them and ``control_inputs``
    (``flowrt.tuple``).

    None entries stay None. Raises `InvalidArgumentError` when nothing is given to wait for.
    """
    graph = get_default_graph()
    with graph.name_scope(name or "tuple"):
        awaited = [*(t for t in tensors if t is not None), *(control_inputs or ())]
        if not awaited:
            raise InvalidArgumentError(
                f"tuple: expected at least one tensor or operation; got {list(tensors)}"
            )
        gate = group(*awaited)
        return [
            t
            if t is None
            else _gather(graph, [gate], "control_dependency")
            if isinstance(t, Operation)
            else with_dependencies([gate], t)
            for t in tensors
        ]


# --- Python functions


@final
class _PythonFunction:
    """A user's function; the graph that calls it keeps it alive."""

    __slots__ = ("__weakref__", "call", "name")

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.name = getattr(call, "__qualname__", None) or repr(call)


_functions: WeakValueDictionary[str, _PythonFunction] = WeakValueDictionary()
_tokens = itertools.count()


def _function_of(node: Node) -> _PythonFunction:
    token = node.attrs["token"]
    function = _functions.get(token)
    if function is None:
        source = None if node.source is None else str(node.source)
        message = (
            f"expected the Python function {token!r} in this process; it no longer exists, or the graph is "
            "from a file"
        )
        raise FailedPreconditionError(message, op=node.name, op_type=node.op.name, source=source)
    return function


# errors raised by a function, translated as in TensorFlow; any other is an UnknownError
_ERRORS: tuple[tuple[type[Exception], type[OpError]], ...] = (
    (StopIteration, OutOfRangeError),
    (NotImplementedError, UnimplementedError),
    (TypeError, InvalidArgumentError),
    (ValueError, InvalidArgumentError),
)


def _call_python(xp: Any, input: Any, Tout: Sequence[DType], state: _PythonFunction) -> list[Any]:
    arguments = [_read_only(x) for x in input]
    try:
        result = state.call(*arguments)
    except Exception as error:  # any error in the user's code becomes the step's error, with its traceback
        kind = next((ours for theirs, ours in _ERRORS if isinstance(error, theirs)), UnknownError)
        raise kind(f"{state.name} raised {type(error).__name__}: {error}") from error
    several = isinstance(result, (list, tuple))
    results = list(result) if several else [] if result is None and not Tout else [result]
    if len(results) != len(Tout):
        dtypes = ", ".join(d.name for d in Tout) or "nothing"
        raise InvalidArgumentError(f"expected {state.name} to return {dtypes}; got {len(results)} values")
    wanted = zip(results, Tout, strict=True)
    return [xp.asarray(_result(state, i, *each)) for i, each in enumerate(wanted)]


def _read_only(x: Any) -> Any:
    """An input as a new array that the function may keep: a plan reuses its buffers. A scalar becomes a NumPy
    scalar or bytes, as in TensorFlow: some scripts use it as a file name.
    """
    if isinstance(x, bytes):
        return x
    copy = np.array(x.get() if hasattr(x, "get") else x)
    copy.flags.writeable = False  # writing would seem to change the tensor
    return copy[()]


def _result(function: _PythonFunction, position: int, value: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """A copy of ``value``, which the function may modify later. Numbers and lists of them get ``dtype``."""
    try:
        array = as_array(value, None if isinstance(value, (np.ndarray, np.generic)) else dtype)
    except InvalidArgumentError as error:
        raise type(error)(f"result {position} of {function.name}: {error.message}") from None
    if array.dtype != dtype.np:
        got = as_dtype(array.dtype).name
        raise DTypeError(f"result {position} of {function.name}: expected dtype {dtype.name}; got {got}")
    return array


def _define_call(name: str, effect: Effect, doc: str) -> OpDef[list[Tensor]]:
    return define_op(
        name,
        "input: *Tin in ANY -> *Tout in ANY",
        attrs="token: string, Tout: list(type)",
        shape=lambda s: [None] * len(s.attrs["Tout"]),
        kernel=_call_python,
        vjp=NONDIFFERENTIABLE,
        samples=lambda rng: (),
        effects=Effects(effect, state=_function_of, privilege=lambda attrs: Privilege.PYTHON),
        doc=doc,
    )


py_func_op = _define_call("PyFunc", Effect.STATEFUL, "A Python function of arrays.")
py_func_stateless = _define_call(
    "PyFuncStateless", Effect.PURE, "A Python function of arrays that gives equal results for equal inputs."
)


def py_func(
    func: Callable[..., Any], inp: Sequence[Any], Tout: Any, stateful: bool = True, name: str | None = None
) -> Any:
    """The result of a Python function, computed when the graph runs. It has no gradient.

    Args:
        func: A function of one read-only array per input (for a scalar, a NumPy scalar or bytes), which
            returns one array (or number or string) for each dtype of ``Tout``.
        inp: A list of tensors.
        Tout: A dtype or a list of them.
        stateful: Whether each call counts; if not, it may be merged with an equal one, folded or pruned.

    Returns:
        A tensor, or a list of tensors, or for an empty list the operation. At run time, an exception in
        ``func`` becomes the translated error, with that as its cause.

    Raises:
        DTypeError: At run time, ``func`` returns another dtype or number of results.
        InvalidArgumentError: At run time, a result is no array of its dtype.

    Example:
        >>> tf.py_func(lambda x: x.sum(), [tf.constant([1.0, 2.0])], tf.float32).eval()
        np.float32(3.0)
    """
    single = not isinstance(Tout, (list, tuple))
    wanted = [as_dtype(dtype) for dtype in ([Tout] if single else Tout)]
    if not callable(func):
        raise DTypeError(f"py_func: expected a function; got {func!r}")
    token, function = f"pyfunc_{next(_tokens)}", _PythonFunction(func)
    call = py_func_op if stateful else py_func_stateless
    graph = get_default_graph()
    full_name = graph.operation_name(name or call.name)
    results = call(list(inp), token=token, Tout=wanted, name=f"{full_name}/")
    graph.python_functions[token] = _functions[token] = function
    return graph.get_operation_by_name(full_name) if not wanted else results[0] if single else results


def py_function(func: Callable[..., Any], inp: Sequence[Any], Tout: Any, name: str | None = None) -> Any:
    """`py_func` under its newer name; ``func`` gets NumPy values."""
    return py_func(func, inp, Tout, name=name or "EagerPyFunc")


numpy_function = py_func


# --- printing


def _print(
    xp: Any, input: Any, data: Any, message: str, first_n: int, summarize: int, state: Iterator[int]
) -> Any:
    if first_n < 0 or next(state) < first_n:
        values = "".join(f"[{summarize_value(x, summarize)}]" for x in data)
        sys.stderr.write(f"{message}{values}\n")
    return input


print_v1_op = define_op(
    "Print",
    "input: T in ANY, data: *U in ANY -> T",
    attrs="message: string = '', first_n: int = -1, summarize: int = 3",
    shape=unchanged,
    kernel=_print,
    vjp=lambda op, dy: [dy, *(None for _ in op.inputs[1:])],
    jvp=lambda op, dx, *_: [dx],
    samples=lambda rng: [
        sample(rng.standard_normal(2), (np.arange(5), np.float32(1)), message="x ", first_n=0)
    ],
    effects=Effects(Effect.STATEFUL, state=lambda node: itertools.count()),
    alias=True,
    doc="The input as it is; when it is computed, the first values of ``data`` are written to stderr.",
)


def Print(
    input_: TensorLike,
    data: Sequence[Any],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """``input_`` as it is, which writes ``message`` and the values of ``data`` to stderr when it is computed.

    Only the first ``first_n`` times (always if None), and of each tensor ``summarize`` elements (3 if None,
    all if -1).

    Example:
        >>> x = tf.constant([1.0, 2.0])
        >>> tf.reduce_sum(tf.Print(x, [x], 'x: ')).eval()  # writes "x: [1 2]" to stderr
        np.float32(3.0)
    """
    if isinstance(data, str | Tensor) or not hasattr(data, "__iter__"):
        raise misuse(f"Print: data: expected a list of tensors; got {data!r}", DTypeError)
    limits = dict(first_n=-1 if first_n is None else first_n, summarize=3 if summarize is None else summarize)
    return print_v1_op(input_, list(data), message=message or "", name=name, **limits)


# looked up late: tests and notebooks replace them
_STREAMS = {"stdout": lambda: sys.stdout, "stderr": lambda: sys.stderr}


def _print_text(xp: Any, input: Any, output_stream: str, end: str) -> tuple[()]:
    text = input if isinstance(input, bytes) else input.item()
    if output_stream.startswith("file://"):
        with open(output_stream.removeprefix("file://"), "a", encoding="utf-8") as file:
            file.write(text.decode(errors="replace") + end)
    elif output_stream in _STREAMS:
        _STREAMS[output_stream]().write(text.decode(errors="replace") + end)
    else:
        raise InvalidArgumentError(
            f"expected output_stream stdout, stderr or file://...; got {output_stream!r}"
        )
    return ()


print_v2_op: OpDef[Operation] = define_op(
    "PrintV2",
    "input: string ->",
    attrs="output_stream: string = 'stderr', end: string = '\\n'",
    kernel=_print_text,
    effects=Effects(
        Effect.STATEFUL,
        privilege=lambda attrs: Privilege.FILES if attrs["output_stream"].startswith("file://") else None,
    ),
    doc="Writes a string to a stream.",
)


def print_(
    *inputs: Any,
    output_stream: Any = "stderr",
    summarize: int = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> Operation:
    """An operation that writes the values of ``inputs`` (tensors, and any Python values) when it runs
    (``flowrt.print``).

    ``output_stream``: ``sys.stdout``, ``sys.stderr`` or a "file://" path; of long dimensions ``summarize``
    elements at each end are shown, all if it is -1.
    """
    stream = output_stream if isinstance(output_stream, str) else _stream_name(output_stream)
    with get_default_graph().name_scope(name or "print"):
        tensors: list[Any] = []
        template = sep.join(_template(value, tensors, quoted=False) for value in inputs)
        text = string_format(template, tensors, _PLACE, summarize)
        return print_v2_op(text, output_stream=stream, end=end, name="PrintV2")


_PLACE = "\0{}"  # a user's text does not have it


def _stream_name(stream: Any) -> str:
    if stream in (sys.stdout, sys.stderr):
        return "stdout" if stream is sys.stdout else "stderr"
    raise DTypeError(
        f"print: expected output_stream sys.stdout, sys.stderr or a 'file://' path; got {stream!r}"
    )


def _template(value: Any, tensors: list[Any], *, quoted: bool) -> str:
    """``value`` as text with a placeholder for each tensor in it, which joins ``tensors``."""
    if isinstance(value, (Tensor, np.ndarray)) or hasattr(value, "__flowrt_tensor__"):
        tensors.append(value)
        return _PLACE
    if isinstance(value, dict):
        pairs = (f"{key!r}: {_template(item, tensors, quoted=True)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(_template(item, tensors, quoted=True) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    return repr(value) if quoted else str(value)


# --- time


timestamp = define_op(
    "Timestamp",
    "-> ts: float64",
    shape=lambda s: [()],
    kernel=lambda xp, out=None: delivered(xp, xp.asarray(time.time()), np.float64, out),
    samples=lambda rng: [sample()],
    effects=Effects(Effect.STATEFUL),
    doc="Seconds since 1970, when it runs.",
)
