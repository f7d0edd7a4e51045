"""`Iterator`: a dataset's elements as tensors, a new element in every step that fetches one.

An iterator is an op that names a resource of the session. A *one-shot* iterator starts automatically, once.
An *initializable* one starts, or restarts, when its initializer runs, which reads the tensors among the
dataset's sources. A *reinitializable* one (`Iterator.from_structure`) has an initializer for each dataset of
its structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, final

import numpy as np

from flowrt.base.structure import Structure, flatten, leaf_paths, map_structure, pack_as, same_structure
from flowrt.data.node import HOST, Element, ElementIterator, Node
from flowrt.data.spec import declared_spec
from flowrt.data.traced import open_tree, tensors_in
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.dlpack import host_array, is_foreign
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.evaluate import evaluate, located
from flowrt.graph.node import Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.state import iterators
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.shapes import TensorShape, compatible
from flowrt.graph.source import misuse


class Iterator:
    """Elements of ``spec`` (a structure of `TensorSpec`) through the handle ``resource``."""

    def __init__(self, resource: Tensor, initializer: Operation | None, spec: Structure) -> None:
        self._resource, self._initializer, self._spec = resource, initializer, spec

    @staticmethod
    def from_structure(
        output_types: Structure,
        output_shapes: Structure = None,
        shared_name: str | None = None,
        output_classes: Structure = None,
    ) -> Iterator:
        """An iterator without a dataset: `make_initializer` sets or replaces it.

        Without ``output_shapes`` the shapes are unknown. Raises `UnimplementedError` for ``output_classes``
        other than `Tensor`.
        """
        spec = declared_spec(output_types, output_shapes)
        _check_classes("Iterator.from_structure", output_classes)
        return Iterator(_new_handle(spec, HOST, shared_name), None, spec)

    @staticmethod
    def from_string_handle(
        string_handle: Any,
        output_types: Structure,
        output_shapes: Structure = None,
        output_classes: Structure = None,
    ) -> Iterator:
        """The iterator that ``string_handle`` names, a string that is fed, such as the value of another
        iterator's `string_handle`. So one graph takes its elements now from one dataset, now from another.

        Args:
            string_handle: A scalar string tensor.
            output_types: The dtypes of the elements' components, in their structure.
            output_shapes: Their shapes; unknown by default.
            output_classes: `Tensor` for each component, the default.

        Raises:
            UnimplementedError: ``output_classes`` names something else.

        A step raises `NotFoundError` if no open session of the process has such an iterator, and
        `InvalidArgumentError` if its components are others.

        Example:
            >>> numbers = tf.data.Dataset.range(3).make_one_shot_iterator()
            >>> handle = tf.placeholder(tf.string, [])
            >>> element = tf.data.Iterator.from_string_handle(handle, tf.int64, []).get_next()
            >>> session.run(element, {handle: session.run(numbers.string_handle())})
            np.int64(0)
        """
        spec = declared_spec(output_types, output_shapes)
        _check_classes("Iterator.from_string_handle", output_classes)
        with get_default_graph().device(HOST):
            resource = iterators.iterator_from_string_handle_op(string_handle, **_element_attrs(spec))
        return Iterator(resource, None, spec)

    def string_handle(self, name: str | None = None) -> Tensor:
        """The string that names this iterator in a session, for `from_string_handle`: fetch it once, and feed
        it. It is valid until the session is closed.
        """
        with get_default_graph().colocate_with(self._resource):
            return iterators.iterator_to_string_handle_op(self._resource, name=name)

    @property
    def resource(self) -> Tensor:
        """The handle, placed on the device that receives the elements."""
        return self._resource

    @property
    def device(self) -> str:
        return self._resource.device

    @property
    def initializer(self) -> Operation:
        """The operation that begins the iterator.

        Raises `FailedPreconditionError` for iterators without one.
        """
        if self._initializer is None:
            raise FailedPreconditionError(
                "initializer: expected an iterator of make_initializable_iterator(); this one has none. "
                "For from_structure() use make_initializer(dataset)"
            )
        return self._initializer

    def make_initializer(self, dataset: Any, name: str | None = None) -> Operation:
        """An operation that lets this iterator begin with ``dataset``.

        Raises `InvalidArgumentError` or `DTypeError` unless its elements fit the iterator's structure.
        """
        node: Node = dataset.node
        _check_fits(self._spec, node.spec)
        with get_default_graph().name_scope(name or "make_initializer"):
            return iterators.make_iterator(self._resource, tensors_in(node), _opening(node, tensors_in(node)))

    def get_next(self, name: str | None = None) -> Structure:
        """The next element: one tensor per component. One call in the script serves all steps.

        When run, raises `OutOfRangeError` at the end and `FailedPreconditionError` before the initializer has
        run.
        """
        return pack_as(self._spec, iterators.iterator_get_next(self._resource, name))

    @property
    def element_spec(self) -> Structure:
        return self._spec

    @property
    def output_types(self) -> Structure:
        return types_of(self._spec)

    @property
    def output_shapes(self) -> Structure:
        return shapes_of(self._spec)

    @property
    def output_classes(self) -> Structure:
        return classes_of(self._spec)


def _check_classes(what: str, output_classes: Structure) -> None:
    """Raises `UnimplementedError` unless all are `Tensor`."""
    for kind in flatten(output_classes) if output_classes is not None else ():
        if kind is not Tensor:
            raise misuse(f"{what}: expected components that are tensors; got {kind!r}", UnimplementedError)


def types_of(spec: Structure) -> Structure:
    return map_structure(lambda leaf: leaf.dtype, spec)


def shapes_of(spec: Structure) -> Structure:
    return map_structure(lambda leaf: TensorShape(leaf.shape), spec)


def classes_of(spec: Structure) -> Structure:
    return map_structure(lambda _: Tensor, spec)


def get_output_types(dataset_or_iterator: Any) -> Structure:
    """The dtypes of the elements' components, in their structure."""
    return types_of(dataset_or_iterator.element_spec)


