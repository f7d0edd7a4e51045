"""Data as batches: arrays, sequences, generators and datasets, brought into the order of a model's inputs.

A batch is a triple of inputs, targets and sample weights, each a list of arrays.
"""

from __future__ import annotations

import itertools
import queue
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowrt.data.dataset import Dataset
from flowrt.data.iterator import Iterator as DatasetIterator
from flowrt.errors import OutOfRangeError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.keras.state.sessions import get_session
from flowrt.nest import flatten

Array = np.ndarray[Any, Any]


class Batch(tuple[list[Any], list[Any], list[Any]]):
    """Inputs, targets and sample weights."""

    @property
    def rows(self) -> int:
        """The number of samples."""
        return len(self[0][0]) if self[0] else len(self[1][0]) if self[1] else 0


@dataclass(frozen=True)
class Form:
    """The form of a model's data: names of its inputs and outputs, and ranks of the tensors that are fed.

    ``output_ranks`` is None for an output without a target.
    """

    input_names: Sequence[str]
    input_ranks: Sequence[int | None]
    output_names: Sequence[str]
    output_ranks: Sequence[int | None]
    class_weight: Any = None
    shapes: dict[tuple[str, str], TensorShape] = field(default_factory=dict)
    """The shape that is fed, by "input" or "target" and name."""

    def batch(self, x: Any, y: Any = None, sample_weight: Any = None) -> Batch:
        """Arrays in the order of the model. Raises `InvalidArgumentError` for other names, numbers or
        lengths.
        """
        inputs = arranged(x, self.input_names, "input", self.input_ranks)
        self._check_shapes("input", self.input_names, inputs)
        targets: list[Any] = []
        weights: list[Any] = []
        if y is not None:
            if self.output_ranks and all(rank is None for rank in self.output_ranks):
                raise misuse("compile: expected a loss, which takes the targets y; got none")
            names = [
                n for n, rank in zip(self.output_names, self.output_ranks, strict=True) if rank is not None
            ]
            ranks = [rank for rank in self.output_ranks if rank is not None]
            targets = arranged(y, names, "target", ranks)
            self._check_shapes("target", names, targets)
            weights = self._weights(sample_weight, names, targets)
        _check_lengths(inputs, targets, weights)
        return Batch((inputs, targets, weights))

    def _check_shapes(self, what: str, names: Sequence[str], arrays: Sequence[Array]) -> None:
        for name, array in zip(names, arrays, strict=bool(arrays)):
            expected = self.shapes.get((what, name))
            if expected is None or expected[1:].is_compatible_with(array.shape[1:]):
                continue
            dims = expected.as_list()
            hint = ""
            if what == "target" and len(dims) == array.ndim == 2 and dims[1] == 1:
                hint = ". A loss of class numbers takes a column of them; for one-hot rows take another"
            elif what == "target" and len(dims) == array.ndim and array.shape[1:] == (1,):
                hint = ". If these are class numbers, utils.to_categorical() makes one-hot rows"
            shown = ", ".join("?" if n is None else str(n) for n in dims)
            raise misuse(
                f"{what} {name!r}: expected an array of shape [{shown}]; got one of {list(array.shape)}{hint}"
            )

    def _weights(self, given: Any, names: Sequence[str], targets: Sequence[Array]) -> list[Any]:
        found: list[Any] = [None] * len(names)
        if given is not None:
            if isinstance(given, Mapping):
                found = [given.get(name) for name in names]
            else:
                found = list(given) if isinstance(given, (list, tuple)) and len(names) > 1 else [given]
            found = [None if each is None else np.asarray(each, np.float32) for each in found]
        if self.class_weight:
            by_class = self.class_weight if len(names) == 1 else None
            for i, name in enumerate(names):
                mapping = by_class if by_class is not None else self.class_weight.get(name)
                if mapping:
                    own = class_weights(targets[i], mapping)
                    found[i] = own if found[i] is None else found[i] * own
        return found


def arranged(data: Any, names: Sequence[str], what: str, ranks: Sequence[int | None]) -> list[Any]:
    """``data``, an array, a list or a dict of them, as one array for each name; vectors become columns."""
    if data is None:
        return []
    if isinstance(data, Mapping):
        for name in names:
            if name not in data:
                raise misuse(f"{what}: expected arrays for {', '.join(names)}; {name!r} is missing")
        arrays = [data[name] for name in names]
    elif isinstance(data, (list, tuple)) and (len(names) > 1 or _is_list_of_arrays(data)):
        arrays = list(data)
    else:
        arrays = [data]
    if len(arrays) != len(names):
        raise misuse(f"{what}: expected {len(names)} arrays, for {', '.join(names)}; got {len(arrays)}")
    return [_column(_as_array(each), rank) for each, rank in zip(arrays, ranks, strict=True)]


