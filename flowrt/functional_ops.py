"""Loops over the rows of tensors: ``map_fn``, ``scan``, ``foldl``, ``foldr``, under TensorFlow's names.

Each is a `while_loop` that reads one row of every element from a `TensorArray` and writes one row of every
result to another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from flowrt.control_flow import while_loop
from flowrt.data.structure import Structure, flatten, flatten_up_to, pack_as
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import Tensor, get_default_graph
from flowrt.graph.ops.shaping import shape
from flowrt.graph.ops.slicing import getitem
from flowrt.graph.shapes import merge
from flowrt.graph.source import user_line
from flowrt.nest import is_nested
from flowrt.tensor_array import TensorArray

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
) -> Structure:
    """``fn`` of each row of ``elems``, stacked along a new first axis.

    ``elems`` is a structure of tensors ``[n, ...]``; ``fn`` gets one like it of rows. What it returns is like
    ``dtype``, a structure of dtypes, or if that is None like ``elems`` in structure and dtypes. Rows of
    results have one shape; without ``infer_shape`` nothing is concluded from it. Options are those of
    `while_loop`.

    Raises `DTypeError` and `InvalidArgumentError` for elems without rows or of different lengths, and for
    results of another structure or dtype.
    """
    with get_default_graph().name_scope(name or "map"):
        rows = Rows("map_fn", fn, elems)
        structure = rows.structure if dtype is None else dtype
        kinds = [t.dtype for t in rows.tensors] if dtype is None else [as_dtype(d) for d in flatten(dtype)]
        results = [TensorArray(kind, rows.length, infer_shape=infer_shape) for kind in kinds]

        def body(i: Tensor, results: list[TensorArray]) -> tuple[Any, list[TensorArray]]:
            found = _results("map_fn", structure, kinds, fn(rows.read(i)))
            return i + 1, [array.write(i, value) for array, value in zip(results, found, strict=True)]

        options = _options(parallel_iterations, back_prop, swap_memory)
        _, results = while_loop(lambda i, _: i < rows.length, body, (0, results), **options)
        return pack_as(structure, [rows.stack(array) for array in results])


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

    The accumulator begins as ``initializer``, a structure of tensors, or as the first row of ``elems``, which
    then is the first result as well. With ``reverse`` rows are taken from the last to the first; results
    stand where their rows do. The accumulator keeps its structure, dtypes and, with ``infer_shape``, shapes.
    Raises as `map_fn`.
    """
    with get_default_graph().name_scope(name or "scan"):
        rows = Rows("scan", fn, elems)
        start, step = (rows.length - 1, -1) if reverse else (0, 1)
        structure = rows.structure if initializer is None else initializer
        initial = _initial(rows, initializer, start)
        kinds = [a.dtype for a in initial]
        results = [
            TensorArray(
                a.dtype, rows.length, infer_shape=infer_shape, element_shape=a.shape if infer_shape else None
            )
            for a in initial
        ]
        if initializer is None:
            results = [array.write(start, a) for array, a in zip(results, initial, strict=True)]
            start += step

        def body(i: Tensor, accumulator: list[Tensor], results: list[TensorArray]) -> tuple[Any, ...]:
            returned = fn(pack_as(structure, accumulator), rows.read(i))
            found = _results("scan", structure, kinds, returned)
            return i + step, found, [array.write(i, a) for array, a in zip(results, found, strict=True)]

        *_, results = while_loop(
            lambda i, *_: i >= 0 if reverse else i < rows.length,
            body,
            (start, initial, results),
            **_options(parallel_iterations, back_prop, swap_memory),
        )
        return pack_as(structure, [rows.stack(array) for array in results])