def get_output_shapes(dataset_or_iterator: Any) -> Structure:
    """The shapes of the elements' components, as far as they are known, in their structure."""
    return shapes_of(dataset_or_iterator.element_spec)


def get_output_classes(dataset_or_iterator: Any) -> Structure:
    """`Tensor` for each component, in their structure."""
    return classes_of(dataset_or_iterator.element_spec)


def make_one_shot_iterator(dataset: Any) -> Iterator:
    """An iterator over ``dataset`` without initializer, for one pass. A distributed dataset creates its own.

    Tensors among the dataset's sources are computed when it starts. Raises `InvalidArgumentError` if they
    depend on a placeholder, a variable or other state, which needs `make_initializable_iterator`;
    `DTypeError` for anything but a dataset.
    """
    if not hasattr(dataset, "node"):
        return _maker("make_one_shot_iterator", dataset)()
    node: Node = dataset.node
    sources = _pure_sources(tensors_in(node))
    opening = _opening(node, tensors_in(node))

    def open(_: Sequence[Any], put: iterators.Put) -> iterators.Elements:
        values = evaluate(sources, {}, lambda stateful: stateful.op.state and stateful.op.state(stateful))
        return opening(values, put)

    with get_default_graph().device(node.device):
        resource = iterators.one_shot_iterator(open, **_element_attrs(node.spec))
    return Iterator(resource, None, node.spec)


def make_initializable_iterator(dataset: Any, shared_name: str | None = None) -> Iterator:
    """An iterator over ``dataset`` that starts, or restarts, when its ``initializer`` runs. A distributed
    dataset creates its own. Raises `DTypeError` for anything but a dataset.
    """
    if not hasattr(dataset, "node"):
        return _maker("make_initializable_iterator", dataset)(shared_name)
    node: Node = dataset.node
    resource = _new_handle(node.spec, node.device, shared_name)
    opening = _opening(node, tensors_in(node))
    return Iterator(resource, iterators.make_iterator(resource, tensors_in(node), opening), node.spec)


def _maker(name: str, dataset: Any) -> Any:
    """The iterator method of a dataset that has one, such as a strategy's."""
    if not hasattr(dataset, name):
        raise DTypeError(f"{name}: expected a dataset; got {dataset!r}")
    return getattr(dataset, name)


def _new_handle(spec: Structure, device: str, shared_name: str | None) -> Tensor:
    with get_default_graph().device(device):
        return iterators.iterator_op(shared_name=shared_name or "", **_element_attrs(spec))


def _element_attrs(spec: Structure) -> dict[str, Any]:
    leaves = flatten(spec)
    return {"output_types": [leaf.dtype for leaf in leaves], "output_shapes": [leaf.shape for leaf in leaves]}


def _check_fits(expected: Structure, got: Structure) -> None:
    if not same_structure(expected, got):
        raise InvalidArgumentError(
            f"make_initializer: expected elements of the iterator's structure {types_of(expected)}; "
            f"got {types_of(got)}"
        )
    for path, ours, theirs in zip(leaf_paths(expected), flatten(expected), flatten(got), strict=True):
        if ours.dtype is not theirs.dtype or not compatible(ours.shape, theirs.shape):
            kind = InvalidArgumentError if ours.dtype is theirs.dtype else DTypeError
            raise kind(f"make_initializer: component{path}: expected {ours}; got {theirs}")


def _pure_sources(tensors: Sequence[Tensor]) -> Subgraph:
    """The subgraph of ``tensors``. Raises `InvalidArgumentError` if a node needs a session."""
    subgraph = extract(get_default_graph(), tensors, (), {})
    for node in subgraph:
        if node.op.effect not in (Effect.PURE, Effect.RANDOM):
            message = "a one-shot iterator cannot depend on this. Use make_initializable_iterator()"
            raise located(node, InvalidArgumentError(message))
    return subgraph


# --- running


def _opening(node: Node, tensors: Sequence[Tensor]) -> iterators.Open:
    """A function with which a session starts a run over ``node``, given the values of ``tensors``."""

    def open(values: Sequence[Any], put: iterators.Put) -> iterators.Elements:
        on_host = [host_array(value) if is_foreign(value) else value for value in values]
        copies = [  # of a step's buffers
            np.array(value, t.dtype.np) for t, value in zip(tensors, on_host, strict=True)
        ]
        return _Run(node, dict(zip(tensors, copies, strict=True)), put)

    return open


@final
class _Run:
    """A run over a dataset, with the sessions of its functions."""

    def __init__(self, node: Node, values: dict[Tensor, Any], put: iterators.Put) -> None:
        with ExitStack() as stack:
            self._elements = ElementIterator(open_tree(node, values, stack), put)
            self._stack = stack.pop_all()

    def __next__(self) -> Element:
        return self._elements.__next__()

    def close(self) -> None:
        self._elements.close()
        self._stack.close()
