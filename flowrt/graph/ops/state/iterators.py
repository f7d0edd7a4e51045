"""Iterator ops: a handle for elements from outside the graph, and the op that takes the next one.

The elements are produced by Python code (built by `flowrt.data`): the graph keeps an `Open` function alive
and its nodes refer to it by token, as with ``py_func``. A session's `IteratorResource` opens it, returns one
element at a time, and closes it, which ends its threads, when it is initialized again or the session is
closed.

Initializing an iterator and taking an element both change it, so they are WRITE ops: they run in the order of
creation, each once per step.

A handle can be a string, too, which is fed to choose the iterator of a step. It names a resource of this
process by a number that cannot be guessed, and holds no reference to it.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeAlias, final
from weakref import WeakValueDictionary

import numpy as np

from flowrt.dtypes import DType
from flowrt.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
)
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node
from flowrt.graph.op_def import (
    Effect,
    Effects,
    OpDef,
    Privilege,
    ShapeContext,
    define_handle,
    define_op,
    sample,
)
from flowrt.graph.resources.step_context import current_step, wait_until
from flowrt.graph.shapes import Shape, compatible, format_shape


class Elements(Protocol):
    """A run over some elements: each a flat tuple of arrays.

    `StopIteration` is the end; any thread may close it.
    """

    def __next__(self) -> tuple[Any, ...]: ...

    def close(self) -> None: ...


Put: TypeAlias = Callable[[Any], Any]
"""Brings an array of the host to an iterator's device, or begins to: see `taken`."""

Open: TypeAlias = Callable[[Sequence[Any], Put], Elements]
"""Begins a run, given the values of the tensors that `make_iterator` was given."""


def _as_it_is(array: Any) -> Any:
    return array


@final
class IteratorResource:
    """A session's iterator, of the handle ``node``.

    ``open_first``, if given, opens its elements when the first is requested.

    A step with a deadline has its element computed on a thread (about 0.1 ms more), so that the step ends in
    time whatever the dataset does. An element that arrives too late is used by the next step.
    """

    __slots__ = (
        "__weakref__", "_closed", "_elements", "_late", "_lock", "_name", "_open_first",
        "output_shapes", "output_types", "put", "string_handle",
    )  # fmt: skip

    def __init__(self, node: Node, open_first: Open | None = None) -> None:
        self._name, self._open_first = node.name, open_first
        self.output_types: Sequence[DType] = node.attrs["output_types"]
        self.output_shapes: Sequence[Shape] = node.attrs["output_shapes"]
        self.string_handle = f"{node.name}:{secrets.token_hex(8)}".encode()
        _by_string[self.string_handle] = self
        self._lock = threading.Lock()
        self._elements: Elements | None = None
        self._late: deque[Future[tuple[Any, ...]]] = deque()
        """Elements that steps have begun to wait for and left, the first one first."""
        self._closed = False
        self.put: Put = _as_it_is

    def settle(self, device: Any) -> None:
        """Set the device of the iterator."""
        if device.is_asynchronous:
            self.put = device.put_ahead

    def elements(self) -> Elements:
        """The current elements. Raises as `next`."""
        return self._elements or self._first()

    def initialize(self, elements: Elements) -> None:
        """Continue with ``elements``; the previous ones are closed, and threads waiting for them get
        `CancelledError`.
        """
        with self._lock:
            old, self._elements = (elements, None) if self._closed else (self._elements, elements)
            self._late.clear()
        if old is not None:
            old.close()

    def next(self) -> tuple[Any, ...]:
        """The next element.

        Raises `OutOfRangeError` at the end, `FailedPreconditionError` if never initialized, and the error
        that ends the step of this thread.
        """
        elements = self.elements()
        step = current_step()
        try:
            if self._late or (step is not None and step.remaining_s() is not None):
                return self._next_in_time(elements)
            return elements.__next__()
        except StopIteration:
            raise OutOfRangeError("end of sequence") from None

    def _next_in_time(self, elements: Elements) -> tuple[Any, ...]:
        try:
            element = self._late.popleft()
        except IndexError:
            element = begin(elements.__next__)
        try:
            wait_until(element.done, lambda seconds: wait((element,), seconds))
        except BaseException:
            self._late.appendleft(element)
            raise
        return element.result()

    def _first(self) -> Elements:
        with self._lock:
            if self._closed:
                raise CancelledError(f"iterator {self._name!r}: its session was closed")
            if self._elements is None:
                if self._open_first is None:
                    message = f"iterator {self._name!r} is not initialized: run its initializer first"
                    raise FailedPreconditionError(message)
                self._elements = self._open_first((), self.put)
            return self._elements

    def close(self) -> None:
        """End the run and its threads, for good."""
        with self._lock:
            self._closed = True
            old, self._elements = self._elements, None
        if old is not None:
            old.close()