def _is_list_of_arrays(data: Sequence[Any]) -> bool:
    """Whether ``data`` is a list of arrays, rather than an array as nested lists of numbers."""
    is_only = len(data) == 1 and isinstance(data[0], (list, tuple))
    return is_only or bool(data and np.ndim(data[0]) and hasattr(data[0], "shape"))


def _as_array(value: Any) -> Array:
    if isinstance(value, Tensor):
        raise misuse(f"expected arrays; got the tensor {value!r}. Make the model of an Input(tensor=...)")
    try:
        return np.asarray(getattr(value, "values", value) if hasattr(value, "iloc") else value)
    except ValueError:
        raise misuse(
            "expected an array, or lists of one length; got lists of several. Sequences of several lengths "
            "need pad_sequences"
        ) from None


def _column(array: Array, rank: int | None) -> Array:
    return array[:, np.newaxis] if array.ndim == 1 and rank != 1 else array


def _check_lengths(*groups: Sequence[Any]) -> None:
    lengths = sorted({len(array) for group in groups for array in group if array is not None})
    if len(lengths) > 1:
        raise misuse(f"expected arrays with one number of samples; got {', '.join(map(str, lengths))}")


def class_weights(target: Array, weight_of: Mapping[int, float]) -> Array:
    """The weight of each sample by its class, an integer or one-hot. Raises `InvalidArgumentError` for a
    class without a weight.
    """
    classes = target.argmax(-1) if target.ndim > 1 and target.shape[-1] > 1 else target.reshape(len(target))
    missing = set(map(int, np.unique(classes))) - set(weight_of)
    if missing:
        raise misuse(f"class_weight: expected a weight for every class; {min(missing)} has none")
    return np.array([weight_of[int(c)] for c in classes], np.float32)


# --- sources of batches


class Batches:
    """The batches of one epoch after the other.

    ``steps`` is the number of batches of an epoch if known, ``samples`` that of samples, for arrays. An epoch
    ends early where there are no batches left.
    """

    steps: int | None = None
    samples: int | None = None

    def epoch(self) -> Iterator[Batch]:
        raise NotImplementedError

    def close(self) -> None:
        """Stop reading ahead."""


class RepeatedBatch(Batches):
    """One batch, ``steps`` times: all of the arrays, or nothing for a model with inputs and targets that are
    tensors.
    """

    def __init__(self, batch: Batch, steps: int) -> None:
        self._batch, self.steps = batch, steps

    def epoch(self) -> Iterator[Batch]:
        return itertools.repeat(self._batch, self.steps or 0)


class ArrayBatches(Batches):
    """Batches of arrays, in a new random order each epoch with ``shuffle``, which may be "batch": the order
    of the batches only.
    """

    def __init__(self, data: Batch, batch_size: int, shuffle: bool | str = False) -> None:
        self._data, self._batch_size, self._shuffle = data, batch_size, shuffle
        self.samples = data.rows
        self.steps = -(-self.samples // batch_size)

    def epoch(self) -> Iterator[Batch]:
        assert self.samples is not None
        assert self.steps is not None
        order: Array | None = None
        if self._shuffle == "batch":
            whole = np.arange(self.samples - self.samples % self._batch_size)
            mixed = np.random.permutation(whole.reshape(-1, self._batch_size)).ravel()
            order = np.concatenate([mixed, np.arange(len(whole), self.samples)])
        elif self._shuffle:
            order = np.arange(self.samples)
            np.random.shuffle(order)
        for start in range(0, self.samples, self._batch_size):
            rows: Any = slice(start, min(start + self._batch_size, self.samples))
            rows = rows if order is None else order[rows]
            yield Batch(tuple([None if a is None else a[rows] for a in group] for group in self._data))


class Items:
    """Items of a generator or `Sequence`: ``(x, y)``, ``(x, y, sample_weight)``, or ``x`` to predict."""

    def __init__(self, form: Form, has_targets: bool) -> None:
        self._form, self._has_targets = form, has_targets

    def batch(self, item: Any) -> Batch:
        """Raises `InvalidArgumentError` for an item of another form."""
        if not isinstance(item, tuple):
            if self._has_targets:
                raise misuse(
                    f"generator: expected pairs (x, y) or triples with sample weights; got {summary(item)}"
                )
            return self._form.batch(item)
        if len(item) not in (1, 2, 3):
            raise misuse(
                f"generator: expected pairs (x, y) or triples with sample weights; got {len(item)} items"
            )
        return self._form.batch(*item) if self._has_targets else self._form.batch(item[0])


class GeneratorBatches(Batches):
    """Batches of a generator, which goes on from epoch to epoch; ``read_ahead`` are waiting, read by a
    thread.
    """

    def __init__(self, generator: Any, items: Items, steps: int | None, read_ahead: int = 0) -> None:
        self._source, self._items, self.steps = iter(generator), items, steps
        self._reader = ReadAhead(self._source, read_ahead) if read_ahead else None

    def epoch(self) -> Iterator[Batch]:
        for item in itertools.islice(self._reader or self._source, self.steps):
            yield self._items.batch(item)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class SequenceBatches(Batches):
    """Batches of a `Sequence`, in a new random order each epoch with ``shuffle``."""

    def __init__(self, sequence: Any, items: Items, steps: int | None, shuffle: bool) -> None:
        self._sequence, self._items, self._shuffle = sequence, items, shuffle
        self.steps = min(steps or len(sequence), len(sequence))

    def epoch(self) -> Iterator[Batch]:
        order = list(range(len(self._sequence)))
        if self._shuffle:
            random.shuffle(order)  # TensorFlow's order for a seed: that of arrays is NumPy's
        for index in order[: self.steps]:
            yield self._items.batch(self._sequence[index])
        self._sequence.on_epoch_end()


class DatasetBatches(Batches):
    """Batches of a `flowrt.data` dataset or iterator: fetched, then fed."""

    def __init__(self, source: Any, items: Items, steps: int | None) -> None:
        self._items, self.steps = items, steps
        self._iterator = source.make_initializable_iterator() if isinstance(source, Dataset) else source
        self._is_ours = isinstance(source, Dataset)
        self._next = self._iterator.get_next()
        for part in flatten(self._next):
            if isinstance(part, Tensor) and part.shape.ndims == 0:
                raise misuse(f"dataset: expected batches; got {self._next!r}. Is a call of batch() missing?")
        self._begun = False

    def epoch(self) -> Iterator[Batch]:
        session = get_session()
        if self._is_ours and (not self._begun or self.steps is None):
            session.run(self._iterator.initializer)
        self._begun = True
        for _ in itertools.count() if self.steps is None else range(self.steps):
            try:
                item = session.run(self._next)
            except OutOfRangeError:
                return
            yield self._items.batch(item)


class ReadAhead:
    """Items of an iterator, read by a thread of its own; its errors are raised here."""

    def __init__(self, source: Iterator[Any], size: int) -> None:
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(size)
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._read, args=(source,), name="keras-generator", daemon=True
        )
        self._thread.start()

    def _read(self, source: Iterator[Any]) -> None:
        try:
            for item in source:
                if not self._put("item", item):
                    return
            self._put("end", None)
        except BaseException as error:  # noqa: BLE001  raised by the reader of the queue
            self._put("error", error)

    def _put(self, kind: str, value: Any) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put((kind, value), timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[Any]:
        while True:
            kind, value = self._queue.get()
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


def _check_count(name: str, given: Any) -> None:
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, (int, float, np.number)) or given <= 0:
        raise misuse(f"{name}: expected a positive number; got {summary(given)}")


