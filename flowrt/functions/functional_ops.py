"""Loops over the rows of tensors: ``map_fn``, ``scan``, ``foldl``, ``foldr``, under TensorFlow's names.

Each is a `while_loop` that reads one row of every element from a `TensorArray` and writes one row of every
result to another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt.base.structure import Structure, flatten, flatten_up_to, leaf_paths, pack_as
from flowrt.control_flow import while_loop
from flowrt.control_flow.functions import check_callable, check_returned, described
from flowrt.control_flow.signatures import TensorSpec
from flowrt.dtypes import as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.functions.tensor_array import TensorArray
from flowrt.graph import node
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.shapes import compatible, merge
from flowrt.graph.source import misuse
from flowrt.nest import is_nested

PARALLEL_ITERATIONS = 10  # TensorFlow's number; accepted, since iterations of one device run in order


def map_fn(
    fn: Callable[[Any], Any],
    elems: Structure,
    dtype: Structure = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: Structure = None,
) -> Structure:
    """``fn`` of each row of ``elems``, stacked along a new first axis.

    ``elems`` is a structure of tensors ``[n, ...]``; ``fn`` gets one like it of rows. What it returns is like
    ``fn_output_signature`` (older: ``dtype``), a structure of dtypes or `TensorSpec`, or if that is None like
    ``elems`` in structure and dtypes. Rows of results have one shape; without ``infer_shape`` nothing is
    concluded from it. Options are those of `while_loop`.

    Raises `DTypeError` and `InvalidArgumentError` for elems without rows or of different lengths, and for
    results of another structure or dtype.

    Example:
        >>> tf.map_fn(lambda row: row * row, tf.constant([1, 2, 3])).eval()
        array([1, 4, 9], dtype=int32)
    """
    with get_default_graph().name_scope(name or "map"):
        rows = Rows("map_fn", fn, elems)
        expected = _row_results(rows, dtype, fn_output_signature)
        results = [
            TensorArray(spec.dtype, rows.length, infer_shape=infer_shape, element_shape=spec.shape)
            for spec in expected.specs
        ]
        row = rows.unstack()

        def body(i: Tensor, results: list[TensorArray]) -> tuple[Any, list[TensorArray]]:
            found = expected.tensors(fn(row(i)))
            return i + 1, [array.write(i, value) for array, value in zip(results, found, strict=True)]

        options = _options(parallel_iterations, back_prop, swap_memory)
        _, results = while_loop(lambda i, _: i < rows.length, body, (0, results), **options)
        return pack_as(expected.structure, [rows.stack(array) for array in results])


def _row_results(rows: Rows, dtype: Structure, fn_output_signature: Structure) -> _Results:
    if fn_output_signature is not None:
        like, signature = "fn_output_signature", fn_output_signature
    elif dtype is not None:
        like, signature = "dtype", dtype
    else:
        like, signature = "elems", pack_as(rows.structure, [t.dtype for t in rows.tensors])
    specs = [
        leaf.spec if isinstance(leaf, TensorSpec) else node.TensorSpec(as_dtype(leaf), None)
        for leaf in flatten(signature)
    ]
    return _Results(rows, like, signature, specs)


def scan(
    fn: Callable[[Any, Any], Any],
    elems: Structure,
    initializer: Structure = None,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Structure:
    """All values of the accumulator ``a = fn(a, row)`` over the rows of ``elems``, stacked along a new first
    axis.

    The accumulator starts as ``initializer``, a structure of tensors, or as the first row of ``elems``, which
    is then also the first result. With ``reverse`` rows are processed from the last to the first; results
    keep the positions of their rows. The accumulator keeps its structure, dtypes and, with ``infer_shape``,
    shapes. Raises the errors of `map_fn`.

    Example:
        >>> tf.scan(lambda total, x: total + x, tf.constant([1, 2, 3])).eval()
        array([1, 3, 6], dtype=int32)
    """
    with get_default_graph().name_scope(name or "scan"):
        rows = Rows("scan", fn, elems)
        start, step = (rows.length - 1, -1) if reverse else (0, 1)
        row = rows.unstack()
        accumulator = _Accumulator(rows, initializer, lambda: row(start))
        results = [
            TensorArray(
                a.dtype, rows.length, infer_shape=infer_shape, element_shape=a.shape if infer_shape else None
            )
            for a in accumulator.initial
        ]
        if initializer is None:
            results = [array.write(start, a) for array, a in zip(results, accumulator.initial, strict=True)]
            start += step

        def body(i: Tensor, before: list[Tensor], results: list[TensorArray]) -> tuple[Any, ...]:
            after = accumulator.after(before, row(i))
            return i + step, after, [array.write(i, a) for array, a in zip(results, after, strict=True)]

        *_, results = while_loop(
            lambda i, *_: i >= 0 if reverse else i < rows.length,
            body,
            (start, accumulator.initial, results),
            **_options(parallel_iterations, back_prop, swap_memory),
        )
        return pack_as(accumulator.structure, [rows.stack(array) for array in results])


def _fold(what: str, reverse: bool, doc: str) -> Callable[..., Structure]:
    def fold(
        fn: Callable[[Any, Any], Any],
        elems: Structure,
        initializer: Structure = None,
        parallel_iterations: int = PARALLEL_ITERATIONS,
        back_prop: bool = True,
        swap_memory: bool = False,
        name: str | None = None,
    ) -> Structure:
        with get_default_graph().name_scope(name or what):
            rows = Rows(what, fn, elems)
            start, step = (rows.length - 1, -1) if reverse else (0, 1)
            row = rows.unstack()
            accumulator = _Accumulator(rows, initializer, lambda: row(start))
            _, final = while_loop(
                lambda i, _: i >= 0 if reverse else i < rows.length,
                lambda i, before: (i + step, accumulator.after(before, row(i))),
                (start if initializer is not None else start + step, accumulator.initial),
                **_options(parallel_iterations, back_prop, swap_memory),
            )
            return pack_as(accumulator.structure, final)

    fold.__name__ = fold.__qualname__ = what
    fold.__doc__ = doc
    return fold


foldl = _fold(
    "foldl",
    False,
    """The last accumulator of ``a = fn(a, row)`` over the rows of ``elems``, from the first to the last.

    It begins as ``initializer``, or as the first row. Raises as `map_fn`.
    """,
)
foldr = _fold(
    "foldr",
    True,
    "`foldl` from the last row to the first; without an ``initializer`` it begins as the last row.",
)


@final
class Rows:
    """The rows of a structure of tensors, for calls of ``fn``, an argument of the function ``what``.

    ``length`` is their number, an int if known, else an int32 scalar. Raises `DTypeError` for an fn that is
    not callable, `InvalidArgumentError` for no tensors, for scalars and for different lengths.
    """

    def __init__(self, what: str, fn: Any, elems: Structure) -> None:
        check_callable(what, "fn", fn)
        self.what, self.fn, self.structure = what, fn, elems
        self.tensors = [convert_to_tensor(leaf, name="elem") for leaf in flatten(elems)]
        if not self.tensors:
            raise misuse(f"{what}: expected at least one tensor; got {elems!r}")
        self.static_length = self._static_length(what)
        self.length: Any = self.static_length
        if self.length is None:
            self.length = getitem(shape(self.tensors[0]), 0)

    def _static_length(self, what: str) -> int | None:
        length: Any = (None,)
        for tensor in self.tensors:
            dims = tensor.spec.shape
            if dims == ():
                raise misuse(f"{what}: expected elems of at least one dimension; got the scalar {tensor!r}")
            try:
                length = merge(length, None if dims is None else dims[:1])
            except InvalidArgumentError:
                raise misuse(f"{what}: expected elems of equal length; got {self.tensors}") from None
        return length[0]

    def unstack(self) -> Callable[[Any], Structure]:
        """A function from an index to a structure of its rows. The tensors are unstacked here: before a loop
        that reads all rows, not in each of its iterations.
        """
        arrays = [TensorArray(t.dtype, self.length).unstack(t) for t in self.tensors]
        return lambda index: pack_as(self.structure, [array.read(index) for array in arrays])

    def stack(self, array: TensorArray) -> Tensor:
        """The elements of ``array``, one per row."""
        stacked = array.stack()
        dims = stacked.spec.shape
        stacked.set_shape(None if dims is None else (self.static_length, *dims[1:]))
        return stacked


@final
class _Results:
    """The required result of ``fn`` for ``rows``: a structure like ``structure``, which errors call ``like``,
    of tensors of ``specs``.
    """

    def __init__(self, rows: Rows, like: str, structure: Structure, specs: Sequence[node.TensorSpec]) -> None:
        self._rows, self._like = rows, like
        self.structure, self.specs = structure, specs

    def tensors(self, returned: Structure) -> list[Tensor]:
        """The leaves of the result of ``fn``. Raises `DTypeError` and `InvalidArgumentError`."""
        rows = self._rows
        check_returned(rows.what, rows.fn, returned)
        places = leaf_paths(self.structure)
        try:
            leaves = flatten_up_to(self.structure, returned)
            for place, leaf in zip(places, leaves, strict=True):
                if is_nested(leaf):
                    got = f"a {type(leaf).__name__} of {len(leaf)}"
                    raise InvalidArgumentError(f"expected one tensor{place and ' at ' + place}; got {got}")
        except InvalidArgumentError as error:
            message = f"expected a structure like {self._like} from {described(rows.fn)}: {error.message}"
            raise misuse(f"{rows.what}: {message}") from None
        return [self._tensor(*each) for each in zip(places, leaves, self.specs, strict=True)]

    def _tensor(self, place: str, leaf: Any, spec: node.TensorSpec) -> Tensor:
        rows = self._rows
        like = f"like {self._like}{place} from {described(rows.fn)}"
        if isinstance(leaf, Tensor) and leaf.dtype is not spec.dtype:
            hint = "Give dtype=, or use flowrt.cast()" if rows.what == "map_fn" else "Use flowrt.cast()"
            raise misuse(f"{rows.what}: expected {spec.dtype.name} {like}; got {leaf!r}. {hint}", DTypeError)
        tensor = convert_to_tensor(leaf, spec.dtype)
        if not compatible(tensor.spec.shape, spec.shape):
            raise misuse(f"{rows.what}: expected {spec} {like}; got {tensor!r}")
        return tensor


@final
class _Accumulator:
    """The accumulator of `scan` and the folds, like ``structure``: ``initial`` are its first tensors, those
    of ``initializer``, or the row ``first()``.
    """

    def __init__(self, rows: Rows, initializer: Structure, first: Callable[[], Structure]) -> None:
        if initializer is None:
            self.structure, self.initial = rows.structure, flatten(first())
        else:
            self.structure = initializer
            self.initial = [convert_to_tensor(leaf, name="initializer") for leaf in flatten(initializer)]
        self._fn = rows.fn
        self._results = _Results(rows, "the accumulator", self.structure, [a.spec for a in self.initial])

    def after(self, before: Sequence[Tensor], row: Structure) -> list[Tensor]:
        """The accumulator after another row."""
        return self._results.tensors(self._fn(pack_as(self.structure, before), row))


def _options(parallel_iterations: int | None, back_prop: bool, swap_memory: bool) -> dict[str, Any]:
    return {
        "parallel_iterations": parallel_iterations or PARALLEL_ITERATIONS,
        "back_prop": back_prop,
        "swap_memory": swap_memory,
    }