_by_string: WeakValueDictionary[bytes, IteratorResource] = WeakValueDictionary()


def begin(function: Callable[[], Any]) -> Future[Any]:
    """The future result of ``function()``, computed by a new thread."""
    future: Future[Any] = Future()

    def compute() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 (raised where the result is taken)
            future.set_exception(error)

    threading.Thread(target=compute, name="flowrt-element", daemon=True).start()
    return future


# --- functions that nodes refer to


@final
class _Source:
    """An `Open` function, kept alive by the graph with nodes that refer to it."""

    __slots__ = ("__weakref__", "open")

    def __init__(self, open: Open) -> None:
        self.open = open


_sources: WeakValueDictionary[str, _Source] = WeakValueDictionary()
_tokens = itertools.count()


def _register(open: Open) -> str:
    token = f"iterator_{next(_tokens)}"
    get_default_graph().python_functions[token] = _sources[token] = _Source(open)
    return token


def _open_of(node: Node) -> Open:
    source = _sources.get(node.attrs["token"])
    if source is None:
        message = (
            f"expected the dataset {node.attrs['token']!r}; it no longer exists, or the graph is from a file"
        )
        raise located(node, FailedPreconditionError(message))
    return source.open


# --- ops

_ELEMENT = "output_types: list(type), output_shapes: list(shape)"

iterator_op = define_handle(
    "IteratorV2",
    IteratorResource,
    "The handle of an iterator of the session, which an initializer gives its elements.",
    output="handle: resource",
    attrs=f"shared_name: string = '', container: string = '', {_ELEMENT}",
)

one_shot_iterator_op = define_handle(
    "OneShotIterator",
    lambda node: IteratorResource(node, _open_of(node)),
    "The handle of an iterator that begins by itself and ends for good.",
    output="handle: resource",
    attrs=f"token: string, shared_name: string = '', container: string = '', {_ELEMENT}",
    privilege=lambda attrs: Privilege.PYTHON,
)

make_iterator_op: OpDef[Operation] = define_op(
    "MakeIterator",
    "iterator: resource, components: *Tcomponents in ANY ->",
    attrs="token: string",
    kernel=lambda xp, iterator, components, state: iterator.initialize(state(components, iterator.put)),
    effects=Effects(Effect.WRITE, state=_open_of, privilege=lambda attrs: Privilege.PYTHON),
    doc="Begins an iterator, or begins it again.",
)


def _get_next(xp: Any, iterator: IteratorResource, output_shapes: Sequence[Shape]) -> tuple[Any, ...]:
    element = tuple([taken(xp, value) for value in iterator.next()])
    for i, (value, shape) in enumerate(zip(element, output_shapes, strict=True)):
        if value.shape != shape and not compatible(value.shape, shape):
            expected, got = format_shape(shape), format_shape(value.shape)
            raise InvalidArgumentError(f"component {i}: expected an element of shape {expected}; got {got}")
    return element


def taken(xp: Any, value: Any) -> Any:
    """``value`` as an array of ``xp``: a host array, or the result of a `Put`."""
    if xp is np:
        return value
    return xp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value.take()


