"""Derivatives of functions that build graph: `jvp`, `vjp`, `hvp`, `jacfwd`, `jacrev`, `hessian`.

A function takes and returns structures of tensors. Each of these calls it once, on new tensors: so only
dependence through the arguments counts, and an argument passed twice counts separately in each place. If y
does not depend on x, `gradients` and `forward_gradients` return None, these return zeros: a function that
does not use its argument has the derivative zero. None is the derivative for integer and other
non-differentiable tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt.base.structure import Structure, flatten, flatten_up_to, pack_as
from flowrt.dtypes import INEXACT
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.functions.jacobians import Blocks, check_floating, columns, pack_blocks, rows
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.derivatives.forward_mode import forward_gradients
from flowrt.graph.derivatives.gradients import UnconnectedGradients, gradients
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.source import misuse

ZERO = UnconnectedGradients.ZERO


def jvp(f: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """``f(*primals)`` and its directional derivative along ``tangents``: one forward sweep.

    ``tangents`` has one item per primal, of its structure, dtypes and shapes; None, for a primal or a part of
    it, is zero. Primals other than a list or tuple are the only argument of ``f``, and so are their tangents.
    Both results have the structure of the result of ``f``.

    Raises `DTypeError` for a tangent of a primal that is not floating or complex and for a function or
    primals of another type, `InvalidArgumentError` for tangents that do not match, and the errors of ``f``.
    """
    if not isinstance(primals, (list, tuple)):
        primals, tangents = [primals], [tangents]
    call = _Call("jvp", f, primals)
    directions = _leaves_like("jvp: tangents", call.primals, tangents)
    ys = [y for y in call.ys if y.dtype in INEXACT]
    moved = iter(forward_gradients(ys, call.xs, directions, "jvp", unconnected_gradients=ZERO))
    return call.outputs, pack_as(call.outputs, [next(moved) if y.dtype in INEXACT else None for y in call.ys])


def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """``f(*primals)`` and its pullback: ``pull_back(dys)`` returns the gradients of the primals, one reverse
    sweep per call.

    ``dys`` has the structure, dtypes and shapes of the result; None, for it or for a part, is zero. The
    gradients are a tuple with one item per primal, of its structure; a leaf may be an `IndexedSlices`.

    Raises `DTypeError` for dys of a result that is not floating or complex, `InvalidArgumentError` for dys
    that do not match, and the errors of ``f``.
    """
    call = _Call("vjp", f, primals)
    xs = [x for x in call.xs if x.dtype in INEXACT]

    def pull_back(dys: Any) -> tuple[Any, ...]:
        given = _leaves_like("vjp: dys", [call.outputs], [dys])
        pairs = [(y, dy) for y, dy in zip(call.ys, given, strict=True) if dy is not None]
        ys, weights = [y for y, _ in pairs], [dy for _, dy in pairs]
        found = gradients(ys, xs, weights, "vjp", unconnected_gradients=ZERO) if ys else map(zeros_like, xs)
        return call.like_primals(found)

    return call.outputs, pull_back


def hvp(f: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The Hessian of the scalar ``f(*primals)`` times ``tangents``: a forward sweep over a reverse one.

    The Hessian itself is never computed. The result is a tuple with one item per primal, of its structure;
    for primals other than a list or tuple it is the item itself. The tangents are those of `jvp`. Raises the
    errors of `jvp`, and `InvalidArgumentError` or `DTypeError` for an ``f`` that returns anything but one
    floating scalar.
    """
    if not isinstance(primals, (list, tuple)):
        (product,) = hvp(f, [primals], [tangents])
        return product
    call = _Call("hvp", f, primals)
    check_floating("hvp", call.ys)
    if len(call.ys) != 1 or call.ys[0].shape.as_list() != []:
        raise misuse(f"hvp: expected a function that returns one scalar; got {call.ys}")
    directions = _leaves_like("hvp: tangents", call.primals, tangents)
    xs = [x for x in call.xs if x.dtype in INEXACT]
    firsts = [convert_to_tensor(g) for g in gradients(call.ys, xs, name="hvp", unconnected_gradients=ZERO)]
    products = forward_gradients(firsts, call.xs, directions, "hvp", unconnected_gradients=ZERO)
    return call.like_primals(products)


