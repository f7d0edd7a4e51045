"""The names of ``data.experimental``: transformations for ``Dataset.apply``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from flowrt.base.structure import Structure, flatten, flatten_up_to, pack_as
from flowrt.data.auto_shard import AutoShardPolicy
from flowrt.data.choosing import Choose, Resample, Sample, Scan, Single, TakeWhile, Unique, probabilities
from flowrt.data.dataset import Dataset, components_of, traced_components, traced_predicate
from flowrt.data.node import HOST, Node
from flowrt.data.options import DistributeOptions, OptimizationOptions, ThreadingOptions
from flowrt.data.pipeline import AUTOTUNE, OnDevice, Prefetch
from flowrt.data.spec import TensorSpec, common_spec, spec_of
from flowrt.data.traced import FRESH_SEED, TracedDataset, tensors_in, trace
from flowrt.data.windows import BucketByLength, GroupByReducer, GroupByWindow, Held, TracedReduction, Window
from flowrt.device.spec import format_device, parse_device
from flowrt.dtypes import int32, int64, string
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.random.random_ops import get_seed
from flowrt.graph.shapes import as_shape
from flowrt.graph.source import misuse
from flowrt.graph.typing import FunctionOf
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "AUTOTUNE", "AutoShardPolicy", "Counter", "DistributeOptions", "OptimizationOptions", "Reducer",
    "ThreadingOptions", "bucket_by_sequence_length", "choose_from_datasets", "copy_to_device",
    "enumerate_dataset", "get_single_element", "group_by_reducer", "group_by_window", "map_and_batch",
    "parallel_interleave", "prefetch_to_device", "rejection_resample", "sample_from_datasets", "scan",
    "shuffle_and_repeat", "take_while", "unbatch", "unique",
]  # fmt: skip


def prefetch_to_device(device: str, buffer_size: int | None = None) -> Callable[[Dataset], Dataset]:
    """Elements computed ahead by a thread, at most ``buffer_size`` of them, and delivered on ``device``.

    It must be the last transformation: later ones move the elements back to the host. The iterator must be
    created from the dataset, not by `Iterator.from_structure`. Raises `DTypeError` for strings, which exist
    only on the host.
    """
    ahead = AUTOTUNE if buffer_size is None else buffer_size
    return lambda dataset: Dataset(Prefetch(_on(device, dataset, "prefetch_to_device"), ahead))


def copy_to_device(target_device: str, source_device: str = HOST) -> Callable[[Dataset], Dataset]:
    """Elements delivered on ``target_device``. Only a `Dataset.prefetch` may follow.

    Raises `InvalidArgumentError` unless ``source_device`` is a CPU, and `DTypeError` for strings.
    """
    if parse_device(source_device).device_type != "CPU":
        raise InvalidArgumentError(
            f"copy_to_device: expected elements from a CPU, where datasets compute; got {source_device!r}"
        )
    return lambda dataset: Dataset(_on(target_device, dataset, "copy_to_device"))


def _on(device: str, dataset: Any, what: str) -> OnDevice:
    spec = parse_device(device)
    if spec.device_type != "CPU" and any(leaf.dtype is string for leaf in flatten(dataset.node.spec)):
        raise DTypeError(f"{what}: expected components that {device} can hold; got strings")
    return OnDevice(dataset.node, format_device(spec))


def group_by_window(
    key_func: FunctionOf[Any],
    reduce_func: Callable[[Tensor, Dataset], Dataset],
    window_size: Any = None,
    window_size_func: Callable[[Tensor], Any] | None = None,
) -> Callable[[Dataset], Dataset]:
    """``reduce_func(key, window)`` of windows of elements with the same key, concatenated.

    ``key_func`` maps an element to an integer scalar. A window is a dataset of ``window_size`` consecutive
    elements with its key, or ``window_size_func(key)``; at the end, of the remaining ones. All functions are
    called once, to build a graph, as in `Dataset.map`. Raises `InvalidArgumentError` unless exactly one size
    is given, `DTypeError` for results that are not an integer scalar or a dataset.
    """
    if (window_size is None) == (window_size_func is None):
        raise InvalidArgumentError(
            "group_by_window: expected either window_size or window_size_func; got "
            f"{window_size!r} and {window_size_func!r}"
        )

    def apply(dataset: Dataset) -> Dataset:
        spec, place, number = dataset.node.spec, Held(), TensorSpec((), int64)
        key, _ = trace("key_func", key_func, spec, _integer_scalar("key_func"))
        size: Any = window_size
        if window_size_func is not None:
            size, _ = trace("window_size_func", window_size_func, number, _integer_scalar("window_size_func"))
        tensors, node = trace(
            "reduce_func", lambda key: reduce_func(key, Dataset(Window(spec, place))), number, _dataset
        )
        reduction: Any = TracedReduction(TracedDataset(tensors, node), place)
        return Dataset(GroupByWindow(dataset.node, key, reduction, size, node.spec))  # type: ignore[arg-type]

    return apply


class Reducer(NamedTuple):
    """The functions of `group_by_reducer`."""

    init_func: Callable[[Tensor], Any]
    reduce_func: Callable[[Any, Any], Any]
    finalize_func: Callable[..., Any]


def group_by_reducer(key_func: FunctionOf[Any], reducer: Reducer) -> Callable[[Dataset], Dataset]:
    """One element for each key, in ascending order, made of all elements with it.

    ``key_func`` maps an element to an integer scalar. A state is begun by ``reducer.init_func(key)`` and
    continued by ``reduce_func(state, element)``; its element is ``finalize_func(*state)``. Raises
    `DTypeError` or `InvalidArgumentError` for states of another structure or dtype than the first.

    Example:
        >>> sums = tf.data.experimental.Reducer(lambda _: np.int64(0), lambda s, x: s + x, lambda s: s)
        >>> totals = tf.data.experimental.group_by_reducer(lambda x: x % 2, sums)
        >>> total = tf.data.Dataset.range(5).apply(totals).make_one_shot_iterator().get_next()
        >>> [int(session.run(total)) for _ in range(2)]
        [6, 4]
    """

    def apply(dataset: Dataset) -> Dataset:
        spec, number = dataset.node.spec, TensorSpec((), int64)
        key, _ = trace("key_func", key_func, spec, _integer_scalar("key_func"))
        init, state = trace("init_func", reducer.init_func, number, _with_spec)
        while True:  # until the state's sizes are those of all states
            reduced, following = trace("reduce_func", reducer.reduce_func, (state, spec), _with_spec)
            relaxed = common_spec(state, following, "reduce_func")
            if relaxed == state:
                break
            state = relaxed
        final, returns = trace("finalize_func", reducer.finalize_func, state, _with_spec)
        return Dataset(GroupByReducer(dataset.node, key, init, reduced, final, returns))  # type: ignore[arg-type]

    return apply


def _with_spec(result: Any) -> tuple[list[Tensor], Structure]:
    tensors, parts = traced_components(result)
    return tensors, spec_of(parts)


def bucket_by_sequence_length(
    element_length_func: FunctionOf[Any],
    bucket_boundaries: Sequence[int],
    bucket_batch_sizes: Sequence[int],
    padded_shapes: Any = None,
    padding_values: Any = None,
    pad_to_bucket_boundary: bool = False,
    no_padding: bool = False,
    drop_remainder: bool = False,
) -> Callable[[Dataset], Dataset]:
    """Batches of elements of similar length, to reduce padding.

    ``element_length_func`` maps an element to its length. Bucket 0 has the lengths below
    ``bucket_boundaries[0]``, and so on; the last one the lengths from the last boundary upwards. A batch has
    ``bucket_batch_sizes[bucket]`` elements, padded as `Dataset.padded_batch` does: to its longest one, or
    with ``pad_to_bucket_boundary`` to the bucket's largest length. Then all batches of a bucket have the same
    shape (with ``drop_remainder``), so a step fed with them has one compiled plan per bucket; and for an
    element not below the last boundary the step raises `InvalidArgumentError`. At the end of each pass the
    fraction of padding is logged at level INFO.

    Raises `InvalidArgumentError` for boundaries that do not increase or a wrong number of batch sizes.
    """
    boundaries, sizes = tuple(map(int, bucket_boundaries)), tuple(map(int, bucket_batch_sizes))
    if not boundaries or any(a >= b for a, b in pairwise(boundaries)) or len(sizes) != len(boundaries) + 1:
        raise InvalidArgumentError(
            "bucket_by_sequence_length: expected increasing bucket_boundaries, and one batch size more than"
            f" boundaries; got {list(boundaries)} and {list(sizes)}"
        )

    def apply(dataset: Dataset) -> Dataset:
        place = Held()
        window = Dataset(Window(dataset.node.spec, place))

        def batch(bucket: int) -> Node | None:
            if no_padding:
                return window.batch(sizes[bucket], drop_remainder).node
            longest = None
            if pad_to_bucket_boundary:
                if bucket == len(boundaries):
                    return None
                longest = boundaries[bucket] - 1
            shapes = _filled_shapes(dataset.node.spec, padded_shapes, longest)
            return window.padded_batch(sizes[bucket], shapes, padding_values, drop_remainder).node

        length, _ = trace(
            "element_length_func",
            element_length_func,
            dataset.node.spec,
            _integer_scalar("element_length_func"),
        )
        batches = tuple(batch(bucket) for bucket in range(len(sizes)))
        return Dataset(BucketByLength(dataset.node, length, boundaries, sizes, batches, place))  # type: ignore[arg-type]

    return apply


# --- choices, states, ends


def sample_from_datasets(
    datasets: Sequence[Dataset], weights: Any = None, seed: int | None = None
) -> Dataset:
    """Elements of ``datasets`` in random order: each is the next one of a dataset drawn with the
    probabilities ``weights`` (None: equal ones) of those that have not ended. A dataset of weights is not
    supported. With ``seed``, or a graph-level seed, each run gives the same order.

    Raises `InvalidArgumentError` for weights that do not fit, or elements of different structures.
    """
    if isinstance(weights, (Dataset, Tensor)):
        raise UnimplementedError("sample_from_datasets: expected weights as numbers; got a dataset or tensor")
    nodes = tuple(dataset.node for dataset in datasets)
    seeds = tuple(FRESH_SEED if part is None else part for part in get_seed(seed))
    return Dataset(Sample(nodes, probabilities(weights, len(nodes)), seeds))  # type: ignore[arg-type]


def rejection_resample(
    class_func: FunctionOf[Any], target_dist: Any, initial_dist: Any = None, seed: int | None = None
) -> Callable[[Dataset], Dataset]:
    """Pairs ``(class, element)`` with classes in the proportions ``target_dist``: elements of classes that
    come too often are left out at random.

    ``class_func`` maps an element to its class, an integer scalar. ``initial_dist`` are the proportions of
    the dataset, by default estimated as it is read. The draws are not TensorFlow's. Raises
    `InvalidArgumentError` for proportions of several lengths, below 0 or, for the dataset, of 0; a step does
    for other classes.
    """
    target = _proportions("target_dist", target_dist)
    initial = None if initial_dist is None else _proportions("initial_dist", initial_dist)
    if initial is not None and (len(initial) != len(target) or min(initial) <= 0):
        raise misuse(
            "rejection_resample: expected proportions of as many classes, and those of the dataset above 0; "
            f"got target_dist {target} and initial_dist {initial}"
        )
    seeds = tuple(FRESH_SEED if part is None else part for part in get_seed(seed))

    def apply(dataset: Dataset) -> Dataset:
        spec = dataset.node.spec
        traced, kind = trace("class_func", class_func, spec, class_and_spec)
        classify: Any = traced  # bound when opened
        return Dataset(Resample(dataset.node, classify, target, initial, seeds, (kind, spec)))  # type: ignore[arg-type]

    def class_and_spec(result: Any) -> tuple[list[Tensor], Structure]:
        (number,), _ = _integer_scalar("class_func")(result)
        return [number], spec_of(number)

    return apply


def _proportions(name: str, given: Any) -> tuple[float, ...]:
    """``given``, a proportion for each class. Raises `InvalidArgumentError` for what cannot be one."""
    found = np.asarray(given, float)
    if found.ndim != 1 or not (found >= 0).all() or not 0 < found.sum() < np.inf:
        raise misuse(
            f"rejection_resample: {name}: expected a list of numbers from 0 on, one of them above 0; got "
            f"{given!r:.200}"
        )
    return tuple(found.tolist())


def choose_from_datasets(datasets: Sequence[Dataset], choice_dataset: Dataset) -> Dataset:
    """The next element of the dataset that ``choice_dataset``, of int64 scalars, names each time.

    Choices of a dataset that has ended are passed over. Raises `DTypeError` for other choices, and a step
    `InvalidArgumentError` for a number that no dataset has.

    Example:
        >>> letters = [tf.data.Dataset.from_tensors(letter).repeat() for letter in 'ab']
        >>> chosen = tf.data.experimental.choose_from_datasets(letters, tf.data.Dataset.range(2))
        >>> letter = chosen.make_one_shot_iterator().get_next()
        >>> session.run(letter), session.run(letter)
        (b'a', b'b')
    """
    choices = choice_dataset.node
    if choices.spec != TensorSpec((), int64):
        raise DTypeError(f"choose_from_datasets: expected choices of int64 scalars; got {choices.spec}")
    return Dataset(Choose(choices, tuple(dataset.node for dataset in datasets)))


def take_while(predicate: FunctionOf[Any]) -> Callable[[Dataset], Dataset]:
    """The elements before the first one for which ``predicate`` is false: see `Dataset.filter`."""

    def apply(dataset: Dataset) -> Dataset:
        decide: Any = traced_predicate("take_while", predicate, dataset.node.spec)  # bound when opened
        return Dataset(TakeWhile(dataset.node, decide))

    return apply


def scan(initial_state: Structure, scan_func: Callable[[Any, Any], Any]) -> Callable[[Dataset], Dataset]:
    """The outputs of ``scan_func(state, element)``, which returns the next state and an output.

    States have the structure and dtypes of ``initial_state``; sizes may change. Raises `DTypeError` or
    `InvalidArgumentError` for others.

    Example:
        >>> sums = tf.data.experimental.scan(np.int64(0), lambda total, x: (total + x, total + x))
        >>> total = tf.data.Dataset.range(1, 4).apply(sums).make_one_shot_iterator().get_next()
        >>> [int(session.run(total)) for _ in range(3)]
        [1, 3, 6]
    """

    def convert(result: Any) -> tuple[list[Tensor], tuple[Structure, Structure]]:
        if not isinstance(result, tuple) or len(result) != 2:
            raise DTypeError(f"scan_func: expected it to return a state and an output; got {result!r}")
        tensors, parts = zip(*(traced_components(part) for part in result), strict=True)
        return [*tensors[0], *tensors[1]], (spec_of(parts[0]), spec_of(parts[1]))

    def apply(dataset: Dataset) -> Dataset:
        first = components_of(initial_state)
        state = spec_of(first)
        while True:  # until the state's sizes are those of all states
            function, (next_state, output) = trace(
                "scan_func", scan_func, (state, dataset.node.spec), convert
            )
            relaxed = common_spec(state, next_state)
            if relaxed == state:
                fn: Any = function  # bound when opened
                return Dataset(Scan(dataset.node, fn, tuple(flatten(first)), output))
            state = relaxed

    return apply


def unique() -> Callable[[Dataset], Dataset]:
    """The elements that are not equal to an earlier one. Raises `DTypeError` unless they are scalars of
    int32, int64 or string.
    """

    def apply(dataset: Dataset) -> Dataset:
        spec = dataset.node.spec
        if (
            not isinstance(spec, TensorSpec)
            or spec.dtype not in (int32, int64, string)
            or spec.shape not in ((), None)
        ):
            raise DTypeError(f"unique: expected scalars of int32, int64 or string; got {spec}")
        return Dataset(Unique(dataset.node))

    return apply


def get_single_element(dataset: Dataset) -> Any:
    """The only element of ``dataset``, read anew by each step, which raises `InvalidArgumentError` if there
    are none or several.

    Example:
        >>> batch = tf.data.Dataset.range(4).batch(4)
        >>> session.run(tf.data.experimental.get_single_element(batch))
        array([0, 1, 2, 3])
    """
    return Dataset(Single(dataset.node)).repeat().make_one_shot_iterator().get_next()


# --- names of what datasets have as methods by now


def Counter(start: int = 0, step: int = 1, dtype: Any = int64) -> Dataset:
    """The numbers ``start``, ``start + step``, ... without end, of ``dtype``."""
    numbers = Dataset.range(_MANY)
    return numbers.map(lambda number: cast(start + number * step, dtype))


def enumerate_dataset(start: int = 0) -> Callable[[Dataset], Dataset]:
    """See `Dataset.enumerate`."""
    return lambda dataset: dataset.enumerate(start)


def map_and_batch(
    map_func: FunctionOf[Any],
    batch_size: Any,
    num_parallel_batches: Any = None,
    drop_remainder: Any = False,
    num_parallel_calls: Any = None,
) -> Callable[[Dataset], Dataset]:
    """`Dataset.map`, then `Dataset.batch`. ``num_parallel_batches`` is accepted."""
    return lambda dataset: dataset.map(map_func, num_parallel_calls).batch(batch_size, drop_remainder)


def parallel_interleave(
    map_func: FunctionOf[Dataset],
    cycle_length: Any,
    block_length: Any = 1,
    sloppy: Any = False,
    buffer_output_elements: Any = None,
    prefetch_input_elements: Any = None,
) -> Callable[[Dataset], Dataset]:
    """`Dataset.interleave`, in a certain order even where ``sloppy`` would allow any."""
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def shuffle_and_repeat(
    buffer_size: Any, count: Any = None, seed: int | None = None
) -> Callable[[Dataset], Dataset]:
    """`Dataset.shuffle`, then `Dataset.repeat`."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def unbatch() -> Callable[[Dataset], Dataset]:
    """See `Dataset.unbatch`."""
    return lambda dataset: dataset.unbatch()


def _filled_shapes(spec: Structure, padded_shapes: Any, length: int | None) -> Structure:
    """The padded shapes with ``length`` for each unknown dimension."""
    leaves = flatten(spec)
    given = [leaf.shape for leaf in leaves] if padded_shapes is None else flatten_up_to(spec, padded_shapes)
    shapes = [[length if d in (None, -1) else d for d in as_shape(shape) or ()] for shape in given]
    return pack_as(spec, shapes)


def _integer_scalar(what: str) -> Callable[[Any], tuple[list[Tensor], None]]:
    def convert(result: Any) -> tuple[list[Tensor], None]:
        number = convert_to_tensor(result)
        if not number.dtype.is_integer or number.shape.ndims not in (0, None):
            raise DTypeError(f"{what}: expected it to return an integer scalar; got {number!r}")
        return [number], None

    return convert


def _dataset(result: Any) -> tuple[tuple[Tensor, ...], Node]:
    if not isinstance(result, Dataset):
        raise DTypeError(f"reduce_func: expected it to return a Dataset; got {result!r}")
    return tensors_in(result.node), result.node


_MANY = 2**62  # numbers, as many as no program takes

__getattr__ = missing_from("data.experimental")
