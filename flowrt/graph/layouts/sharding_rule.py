"""`ShardingRule`: how the dimensions of an op's outputs follow from those of its inputs, as factors.

A rule is written like an einsum, with a group of dimensions for each input in device memory and each output:

    i k, k j -> i j          a matrix product: k is contracted
    ... i k, ... k j -> ... i j    the same in batches; ``...`` broadcasts from the right, as NumPy does
    n c!, n -> n, n c!       ``c!`` must be whole
    v! ..a, ..i -> ..i ..a   ``..a``: a run of dimensions
    i k|max -> i             contracted by a maximum
    n~ c, c -> n c, c        the second output is the same for any part of n
    (i j) -> i j             a dimension of two factors, the major one first

A *factor* is a letter or word, or a dimension of a run. A factor on both sides passes through the op: where
an input is cut, so is the output. One on the left only is contracted: where it is cut, the output is
`Partial`. One on the right only is made by the op, and cannot be cut. A dimension of size 1 that broadcasts
belongs to no factor. A rule is about one axis of a mesh: several axes shard several factors, or one factor
nested.

The terms are those of the sharding rules of Shardy (OpenXLA).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.layout import REDUCTIONS, REPLICATED, Partial, Placement, Shard
from flowrt.graph.shapes import Shape

Dims: TypeAlias = tuple[tuple[int, ...], ...]
"""The numbers of the factors of each dimension of a tensor, the major one first; none if it is whole."""


class Factor(NamedTuple):
    """``size`` is None where it is unknown. ``reduction`` is that of the outputs that lack it."""

    name: str
    size: int | None
    may_cut: bool
    reduction: str = ""


@final
@dataclass(frozen=True, slots=True)
class ShardingRule:
    """The factors of one operation, and the dimensions that they make up in its inputs and outputs."""

    factors: tuple[Factor, ...]
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]

    def may_cut(self, factor: int, parts: int, unit: int | None = None) -> bool:
        """Whether the operation can be done on ``parts`` parts of the factor: wherever it appears it is the
        major factor of its dimension, and if it has others beside it the parts are equally long, or, with
        ``unit``, elements of the factor stay together.
        """
        _, size, may_cut, _ = self.factors[factor]
        if not may_cut:
            return False
        found = [dim for dims in (*self.inputs, *self.outputs) for dim in dims if factor in dim]
        if any(dim[0] != factor for dim in found):
            return False
        if self.is_even(factor, parts) or all(len(dim) == 1 for dim in found):
            return unit is None or size is None or size % unit == 0
        return unit is not None and size is not None and size % unit == 0 and all(map(self._beside, found))

    def is_even(self, factor: int, parts: int, unit: int = 1) -> bool:
        """Whether ``parts`` parts of the factor, of whole units, are equally long."""
        size = self.factors[factor].size
        return size is not None and size % (parts * unit) == 0

    def unit_of(self, placement: Shard, dims: Dims) -> int | None:
        """The number of elements of its factor that the ``placement`` of a tensor of ``dims`` keeps together;
        None if it separates what belongs to one.
        """
        beside = self._beside(dims[placement.dim])
        return placement.unit // beside if beside and placement.unit % beside == 0 else None

    def _beside(self, dim: Sequence[int]) -> int | None:
        """The elements of a dimension for each of its major factor; None if that is unknown, or 0."""
        sizes = [self.factors[factor].size for factor in dim[1:]]
        return math.prod(size or 0 for size in sizes) or None

    def cut(self, factor: int, unit: int | None = None) -> tuple[list[Placement], list[Placement]]:
        """The placements of the inputs, and those of the outputs, on an axis that cuts ``factor``: with
        ``unit``, so many of its elements stay together.
        """
        reduction = self.factors[factor].reduction
        lacking: Placement = Partial(reduction) if reduction else REPLICATED
        inputs = [self._placement(factor, dims, REPLICATED, unit) for dims in self.inputs]
        return inputs, [self._placement(factor, dims, lacking, unit) for dims in self.outputs]

    def _placement(self, factor: int, dims: Dims, lacking: Placement, unit: int | None) -> Placement:
        dim = dim_of(factor, dims)
        if dim is None:
            return lacking
        return Shard(dim) if unit is None else Shard(dim, unit * (self._beside(dims[dim]) or 1))


def dim_of(factor: int, dims: Dims) -> int | None:
    """The dimension of which ``factor`` is the major one; None if there is none."""
    return next((number for number, dim in enumerate(dims) if dim[:1] == (factor,)), None)


# --- the notation


class _Token(NamedTuple):
    """One dimension of a group, of the factors ``names``; a run if its only name begins with dots."""

    names: tuple[str, ...]

    @property
    def is_run(self) -> bool:
        return self.names[0].startswith("..")


class _Pattern(NamedTuple):
    """A parsed rule. ``whole``: factors that cannot be cut; ``reductions``: by contracted factor."""

    inputs: tuple[tuple[_Token, ...], ...]
    outputs: tuple[tuple[_Token, ...], ...]
    whole: frozenset[str]
    reductions: dict[str, str]
    """The reduction of outputs without the factor: by default "sum"; "" if they do not depend on it."""


_WORD = re.compile(r"\((?P<several>[\w ]+)\)|(?P<name>\.\.\.|\.\.\w+|[A-Za-z]\w*)(?P<mark>!|~|\|\w+)?")


@functools.lru_cache(1024)
def parse_rule(text: str) -> _Pattern:
    """The rule that ``text`` writes. Raises `InvalidArgumentError` for a text that is none."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise InvalidArgumentError(f"sharding rule: expected 'inputs -> outputs'; got {text!r}")
    marks: dict[str, str] = {}
    inputs, outputs = (
        tuple(_group(group, marks, text) for group in side.split(",")) for side in (left, right)
    )
    on_left = {name for group in inputs for token in group for name in token.names}
    made = {name for group in outputs for token in group for name in token.names} - on_left
    whole = frozenset({name for name, mark in marks.items() if mark == "!"} | made)
    reductions = {name: mark[1:] for name, mark in marks.items() if mark[0] in "|~"}
    wrong = [name for name in reductions.values() if name and name not in REDUCTIONS]
    if wrong:
        raise InvalidArgumentError(f"sharding rule {text!r}: expected one of {REDUCTIONS}; got {wrong[0]!r}")
    return _Pattern(inputs, outputs, whole, reductions)