def summary(value: Any) -> str:
    """``value`` in a few words, for a message."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)} and dtype {value.dtype}"
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def as_batches(
    form: Form, x: Any, y: Any = None, sample_weight: Any = None, batch_size: int | None = None,
    shuffle: bool | str = False, steps: int | None = None, has_targets: bool = True,
) -> Batches:  # fmt: skip
    """The batches of ``x``, whatever it is: of arrays with ``steps``, all of them at each step, as in
    TensorFlow 1.15. Raises `InvalidArgumentError` for arrays without targets.
    """
    _check_count("steps", steps)
    _check_count("batch_size", batch_size)
    items = Items(form, has_targets)
    if isinstance(x, (Dataset, DatasetIterator)) or hasattr(x, "__next__") or hasattr(x, "on_epoch_end"):
        kind = "dataset" if isinstance(x, (Dataset, DatasetIterator)) else "generator"
        if has_targets and y is not None:
            raise misuse(f"y: expected none with a {kind} as x, which has the targets; got {summary(y)}")
        if sample_weight is not None:
            raise misuse(
                f"sample_weight: expected none with a {kind} as x, which has the weights as third component; "
                f"got {summary(sample_weight)}"
            )
        if batch_size is not None:
            raise misuse(f"batch_size: expected none with a {kind} as x, which has batches; got {batch_size}")
    if hasattr(x, "__getitem__") and hasattr(x, "on_epoch_end"):
        return SequenceBatches(x, items, steps, bool(shuffle))
    if isinstance(x, (Dataset, DatasetIterator)):
        return DatasetBatches(x, items, steps)
    if hasattr(x, "__next__"):
        return GeneratorBatches(x, items, steps)
    if x is None and y is None and not form.input_names and all(rank is None for rank in form.output_ranks):
        if steps is None:
            raise misuse("steps: expected a number of batches for a model that is fed nothing; got none")
        return RepeatedBatch(Batch(([], [], [])), steps)
    if x is None and form.input_names:
        raise misuse(f"x: expected arrays for {', '.join(form.input_names)}; got none")
    if (
        has_targets
        and y is None
        and form.output_names
        and any(rank is not None for rank in form.output_ranks)
    ):
        raise misuse("fit: expected targets y for the arrays x; got none")
    data = form.batch(x, y if has_targets else None, sample_weight)
    return ArrayBatches(data, batch_size or 32, shuffle) if steps is None else RepeatedBatch(data, steps)
