"""`Dataset`: a pipeline of elements, TensorFlow 1's interface on the trees of `flowrt.data.node`.

An element is a structure of components: a tensor, or tuples, named tuples and dicts of them; a list becomes
one tensor. A method adds one node to the tree and returns a new dataset; nothing is read before an iterator
begins. Arguments may be tensors of the graph: their values are taken when the iterator is initialized.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from flowrt.base.in_notebook import InNotebook
from flowrt.base.structure import Structure, flatten, flatten_up_to, map_structure
from flowrt.data import iterator, pipeline
from flowrt.data.batching import Batch, PaddedBatch, Unbatch
from flowrt.data.node import Node
from flowrt.data.options import Options
from flowrt.data.record_files import FileNames, FixedRecords, Records, TextLines
from flowrt.data.sources import FromGenerator, Range, Tensors, TensorSlices
from flowrt.data.spec import TensorSpec, declared_spec, spec_of
from flowrt.data.traced import FRESH_SEED, TracedDataset, TracedPredicate, tensors_in, trace
from flowrt.dtypes import as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.random.random_ops import get_seed
from flowrt.graph.shapes import as_shape
from flowrt.graph.source import misuse, user_line
from flowrt.graph.typing import FunctionOf, NumericLike, TensorLike

_INT64_MAX = 2**63 - 1

_ALL = 2**31 - 1
"""A size of a shuffle's buffer that all names of files fit in: it holds no more elements than there are."""