iterator_get_next_op: OpDef[list[Tensor]] = define_op(
    "IteratorGetNext",
    "iterator: resource -> components: *output_types in ANY",
    attrs=_ELEMENT,
    shape=lambda s: s.attrs["output_shapes"],
    kernel=_get_next,
    effects=Effects(Effect.WRITE, waits=True),
    doc="The components of an iterator's next element.",
)


iterator_to_string_handle_op: OpDef[Tensor] = define_op(
    "IteratorToStringHandle",
    "iterator: resource -> string_handle: string",
    shape=lambda s: [()],
    kernel=lambda xp, iterator: np.array(iterator.string_handle, object),
    effects=Effects(Effect.READ),
    doc="The string that names an iterator of the session, for `Iterator.from_string_handle`.",
)


def _from_string(
    xp: Any, string_handle: Any, output_types: Sequence[DType], output_shapes: Sequence[Shape]
) -> IteratorResource:
    iterator = _by_string.get(string_handle[()])
    if iterator is None:
        raise NotFoundError(
            "expected the value of an iterator's string_handle(), of a session of this process that is open; "
            f"got {string_handle[()]!r}"
        )
    if iterator.put is not _as_it_is:
        raise InvalidArgumentError(f"expected an iterator on a CPU; got {string_handle[()]!r}, on a GPU")
    has = [*zip(iterator.output_types, iterator.output_shapes, strict=True)]
    asked = [*zip(output_types, output_shapes, strict=True)]
    if len(has) != len(asked) or not all(
        own is dtype and compatible(shape, expected)
        for (own, shape), (dtype, expected) in zip(has, asked, strict=True)
    ):
        raise InvalidArgumentError(f"expected an iterator with {_texts(asked)}; got one with {_texts(has)}")
    return iterator


def _handle_of_string(s: ShapeContext) -> list[Shape]:
    if not compatible(s.shapes[0], ()):
        raise InvalidArgumentError(f"expected one string; got shape {format_shape(s.shapes[0])}")
    return [()]


def _texts(components: Sequence[tuple[DType, Shape]]) -> str:
    return ", ".join([f"{dtype.name}{format_shape(shape)}" for dtype, shape in components]) or "no component"


iterator_from_string_handle_op: OpDef[Tensor] = define_op(
    "IteratorFromStringHandleV2",
    "string_handle: string -> resource_handle: resource",
    attrs=_ELEMENT,
    shape=_handle_of_string,
    kernel=_from_string,
    effects=Effects(Effect.STATEFUL),
    doc="The handle of the iterator that a string names. It must have the same components.",
)


def one_shot_iterator(open: Open, **attrs: Any) -> Any:
    """The handle of an iterator over the elements that ``open`` returns. ``attrs`` are the op's."""
    return one_shot_iterator_op(token=_register(open), **attrs)


def make_iterator(iterator: Any, components: Sequence[Any], open: Open, name: str | None = None) -> Any:
    """The operation that initializes ``iterator`` with the elements of ``open(values of components)``."""
    graph = get_default_graph()
    with graph.colocate_with(iterator):
        return make_iterator_op(iterator, list(components), token=_register(open), name=name)


def iterator_get_next(iterator: Any, name: str | None = None) -> list[Any]:
    """One tensor a component of the iterator's next element."""
    attrs = {key: iterator.op.get_attr(key) for key in ("output_types", "output_shapes")}
    with get_default_graph().colocate_with(iterator):
        return iterator_get_next_op(iterator, **attrs, name=name)


def _expect_data(xp: Any, has_data: Any) -> tuple[()]:
    if not has_data:
        raise OutOfRangeError("expected data from some worker; all have reached their end")
    return ()


expect_data_op: OpDef[Operation] = define_op(
    "ExpectData",
    "has_data: bool ->",
    kernel=_expect_data,
    samples=lambda rng: [sample(np.array(True))],
    effects=Effects(Effect.STATEFUL),
    doc="Fails as an iterator at its end does, unless ``has_data``.",
)