def foldl(
    fn: Callable[[Any, Any], Any],
    elems: Structure,
    initializer: Structure = None,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Structure:
    """The last accumulator of ``a = fn(a, row)`` over the rows of ``elems``, from the first to the last.

    It begins as ``initializer``, or as the first row. Raises as `map_fn`.
    """
    options = _options(parallel_iterations, back_prop, swap_memory)
    return _fold("foldl", fn, elems, initializer, False, options, name)


def foldr(
    fn: Callable[[Any, Any], Any],
    elems: Structure,
    initializer: Structure = None,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Structure:
    """`foldl` from the last row to the first; without an ``initializer`` it begins as the last row."""
    options = _options(parallel_iterations, back_prop, swap_memory)
    return _fold("foldr", fn, elems, initializer, True, options, name)


def _fold(
    what: str,
    fn: Callable[[Any, Any], Any],
    elems: Structure,
    initializer: Structure,
    reverse: bool,
    options: Mapping[str, Any],
    name: str | None,
) -> Structure:
    with get_default_graph().name_scope(name or what):
        rows = Rows(what, fn, elems)
        start, step = (rows.length - 1, -1) if reverse else (0, 1)
        structure = rows.structure if initializer is None else initializer
        initial = _initial(rows, initializer, start)
        kinds = [a.dtype for a in initial]

        def body(i: Tensor, accumulator: list[Tensor]) -> tuple[Any, list[Tensor]]:
            returned = fn(pack_as(structure, accumulator), rows.read(i))
            return i + step, _results(what, structure, kinds, returned)

        _, final = while_loop(
            lambda i, _: i >= 0 if reverse else i < rows.length,
            body,
            (start if initializer is not None else start + step, initial),
            **options,
        )
        return pack_as(structure, final)


@final
class Rows:
    """What ``fn``, an argument of the function ``what``, is called for: the rows of a structure of tensors.

    ``length`` is their number, an int where it is known, else an int32 scalar. Raises `DTypeError` for an fn
    that is not callable, `InvalidArgumentError` for no tensors, for scalars and for different lengths.
    """

    def __init__(self, what: str, fn: Any, elems: Structure) -> None:
        if not callable(fn):
            raise DTypeError(f"{what}: expected fn to be callable; got {fn!r}", source=user_line())
        self.structure = elems
        self.tensors = [convert_to_tensor(leaf, name="elem") for leaf in flatten(elems)]
        if not self.tensors:
            raise InvalidArgumentError(
                f"{what}: expected at least one tensor; got {elems!r}", source=user_line()
            )
        self.static_length = self._static_length(what)
        self.length: Any = self.static_length
        if self.length is None:
            self.length = getitem(shape(self.tensors[0]), 0)
        self._arrays: list[TensorArray] = []

    def _static_length(self, what: str) -> int | None:
        length: Any = (None,)
        for tensor in self.tensors:
            dims = tensor.spec.shape
            if dims == ():
                raise InvalidArgumentError(
                    f"{what}: expected elems of at least one dimension; got the scalar {tensor!r}",
                    source=user_line(),
                )
            try:
                length = merge(length, None if dims is None else dims[:1])
            except InvalidArgumentError:
                raise InvalidArgumentError(
                    f"{what}: expected elems of one length; got {self.tensors}", source=user_line()
                ) from None
        return length[0]  # type: ignore[no-any-return]

    def read(self, index: Any) -> Structure:
        """A structure of the rows at ``index``."""
        return pack_as(self.structure, [array.read(index) for array in self.arrays])

    @property
    def arrays(self) -> list[TensorArray]:
        """One array of rows a tensor."""
        if not self._arrays:
            self._arrays = [TensorArray(t.dtype, self.length).unstack(t) for t in self.tensors]
        return self._arrays

    def stack(self, array: TensorArray) -> Tensor:
        """The elements of ``array``, one a row."""
        stacked = array.stack()
        dims = stacked.spec.shape
        stacked.set_shape(None if dims is None else (self.static_length, *dims[1:]))
        return stacked


def _initial(rows: Rows, initializer: Structure, first: Any) -> list[Tensor]:
    if initializer is None:
        return flatten(rows.read(first))
    return [convert_to_tensor(leaf, name="initializer") for leaf in flatten(initializer)]


def _results(what: str, structure: Structure, kinds: Sequence[DType], returned: Structure) -> list[Tensor]:
    """The leaves of what fn ``returned``, which is like ``structure``, as tensors of the dtypes ``kinds``."""
    try:
        leaves = flatten_up_to(structure, returned)
        if any(map(is_nested, leaves)):
            raise InvalidArgumentError("it has more levels")
    except InvalidArgumentError as error:
        expected = f"{what}: expected fn to return a structure like {structure!r:.80}"
        message = f"{expected}; got {returned!r:.80} ({error.message})"
        raise InvalidArgumentError(message, source=user_line()) from None
    return [_result(what, leaf, kind) for leaf, kind in zip(leaves, kinds, strict=True)]


def _result(what: str, leaf: Any, kind: DType) -> Tensor:
    if isinstance(leaf, Tensor) and leaf.dtype is not kind:
        hint = "Give dtype=, or use flowrt.cast()" if what == "map_fn" else "Use flowrt.cast()"
        message = f"{what}: expected fn to return {kind.name}; got {leaf!r}. {hint}"
        raise DTypeError(message, source=user_line())
    return convert_to_tensor(leaf, kind)


def _options(parallel_iterations: int | None, back_prop: bool, swap_memory: bool) -> dict[str, Any]:
    return {
        "parallel_iterations": parallel_iterations or PARALLEL_ITERATIONS,
        "back_prop": back_prop,
        "swap_memory": swap_memory,
    }