class Dataset(InNotebook):
    """See the module. ``node`` is the tree; users begin with one of the static methods.

    Example:
        >>> rows = tf.data.Dataset.range(5).map(lambda x: x * x).batch(2)
        >>> batch = rows.make_one_shot_iterator().get_next()
        >>> session.run(batch), session.run(batch)
        (array([0, 1]), array([4, 9]))
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    def __iter__(self) -> NoReturn:
        raise misuse(
            "Dataset: cannot be iterated, as a graph computes its elements. Use"
            " make_one_shot_iterator().get_next()",
            DTypeError,
        )

    # --- sources

    @staticmethod
    def from_tensors(tensors: Structure) -> Dataset:
        """One element: ``tensors``."""
        return Dataset(Tensors(components_of(tensors)))

    @staticmethod
    def from_tensor_slices(tensors: Structure) -> Dataset:
        """One element per row.

        Args:
            tensors: A structure of tensors with the same number of rows.

        Returns:
            A data set.

        Raises:
            InvalidArgumentError: A tensor is a scalar, or the numbers of rows differ.

        Example:
            >>> dataset = tf.data.Dataset.from_tensor_slices(([1, 2, 3], [10, 20, 30]))
            >>> x, y = dataset.batch(2).make_one_shot_iterator().get_next()
            >>> session.run([x, y])
            [array([1, 2], dtype=int32), array([10, 20], dtype=int32)]
        """
        return Dataset(TensorSlices(components_of(tensors)))

    @staticmethod
    def list_files(file_pattern: TensorLike, shuffle: bool | None = None, seed: int | None = None) -> Dataset:
        """The names of the files that match ``file_pattern`` when an epoch begins.

        Args:
            file_pattern: A pattern as in a shell, such as ``data/*.tfrecord``, or several.
            shuffle: False for sorted names; else they are in random order.
            seed: The seed of that order, as for `shuffle`.

        Returns:
            A data set of strings. A step raises `InvalidArgumentError` if no file matches.

        Example:
            >>> files = tf.data.Dataset.list_files("data/*.tfrecord", seed=1)
            >>> records = files.interleave(tf.data.TFRecordDataset, cycle_length=4)
        """
        names = Dataset(FileNames(_filenames("list_files", file_pattern)))
        return names if shuffle is False else names.shuffle(_ALL, seed)

    @staticmethod
    def from_generator(
        generator: Callable[..., Iterable[Any]],
        output_types: Structure,
        output_shapes: Structure = None,
        args: Sequence[Any] | None = None,
    ) -> Dataset:
        """The elements that ``generator(*args)`` yields, checked against ``output_types`` and
        ``output_shapes`` (unknown if None).

        ``args`` are passed as arrays, scalars as NumPy's or bytes. It is called once per pass over the data.
        The step raises `DTypeError` or `InvalidArgumentError` for an element that does not match.
        """
        if not callable(generator):
            raise DTypeError(
                f"from_generator: expected a function that returns an iterable; got {generator!r}",
                source=user_line(),
            )
        spec = declared_spec(output_types, output_shapes)
        return Dataset(FromGenerator(generator, spec, tuple(_component(arg) for arg in args or ())))

    @staticmethod
    def range(*args: Any) -> Dataset:
        """int64 scalars: ``range(stop)``, ``range(start, stop)`` or ``range(start, stop, step)``."""
        if not 1 <= len(args) <= 3:
            raise InvalidArgumentError(
                f"range: expected 1 to 3 arguments; got {len(args)}", source=user_line()
            )
        numbers = [_integer("range", arg) for arg in args]
        return Dataset(Range(0, *numbers) if len(numbers) == 1 else Range(*numbers))

    @staticmethod
    def zip(datasets: Structure) -> Dataset:
        """Corresponding elements of a structure of datasets; ends with the shortest."""
        return Dataset(pipeline.Zip(map_structure(lambda dataset: _node("zip", dataset), datasets)))

    # --- transformations

    def batch(self, batch_size: NumericLike, drop_remainder: bool = False) -> Dataset:
        """``batch_size`` elements stacked along a new first dimension; the last batch may be smaller."""
        return Dataset(Batch(self.node, _integer("batch: batch_size", batch_size), drop_remainder))

    def padded_batch(
        self,
        batch_size: NumericLike,
        padded_shapes: Structure = None,
        padding_values: Structure = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """The same as `batch`, each component padded at its end to its padded shape.

        A dimension that is None or -1 is padded to the batch's largest; without ``padded_shapes`` all unknown
        ones are. ``padding_values``: a structure of scalars, or one for all; None pads with 0 or the empty
        string. Raises `InvalidArgumentError` for shapes of another rank.
        """
        spec = self.node.spec
        shapes = iterator.shapes_of(spec) if padded_shapes is None else padded_shapes
        return Dataset(
            PaddedBatch(
                self.node,
                _integer("padded_batch: batch_size", batch_size),
                tuple(_padded_shape(shape) for shape in flatten_up_to(spec, shapes)),
                _padding(spec, padding_values),
                drop_remainder,
            )
        )

    def unbatch(self) -> Dataset:
        """The rows of every element as elements."""
        return Dataset(Unbatch(self.node))

    def map(
        self,
        map_func: FunctionOf[Any],
        num_parallel_calls: NumericLike | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """``map_func`` of every element.

        The function gets tensors (the items of a plain tuple as separate arguments) and returns a structure
        of tensors; it is called once, to build a graph. With ``num_parallel_calls`` that graph runs on as
        many threads; the order of the elements is always kept. Raises the errors of ``map_func``, and
        `UnimplementedError` if it uses tensors or variables of the enclosing graph.
        """
        function, result = trace("map_func", map_func, self.node.spec, traced_components)
        calls = (
            None if num_parallel_calls is None else _integer("map: num_parallel_calls", num_parallel_calls)
        )
        fn: Any = function  # bound when opened
        return Dataset(pipeline.Map(self.node, fn, spec_of(result), calls, function.is_pure))

    def flat_map(self, map_func: FunctionOf[Dataset]) -> Dataset:
        """The elements of the datasets that ``map_func`` returns, one dataset after the other."""
        return self._interleave("flat_map", map_func, 1, 1)

    def interleave(
        self,
        map_func: FunctionOf[Dataset],
        cycle_length: NumericLike | None = None,
        block_length: NumericLike | None = None,
        num_parallel_calls: NumericLike | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """The elements of the datasets that ``map_func`` returns, ``block_length`` of each of
        ``cycle_length`` in turn.

        ``cycle_length`` is the number of cores when None or AUTOTUNE. The datasets are read one at a time;
        ``num_parallel_calls`` is ignored.
        """
        automatic = cycle_length is None or (
            isinstance(cycle_length, int) and cycle_length == pipeline.AUTOTUNE
        )
        cycle = os.cpu_count() or 1 if automatic else _integer("interleave: cycle_length", cycle_length)
        block = 1 if block_length is None else _integer("interleave: block_length", block_length)
        return self._interleave("interleave", map_func, cycle, block)

    def _interleave(self, what: str, map_func: FunctionOf[Dataset], cycle: Any, block: Any) -> Dataset:
        def convert(result: Any) -> tuple[tuple[Tensor, ...], Node]:
            node = _node(f"{what}: map_func's result", result)
            return tensors_in(node), node

        tensors, node = trace("map_func", map_func, self.node.spec, convert)
        function: Any = TracedDataset(tensors, node)
        return Dataset(pipeline.Interleave(self.node, function, node.spec, cycle, block))

    def filter(self, predicate: FunctionOf[Any]) -> Dataset:
        """The elements for which ``predicate``, a function of tensors as in `map`, returns a true scalar."""
        decide: Any = traced_predicate("filter", predicate, self.node.spec)  # bound when opened
        return Dataset(pipeline.Filter(self.node, decide))

    def shuffle(
        self, buffer_size: NumericLike, seed: int | None = None, reshuffle_each_iteration: bool | None = None
    ) -> Dataset:
        """The elements in random order, drawn from a buffer of ``buffer_size``.

        With ``seed``, or a graph-level seed, each run of the iterator gives the same orders. Every pass of an
        enclosing `repeat` is reshuffled unless ``reshuffle_each_iteration`` is False.
        """
        seeds = tuple(FRESH_SEED if part is None else part for part in get_seed(seed))
        size = _integer("shuffle: buffer_size", buffer_size)
        return Dataset(pipeline.Shuffle(self.node, size, seeds, reshuffle_each_iteration is not False))  # type: ignore[arg-type]

    def repeat(self, count: NumericLike | None = None) -> Dataset:
        """The elements ``count`` times; endlessly when None or -1."""
        return Dataset(
            pipeline.Repeat(self.node, None if count is None else _integer("repeat: count", count))
        )

    def take(self, count: NumericLike) -> Dataset:
        """The first ``count`` elements; all when -1."""
        return Dataset(pipeline.Take(self.node, _integer("take: count", count)))

    def skip(self, count: NumericLike) -> Dataset:
        """All but the first ``count`` elements; none when -1.

        Rows of tensors are skipped in whole epochs. A `map` without random numbers, stateful Python and
        branches is not called for what is skipped.
        """
        return Dataset(pipeline.Skip(self.node, _integer("skip: count", count)))

    def shard(self, num_shards: NumericLike, index: NumericLike) -> Dataset:
        """Every ``num_shards``-th element, from number ``index`` on.

        Raises `InvalidArgumentError` for a bad index.
        """
        return Dataset(
            pipeline.Shard(
                self.node, _integer("shard: num_shards", num_shards), _integer("shard: index", index)
            )
        )

    def concatenate(self, dataset: Dataset) -> Dataset:
        """These elements, then those of ``dataset``, which must have the same structure and dtypes."""
        return Dataset(pipeline.Concatenate(self.node, _node("concatenate", dataset)))

    def enumerate(self, start: TensorLike = 0) -> Dataset:
        """``(number, element)``, the numbers int64 from ``start`` on."""
        return Dataset.zip((Dataset.range(start, _INT64_MAX), self))

    def cache(self, filename: str = "") -> Dataset:
        """The elements, kept in memory once a pass over them has ended.

        Raises `UnimplementedError` for a ``filename``.
        """
        if filename:
            raise UnimplementedError(
                f"cache: expected no filename; got {filename!r}. Elements are cached in memory",
                source=user_line(),
            )
        return Dataset(pipeline.Cache(self.node))

    def prefetch(self, buffer_size: NumericLike) -> Dataset:
        """The elements, at most ``buffer_size`` of them computed ahead by a thread."""
        return Dataset(pipeline.Prefetch(self.node, _integer("prefetch: buffer_size", buffer_size)))

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """``transformation_func(self)``."""
        return Dataset(_node("apply: transformation_func's result", transformation_func(self)))

    def with_options(self, options: Options) -> Dataset:
        """The same elements: `flowrt.data.Options` change none. Raises `UnimplementedError` for a choice of
        how workers share the dataset.
        """
        if any(value is not None for value in vars(options.experimental_distribute).values()):
            raise UnimplementedError(
                "with_options: expected no experimental_distribute options. Instead:"
                " distribute.InputOptions(auto_shard_policy=...) of the strategy",
                source=user_line(),
            )
        return Dataset(self.node)

    # --- iterators and the spec of the elements

    def make_one_shot_iterator(self) -> iterator.Iterator:
        """See `flowrt.data.make_one_shot_iterator`."""
        return iterator.make_one_shot_iterator(self)

    def make_initializable_iterator(self, shared_name: str | None = None) -> iterator.Iterator:
        """See `flowrt.data.make_initializable_iterator`."""
        return iterator.make_initializable_iterator(self, shared_name)

    @property
    def element_spec(self) -> Structure:
        return self.node.spec

    @property
    def output_types(self) -> Structure:
        return iterator.types_of(self.node.spec)

    @property
    def output_shapes(self) -> Structure:
        return iterator.shapes_of(self.node.spec)

    @property
    def output_classes(self) -> Structure:
        return iterator.classes_of(self.node.spec)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {map_structure(str, self.node.spec)}>"


class TextLineDataset(Dataset):
    """The lines of text files, string scalars without line ends.

    ``filenames`` is one or several; ``compression_type`` "" or "GZIP". ``buffer_size`` and
    ``num_parallel_reads`` are accepted: files are read one after the other.
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: Any = None,
        buffer_size: NumericLike | None = None,
        num_parallel_reads: Any = None,
    ) -> None:
        super().__init__(TextLines(_filenames("TextLineDataset", filenames), compression_type or ""))


class TFRecordDataset(Dataset):
    """The records of TFRecord files, string scalars: see `flowrt.python_io`. A step raises `NotFoundError`
    for a missing file, and `DataLossError`, with the byte, at a damaged record.

    Args:
        filenames: A name, several, or a dataset of names.
        compression_type: "", "GZIP" or "ZLIB".
        buffer_size: Accepted.
        num_parallel_reads: Accepted: files are read one after the other.

    Example:
        >>> with tf.python_io.TFRecordWriter('data.tfrecord') as writer:
        ...     writer.write(b'one')
        ...     writer.write(b'two')
        >>> record = tf.data.TFRecordDataset('data.tfrecord').make_one_shot_iterator().get_next()
        >>> session.run(record), session.run(record)
        (b'one', b'two')
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: Any = None,
        buffer_size: NumericLike | None = None,
        num_parallel_reads: Any = None,
    ) -> None:
        if isinstance(filenames, Dataset):
            super().__init__(filenames.flat_map(lambda name: TFRecordDataset(name, compression_type)).node)
        else:
            super().__init__(Records(_filenames("TFRecordDataset", filenames), compression_type or ""))


class FixedLengthRecordDataset(Dataset):
    """Records of ``record_bytes`` bytes of files, string scalars, without each file's first ``header_bytes``
    and last ``footer_bytes``. ``filenames`` and the rest as for `TextLineDataset`.

    A step raises `DataLossError` for a file that does not end with a record.
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: Any,
        header_bytes: Any = None,
        footer_bytes: Any = None,
        buffer_size: NumericLike | None = None,
        compression_type: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        names = _filenames("FixedLengthRecordDataset", filenames)
        counts = [
            _integer(f"FixedLengthRecordDataset: {key}", value or 0)
            for key, value in (
                ("record_bytes", record_bytes),
                ("header_bytes", header_bytes),
                ("footer_bytes", footer_bytes),
            )
        ]
        super().__init__(FixedRecords(names, compression_type or "", *counts))


# --- arguments


def _filenames(dataset: str, filenames: Any) -> Any:
    """Names as a component. Raises `DTypeError` unless they are strings."""
    names = _component(os.fspath(filenames) if isinstance(filenames, os.PathLike) else filenames)
    if as_dtype(names.dtype) is not as_dtype("string"):
        raise DTypeError(f"{dataset}: expected filenames; got {filenames!r}", source=user_line())
    return names


def _is_list(structure: Structure) -> bool:
    return isinstance(structure, list)


def components_of(tensors: Structure) -> Structure:
    return map_structure(_component, tensors, is_leaf=_is_list)


def _component(value: Any) -> Any:
    """``value`` as an array, or as a tensor if it is or contains one."""
    leaves = flatten(value) if isinstance(value, list) else [value]
    symbolic = any(isinstance(leaf, Tensor) or hasattr(leaf, "__flowrt_tensor__") for leaf in leaves)
    return convert_to_tensor(value) if symbolic else as_array(value)


def traced_predicate(method: str, predicate: FunctionOf[Any], spec: Structure) -> TracedPredicate:
    """The graph of ``predicate``. Raises `DTypeError` unless it returns a bool scalar."""
    function, result = trace("predicate", predicate, spec, traced_components)
    found = spec_of(result)
    if (
        not isinstance(found, TensorSpec)
        or found.dtype is not as_dtype(bool)
        or found.shape not in ((), None)
    ):
        raise DTypeError(
            f"{method}: expected predicate to return a bool scalar; got {map_structure(str, found)}",
            source=user_line(),
        )
    return TracedPredicate(function)


def traced_components(result: Any) -> tuple[list[Tensor], Structure]:
    tensors = map_structure(convert_to_tensor, result, is_leaf=_is_list)
    return flatten(tensors), tensors


def _integer(where: str, value: Any) -> Any:
    """``value`` as an int, or as an integer tensor."""
    if hasattr(value, "__flowrt_tensor__"):
        value = convert_to_tensor(value)
    if isinstance(value, Tensor) and value.dtype.is_integer:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise DTypeError(f"{where}: expected an integer; got {value!r}", source=user_line()) from None


def _node(where: str, dataset: Any) -> Node:
    if not isinstance(dataset, Dataset):
        raise DTypeError(f"{where}: expected a Dataset; got {dataset!r}", source=user_line())
    return dataset.node


def _padded_shape(shape: Any) -> tuple[int | None, ...]:
    dims = as_shape(shape.tolist() if isinstance(shape, np.ndarray) else shape)
    if dims is None:
        raise InvalidArgumentError(
            "padded_batch: expected padded_shapes of known rank; got an unknown one", source=user_line()
        )
    return dims


def _padding(spec: Structure, values: Structure) -> tuple[Any, ...]:
    leaves = flatten(spec)
    single = values is None or np.isscalar(values)
    given = [values] * len(leaves) if single else flatten_up_to(spec, values)
    return tuple(
        value if value is None or isinstance(value, Tensor) else as_array(value, leaf.dtype)
        for value, leaf in zip(given, leaves, strict=True)
    )