def _group(group: str, marks: dict[str, str], text: str) -> tuple[_Token, ...]:
    tokens, position = [], 0
    group = group.strip()
    while position < len(group):
        found = _WORD.match(group, position)
        if found is None:
            raise InvalidArgumentError(f"sharding rule {text!r}: cannot read {group[position:]!r}")
        names = tuple((found["several"] or found["name"]).split())
        marks |= {names[0]: found["mark"]} if found["mark"] else {}
        tokens.append(_Token(names))
        position = found.end() + len(group[found.end() :]) - len(group[found.end() :].lstrip())
    return tuple(tokens)


# --- a rule for given shapes


@functools.lru_cache(4096)
def bind_rule(text: str, inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> ShardingRule | None:
    """The rule ``text`` for tensors of these shapes; None if a rank is unknown.

    Raises `InvalidArgumentError` if the shapes do not fit the rule: another number of tensors, another rank,
    a factor of two sizes.
    """
    pattern = parse_rule(text)
    shapes, groups = (*inputs, *outputs), (*pattern.inputs, *pattern.outputs)
    if len(inputs) != len(pattern.inputs) or len(outputs) != len(pattern.outputs):
        raise InvalidArgumentError(
            f"sharding rule: expected {len(pattern.inputs)} inputs and {len(pattern.outputs)} outputs; got "
            f"{len(inputs)} and {len(outputs)}"
        )
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    names = _names_of_dims(groups, known)
    sizes = _sizes(names, known)
    made = [{n for dim in tensor for n in dim} for tensor in names[len(inputs) :]]
    taken = {n for tensor in names[: len(inputs)] for dim in tensor for n in dim}
    contracted = {n for n in taken if any(n not in tensor for tensor in made)}
    order = {name: number for number, name in enumerate(sizes)}
    factors = tuple(
        Factor(
            name,
            size,
            name.partition("[")[0] not in pattern.whole,
            pattern.reductions.get(name.partition("[")[0], "sum") if name in contracted else "",
        )
        for name, size in sizes.items()
    )
    numbered = [
        tuple(
            () if size == 1 and any(sizes[n] != 1 for n in dim) else tuple(order[n] for n in dim)
            for dim, size in zip(tensor, shape, strict=True)
        )
        for tensor, shape in zip(names, known, strict=True)
    ]
    return ShardingRule(factors, tuple(numbered[: len(inputs)]), tuple(numbered[len(inputs) :]))


def _names_of_dims(
    groups: Sequence[Sequence[_Token]], shapes: Sequence[Sequence[int | None]]
) -> list[list[tuple[str, ...]]]:
    """The names of the factors of each tensor's dimensions, runs written out: ``..a`` as ``..a[0]``,
    ``..a[1]``; ``...`` counted from the right, as ``...[-1]``.
    """
    lengths: dict[str, int] = {}
    while True:
        open_groups = [
            (group, shape, [t.names[0] for t in group if t.is_run and t.names[0] not in lengths])
            for group, shape in zip(groups, shapes, strict=True)
        ]
        ready = [each for each in open_groups if len(each[2]) == 1 and each[2][0] != "..."]
        if not ready:
            break
        group, shape, (run,) = ready[0]
        lengths[run] = len(shape) + 1 - sum(lengths.get(t.names[0], 1) for t in group)
    return [_written_out(group, len(shape), lengths) for group, shape in zip(groups, shapes, strict=True)]


def _written_out(group: Sequence[_Token], rank: int, lengths: dict[str, int]) -> list[tuple[str, ...]]:
    others = sum(lengths.get(t.names[0], 1) for t in group if t.names[0] != "...")
    broadcast = rank - others
    dims: list[tuple[str, ...]] = []
    for token in group:
        name = token.names[0]
        if name == "...":
            dims += [(f"...[-{broadcast - i}]",) for i in range(broadcast)]
        elif token.is_run:
            dims += [(f"{name}[{i}]",) for i in range(lengths[name])]
        else:
            dims.append(token.names)
    if len(dims) != rank:
        raise InvalidArgumentError(f"sharding rule: expected a tensor of rank {len(dims)}; got rank {rank}")
    return dims


def _sizes(
    names: Sequence[Sequence[tuple[str, ...]]], shapes: Sequence[Sequence[int | None]]
) -> dict[str, int | None]:
    """The size of each factor, in the order of their first appearance."""
    pairs = [
        pair for tensor, shape in zip(names, shapes, strict=True) for pair in zip(tensor, shape, strict=True)
    ]
    sizes: dict[str, int | None] = {name: None for dim, _ in pairs for name in dim}
    for dim, size in pairs:
        if len(dim) == 1 and size is not None and sizes[dim[0]] in (None, 1):
            sizes[dim[0]] = size
    for dim, size in pairs:
        _divide(dim, size, sizes)
    return sizes


def _divide(dim: Iterable[str], size: int | None, sizes: dict[str, int | None]) -> None:
    """Set the size of the only unknown factor of a dimension; check the others."""
    names = list(dim)
    unknown = [name for name in names if sizes[name] is None]
    rest = math.prod(n for name in names if (n := sizes[name]) is not None)
    if size is None or len(unknown) > 1:
        return
    if unknown and rest and size % rest == 0:
        sizes[unknown[0]] = size // rest
    elif size not in (1, rest):
        raise InvalidArgumentError(
            f"sharding rule: expected a dimension ({' '.join(names)}) of size {rest}; got {size}"
        )
