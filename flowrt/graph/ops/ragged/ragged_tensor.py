"""`RaggedTensor`: rows of different lengths, as their elements in succession and where each row begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, final

from flowrt.dtypes import DType, DTypeLike, as_dtype, int32, int64, string
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.ranges import range as range_
from flowrt.graph.ops.array.ranges import sequence_mask
from flowrt.graph.ops.array.reductions import reduce_all, reduce_max
from flowrt.graph.ops.array.scans import cumsum
from flowrt.graph.ops.array.selection import boolean_mask, repeat
from flowrt.graph.ops.array.statistics import bincount
from flowrt.graph.ops.base.filling import broadcast_to, fill, zeros
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, size
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.comparison import equal, less, less_equal, where_v2
from flowrt.graph.ops.ragged.values import RaggedTensorValue
from flowrt.graph.ops.text.assertions import Assert
from flowrt.graph.shapes import TensorShape, compatible
from flowrt.graph.source import misuse


@final
class RaggedTensor:
    """Rows of different lengths: row i is ``values[row_splits[i]:row_splits[i + 1]]``.

    ``values`` is a tensor [n, ...], or a ragged one, of which these rows have rows. `ragged.constant` and the
    ``from_`` methods make them. A fetch is a `RaggedTensorValue`; a feed is one.

    Example:
        >>> rows = tf.RaggedTensor.from_row_lengths([3, 1, 4, 1], [2, 0, 2])
        >>> rows.to_tensor().eval()
        array([[3, 1],
               [0, 0],
               [4, 1]], dtype=int32)
    """

    fetched_as = RaggedTensorValue
    own_functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    """Public functions, by their names, as they are for ragged tensors: see `takes_composites`."""
    own_elementwise: ClassVar[Callable[..., Any]]

    def __init__(self, values: Any, row_splits: Any) -> None:
        self.values = values if isinstance(values, RaggedTensor) else convert_to_tensor(values)
        self.row_splits = convert_to_tensor(row_splits)
        if self.row_splits.dtype not in (int32, int64):
            raise misuse(
                f"RaggedTensor: expected row_splits of int32 or int64; got {self.row_splits.dtype.name}",
                DTypeError,
            )
        if not compatible(self.row_splits.spec.shape, (None,)):
            raise misuse(f"RaggedTensor: expected a vector row_splits; got {self.row_splits.spec}")
        known = self.values.shape.ndims
        if known == 0:
            raise misuse("RaggedTensor: expected values of at least one dimension; got a scalar")

    def __getitem__(self, key: Any) -> Any:
        return self.own_functions["__getitem__"](self, key)

    def __bool__(self) -> NoReturn:
        raise misuse(
            "RaggedTensor: has no truth value: the graph has no values yet. Use flowrt.cond() or where() for "
            "if; 'is None' tests for None",
            DTypeError,
        )

    def __iter__(self) -> NoReturn:  # without it Python would ask for rows for ever
        raise misuse(
            "RaggedTensor: cannot be iterated: the graph has no values yet. Use ragged.map_flat_values() for "
            "a function of all elements, or index its rows",
            DTypeError,
        )

    # --- from rows

    @classmethod
    def from_row_splits(
        cls, values: Any, row_splits: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Row i from ``row_splits[i]`` to ``row_splits[i + 1]``; the first is 0, the last the number of
        values.

        With ``validate``, a step raises `InvalidArgumentError` for others.
        """
        with get_default_graph().name_scope(name or "RaggedFromRowSplits"):
            values = values if isinstance(values, RaggedTensor) else convert_to_tensor(values)
            splits = _places(row_splits)
            if validate:
                count = cast(_count(values), splits.dtype)
                checks = [
                    Assert(equal(splits[0], 0), ["row_splits: expected to begin with 0; got", splits]),
                    Assert(
                        reduce_all(less_equal(splits[:-1], splits[1:])),
                        ["row_splits: expected none below the one before; got", splits],
                    ),
                    Assert(
                        equal(splits[-1], count),
                        ["row_splits: expected the number of values as the last; got", splits, count],
                    ),
                ]
                with get_default_graph().control_dependencies(checks):
                    splits = identity(splits)
            return cls(values, splits)

    @classmethod
    def from_row_lengths(
        cls, values: Any, row_lengths: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows of ``row_lengths``, which together are the number of values."""
        with get_default_graph().name_scope(name or "RaggedFromRowLengths"):
            return cls.from_row_splits(values, _ends(_places(row_lengths)), validate=validate)

    @classmethod
    def from_value_rowids(
        cls, values: Any, value_rowids: Any, nrows: Any = None, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Each value in the row that ``value_rowids`` has for it, in ascending order; there are ``nrows``
        rows, by default up to the last of them.
        """
        with get_default_graph().name_scope(name or "RaggedFromValueRowIds"):
            rows = _places(value_rowids)
            if validate:
                check = Assert(
                    reduce_all(less_equal(rows[:-1], rows[1:])),
                    ["value_rowids: expected none below the one before; got", rows],
                )
                with get_default_graph().control_dependencies([check]):
                    rows = identity(rows)
            count = (
                reduce_max(concat([[-1], cast(rows, int32)], 0)) + 1 if nrows is None else cast(nrows, int32)
            )
            lengths = bincount(cast(rows, int32), minlength=count, maxlength=count)
            return cls.from_row_splits(values, _ends(cast(lengths, rows.dtype)), validate=validate)

    @classmethod
    def from_row_starts(
        cls, values: Any, row_starts: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows that begin at ``row_starts``, the first of them 0."""
        with get_default_graph().name_scope(name or "RaggedFromRowStarts"):
            values = values if isinstance(values, RaggedTensor) else convert_to_tensor(values)
            starts = _places(row_starts)
            end = cast(_count(values), starts.dtype)
            return cls.from_row_splits(values, concat([starts, [end]], 0), validate=validate)

    @classmethod
    def from_row_limits(
        cls, values: Any, row_limits: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows that end before ``row_limits``, the last of them the number of values."""
        with get_default_graph().name_scope(name or "RaggedFromRowLimits"):
            limits = _places(row_limits)
            return cls.from_row_splits(
                values, concat([zeros([1], limits.dtype), limits], 0), validate=validate
            )

    @classmethod
    def from_nested_row_splits(
        cls,
        flat_values: Any,
        nested_row_splits: Sequence[Any],
        name: str | None = None,
        validate: bool = True,
    ) -> RaggedTensor:
        """Rows of rows: the splits of the outermost rows first."""
        return cls._nested(cls.from_row_splits, flat_values, nested_row_splits, name, validate)

    @classmethod
    def from_nested_row_lengths(
        cls,
        flat_values: Any,
        nested_row_lengths: Sequence[Any],
        name: str | None = None,
        validate: bool = True,
    ) -> RaggedTensor:
        """Rows of rows: the lengths of the outermost rows first."""
        return cls._nested(cls.from_row_lengths, flat_values, nested_row_lengths, name, validate)

    @classmethod
    def from_nested_value_rowids(
        cls,
        flat_values: Any,
        nested_value_rowids: Sequence[Any],
        nested_nrows: Sequence[Any] | None = None,
        name: str | None = None,
        validate: bool = True,
    ) -> RaggedTensor:
        """Rows of rows: the rows of the outermost rows first."""
        with get_default_graph().name_scope(name or "RaggedFromNestedValueRowIds"):
            counts = [None] * len(nested_value_rowids) if nested_nrows is None else nested_nrows
            for rows, count in zip(reversed(nested_value_rowids), reversed(counts), strict=True):
                flat_values = cls.from_value_rowids(flat_values, rows, count, validate=validate)
            return flat_values

    @classmethod
    def _nested(
        cls, method: Callable[..., Any], values: Any, parts: Any, name: str | None, validate: bool
    ) -> RaggedTensor:
        if isinstance(parts, Tensor):
            raise misuse("RaggedTensor: expected a list of vectors, one for each level of rows; got a tensor")
        with get_default_graph().name_scope(name or "RaggedFromNestedRows"):
            for part in reversed(parts):
                values = method(values, part, validate=validate)
            return values

    # --- from other tensors, and to them

    @classmethod
    def from_tensor(
        cls,
        tensor: Any,
        lengths: Any = None,
        padding: Any = None,
        ragged_rank: int = 1,
        name: str | None = None,
        row_splits_dtype: DTypeLike = int64,
    ) -> RaggedTensor:
        """The rows of a dense tensor: of ``lengths``, or without the ``padding`` at their ends, or all of it.

        Raises `InvalidArgumentError` for both lengths and padding, and for either with a ragged_rank above 1.
        """
        if lengths is not None and padding is not None:
            raise misuse("from_tensor: expected lengths or padding; got both")
        if ragged_rank < 1 or (ragged_rank > 1 and (lengths is not None or padding is not None)):
            raise misuse(f"from_tensor: expected a ragged_rank of 1; got {ragged_rank}")
        with get_default_graph().name_scope(name or "RaggedFromTensor"):
            dense = convert_to_tensor(tensor)
            if dense.shape.ndims is not None and dense.shape.ndims <= ragged_rank:
                raise misuse(f"from_tensor: expected more than {ragged_rank} dimensions; got {dense.spec}")
            kind = as_dtype(row_splits_dtype)
            sizes = shape(dense, out_type=kind)
            count, width = sizes[0], sizes[1]
            if ragged_rank > 1:
                inner = reshape(dense, concat([[count * width], sizes[2:]], 0))
                rows = cls.from_tensor(inner, ragged_rank=ragged_rank - 1, row_splits_dtype=kind)
                return cls(rows, range_(count + 1) * width)
            if padding is not None:
                is_padding = equal(dense, convert_to_tensor(padding, dense.dtype))
                if (dense.shape.ndims or 2) > 2:
                    is_padding = reduce_all(is_padding, list(range(2, dense.shape.ndims or 2)))
                places = where_v2(is_padding, zeros([1], kind), range_(width) + 1)
                lengths = reduce_max(concat([places, zeros([count, 1], kind)], 1), 1)
            if lengths is None:
                return cls(reshape(dense, concat([[count * width], sizes[2:]], 0)), range_(count + 1) * width)
            kept = cast(lengths, kind)
            return cls(boolean_mask(dense, sequence_mask(kept, width)), _ends(kept))

    @classmethod
    def from_sparse(
        cls, st_input: Any, name: str | None = None, row_splits_dtype: DTypeLike = int64
    ) -> RaggedTensor:
        """The values of each row of a sparse matrix, which begin at its first column without gaps."""
        with get_default_graph().name_scope(name or "RaggedFromSparse"):
            sparse = SparseTensor.from_value(st_input)
            kind = as_dtype(row_splits_dtype)
            rows, count = cast(sparse.indices[:, 0], kind), sparse.dense_shape[0]
            found = cls.from_value_rowids(sparse.values, rows, count)
            columns = sparse.indices[:, 1]
            check = Assert(
                reduce_all(equal(cast(columns, kind), found.columns())),
                ["from_sparse: expected rows without gaps; got the columns", columns],
            )
            with get_default_graph().control_dependencies([check]):
                return cls(found.values, identity(found.row_splits))

    def to_tensor(self, default_value: Any = None, name: str | None = None) -> Tensor:
        """The dense tensor, with ``default_value``, by default zero or the empty string, at the ends."""
        with get_default_graph().name_scope(name or "RaggedToTensor"):
            rows = self.values
            dense = rows.to_tensor(default_value) if isinstance(rows, RaggedTensor) else rows
            other: Any = (b"" if self.dtype is string else 0) if default_value is None else default_value
            other = broadcast_to(convert_to_tensor(other, self.dtype), shape(dense)[1:])
            lengths = self.row_lengths()
            columns = range_(reduce_max(concat([zeros([1], lengths.dtype), lengths], 0)))
            places = expand_dims(self.row_starts(), 1) + columns
            is_there = less(columns, expand_dims(lengths, 1))
            last = cast(shape(dense)[0], lengths.dtype)
            found = gather(concat([dense, [other]], 0), where_v2(is_there, places, last))
            found.set_shape(self.shape[:1].concatenate([None]).concatenate(dense.shape[1:]))
            return found

    def to_sparse(self, name: str | None = None) -> SparseTensor:
        """The sparse tensor with each element at its place."""
        with get_default_graph().name_scope(name or "RaggedToSparse"):
            places = self.coordinates()
            return SparseTensor(places, self.flat_values, self.bounding_shape(out_type=int64))

    def coordinates(self) -> Tensor:
        """The place of each element of `flat_values`, [n, rank] of int64; they are scalars.

        Raises `InvalidArgumentError` for rows of known dense inner dimensions.
        """
        flat = self.flat_values
        if flat.shape.ndims != 1:
            raise misuse(f"RaggedTensor: expected elements that are scalars; got values {flat.spec}")
        found: list[Tensor] = []
        rows: Any = self
        while isinstance(rows, RaggedTensor):
            ids, columns = rows.value_rowids(), rows.columns()
            found = [gather(each, ids) for each in found] if found else [ids]
            found.append(columns)
            rows = rows.values
        return cast(stack(found, 1), int64)

    # --- what it is

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def shape(self) -> TensorShape:
        """The shape, as far as it is known while the graph is built; that of ragged dimensions is not."""
        splits = self.row_splits.shape.as_list()[0] if self.row_splits.shape.ndims else None
        return TensorShape([None if splits is None else splits - 1, None]).concatenate(self.values.shape[1:])

    def get_shape(self) -> TensorShape:
        return self.shape

    @property
    def ragged_rank(self) -> int:
        """The number of ragged dimensions."""
        return 1 + (self.values.ragged_rank if isinstance(self.values, RaggedTensor) else 0)

    @property
    def flat_values(self) -> Tensor:
        """The elements of the innermost rows in succession."""
        return self.values.flat_values if isinstance(self.values, RaggedTensor) else self.values

    @property
    def nested_row_splits(self) -> tuple[Tensor, ...]:
        inner = self.values.nested_row_splits if isinstance(self.values, RaggedTensor) else ()
        return (self.row_splits, *inner)

    @property
    def op(self) -> Operation:
        return self.values.op

    @property
    def graph(self) -> Graph:
        return self.row_splits.graph

    @property
    def name(self) -> str:
        return self.values.name

    def value_rowids(self, name: str | None = None) -> Tensor:
        """The row of each value."""
        with get_default_graph().name_scope(name or "RaggedValueRowIds"):
            return repeat(range_(self.nrows()), self.row_lengths())

    def columns(self) -> Tensor:
        """The place of each value in its row."""
        return range_(cast(_count(self.values), self.row_splits.dtype)) - gather(
            self.row_splits, self.value_rowids()
        )

    def nrows(self, out_type: DTypeLike | None = None, name: str | None = None) -> Tensor:
        with get_default_graph().name_scope(name or "RaggedNRows"):
            kind = self.row_splits.dtype if out_type is None else as_dtype(out_type)
            return cast(size(self.row_splits), kind) - 1

    def row_starts(self, name: str | None = None) -> Tensor:
        with get_default_graph().name_scope(name or "RaggedRowStarts"):
            return self.row_splits[:-1]

    def row_limits(self, name: str | None = None) -> Tensor:
        with get_default_graph().name_scope(name or "RaggedRowLimits"):
            return self.row_splits[1:]

    def row_lengths(self, axis: int = 1, name: str | None = None) -> Any:
        """The length of each row, of those at dimension ``axis``: ragged for an inner one."""
        if axis == 0:
            return self.nrows()
        if axis > 1:
            inner = self.values
            if isinstance(inner, RaggedTensor):
                return RaggedTensor(inner.row_lengths(axis - 1), self.row_splits)
            sizes = shape(inner, out_type=self.row_splits.dtype)
            return RaggedTensor(fill(sizes[: axis - 1], sizes[axis - 1]), self.row_splits)
        with get_default_graph().name_scope(name or "RaggedRowLengths"):
            return self.row_splits[1:] - self.row_splits[:-1]

    def nested_row_lengths(self, name: str | None = None) -> tuple[Tensor, ...]:
        """The lengths of the rows of each level, the outermost first."""
        inner = self.values.nested_row_lengths() if isinstance(self.values, RaggedTensor) else ()
        return (self.row_lengths(name=name), *inner)

    def nested_value_rowids(self, name: str | None = None) -> tuple[Tensor, ...]:
        inner = self.values.nested_value_rowids() if isinstance(self.values, RaggedTensor) else ()
        return (self.value_rowids(name), *inner)

    def bounding_shape(
        self, axis: Any = None, name: str | None = None, out_type: DTypeLike | None = None
    ) -> Tensor:
        """The shape of `to_tensor`, or the sizes at ``axis``."""
        with get_default_graph().name_scope(name or "RaggedBoundingBox"):
            kind = self.row_splits.dtype if out_type is None else as_dtype(out_type)
            longest = [
                maximum(reduce_max(concat([[0], cast(n, int64)], 0)), 0) for n in self.nested_row_lengths()
            ]
            inner = shape(self.flat_values, out_type=int64)[1:]
            found = cast(concat([[self.nrows(int64)], longest, inner], 0), kind)
            return found if axis is None else gather(found, axis)

    # --- parts

    def with_values(self, new_values: Any) -> RaggedTensor:
        """The same rows of other values."""
        return RaggedTensor(new_values, self.row_splits)

    def with_flat_values(self, new_values: Any) -> RaggedTensor:
        """The same rows of other elements."""
        inner = self.values
        return self.with_values(
            inner.with_flat_values(new_values) if isinstance(inner, RaggedTensor) else new_values
        )

    def with_row_splits_dtype(self, dtype: DTypeLike) -> RaggedTensor:
        inner = self.values
        values = inner.with_row_splits_dtype(dtype) if isinstance(inner, RaggedTensor) else inner
        return RaggedTensor(values, cast(self.row_splits, dtype))

    def consumers(self) -> list[Operation]:
        return self.values.consumers()

    def eval(self, feed_dict: Any = None, session: Any = None) -> RaggedTensorValue:
        """The value in ``session`` or the default session. Raises `FailedPreconditionError` without one."""
        return RaggedTensorValue(
            self.values.eval(feed_dict, session), self.row_splits.eval(feed_dict, session)
        )

    def __repr__(self) -> str:
        return f"RaggedTensor(values={self.values!r}, row_splits={self.row_splits!r})"


def _places(numbers: Any) -> Tensor:
    """``numbers`` as a tensor of int32 or int64, by default int64."""
    if isinstance(numbers, Tensor):
        return numbers
    dtype = getattr(numbers, "dtype", None)
    return convert_to_tensor(numbers, int32 if dtype is not None and as_dtype(dtype) is int32 else int64)


def _ends(lengths: Tensor) -> Tensor:
    """The splits of rows of ``lengths``."""
    return concat([zeros([1], lengths.dtype), cumsum(lengths)], 0)


def _count(values: Any) -> Tensor:
    return values.nrows() if isinstance(values, RaggedTensor) else shape(values)[0]