def jacfwd(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function of the arguments of ``f`` that returns the Jacobian of ``f``, by columns: one forward sweep
    per element of the arguments ``argnums``.

    For a result of shape ``[*a]`` and an argument of shape ``[*b]`` it is ``[*a, *b]``; for structures a
    structure like the result, of structures like the argument (like a tuple of them, for several argnums).

    Raises `DTypeError` for an ``f`` that is not a function and for argnums that are not integers. When called
    it raises `DTypeError` for results and arguments that are not floating, `InvalidArgumentError` for an
    argument without a static shape and for argnums out of range.
    """
    return _jacobian_of("jacfwd", f, argnums, columns)


def jacrev(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """`jacfwd` by rows: one reverse sweep per element of the result, which must have a static shape."""
    return _jacobian_of("jacrev", f, argnums, rows)


def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives of ``f``: for a scalar result and an argument of shape
    ``[*b]`` a tensor ``[*b, *b]``.

    One forward sweep per element of the arguments ``argnums``, over `jacrev`. Raises the errors of both.
    """
    return jacfwd(jacrev(f, argnums), argnums)


def _jacobian_of(
    what: str, f: Any, argnums: int | Sequence[int], sweeps: Callable[[list[Tensor], list[Tensor]], Blocks]
) -> Callable[..., Any]:
    positions: Any = argnums if isinstance(argnums, (list, tuple)) else [argnums]
    if not callable(f) or not all(isinstance(p, int) for p in positions):
        message = (
            f"{what}: expected a function and positions of its arguments; got {f!r:.60} and {argnums!r:.60}"
        )
        raise misuse(message, DTypeError)

    def derivative(*primals: Any) -> Any:
        call = _Call(what, f, primals)
        chosen = _chosen(what, call.primals, argnums)
        xs = flatten(chosen)
        check_floating(what, [*call.ys, *xs])
        graph = call.ys[0].graph
        with graph, graph.name_scope(what):
            return pack_blocks(call.outputs, chosen, sweeps(call.ys, xs))

    return functools.update_wrapper(derivative, f)


def _chosen(what: str, primals: Sequence[Any], argnums: int | Sequence[int]) -> Any:
    wanted = [argnums] if isinstance(argnums, int) else argnums
    for position in wanted:
        if not -len(primals) <= position < len(primals):
            raise misuse(f"{what}: expected argnums of {len(primals)} arguments; got {argnums!r}")
    found = tuple(primals[position] for position in wanted)
    return found[0] if isinstance(argnums, int) else found


@final
class _Call:
    """One call of ``f``: ``primals`` are its arguments, ``outputs`` is its result, with tensors as leaves;
    ``xs`` and ``ys`` are the leaves of both.
    """

    def __init__(self, what: str, f: Any, primals: Any) -> None:
        if not callable(f) or not isinstance(primals, (list, tuple)):
            message = f"{what}: expected a function and its arguments"
            raise misuse(f"{message}; got {f!r} and {primals!r}", DTypeError)
        self.xs = [identity(convert_to_tensor(x, name="primal")) for x in flatten(list(primals))]
        self.primals: list[Any] = pack_as(list(primals), self.xs)
        returned = f(*self.primals)
        self.ys = [convert_to_tensor(y, name="output") for y in flatten(returned)]
        if not self.ys:
            raise misuse(f"{what}: expected a function that returns at least one tensor; got {returned!r}")
        self.outputs = pack_as(returned, self.ys)

    def like_primals(self, found: Any) -> tuple[Any, ...]:
        """The items of ``found`` for differentiable xs, in the primals' structure; None for others."""
        remaining = iter(found)
        return tuple(
            pack_as(self.primals, [next(remaining) if x.dtype in INEXACT else None for x in self.xs])
        )


def _leaves_like(what: str, items: Sequence[Structure], values: Any) -> list[Any]:
    """The parts of ``values`` at the leaves of ``items``; a None applies to each leaf below it."""
    if not isinstance(values, (list, tuple)) or len(values) != len(items):
        raise misuse(f"{what}: expected a list or tuple of {len(items)}, one per argument; got {values!r}")
    found: list[Any] = []
    for item, value in zip(items, values, strict=True):
        try:
            found += [None] * len(flatten(item)) if value is None else flatten_up_to(item, value)
        except InvalidArgumentError as error:
            raise misuse(f"{what}: {error.message}") from None
    return found
