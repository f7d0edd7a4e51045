"""`kl_divergence`, by formulas that `RegisterKL` registers for pairs of kinds of distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.errors import AlreadyExistsError, UnimplementedError
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.text.assertions import check_numerics
from flowrt.graph.source import misuse

_FORMULAS: dict[tuple[type, type], Callable[..., Tensor]] = {}


class RegisterKL:
    """A decorator: ``@RegisterKL(A, B)`` of ``f(a, b, name=None)``, the divergence from an A to a B.

    Raises `AlreadyExistsError` if there is one.
    """

    def __init__(self, dist_cls_a: type, dist_cls_b: type) -> None:
        self._key = (dist_cls_a, dist_cls_b)

    def __call__(self, kl_fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if self._key in _FORMULAS:
            names = " and ".join(kind.__name__ for kind in self._key)
            raise misuse(
                f"RegisterKL: expected kinds without a formula; {names} have one", AlreadyExistsError
            )
        _FORMULAS[self._key] = kl_fn
        return kl_fn


def kl_divergence(
    distribution_a: Any, distribution_b: Any, allow_nan_stats: bool = True, name: str | None = None
) -> Tensor:
    """The Kullback-Leibler divergence from a to b, ``E[log a(x) - log b(x)]`` for x of a, for each element
    of the batch. Without ``allow_nan_stats`` a NaN is an `InvalidArgumentError` when it runs.

    Raises `UnimplementedError` for a pair without a formula.
    """
    formula = _formula(type(distribution_a), type(distribution_b))
    if formula is None:
        raise misuse(
            f"kl_divergence: there is no formula from {type(distribution_a).__name__} to "
            f"{type(distribution_b).__name__}; RegisterKL registers one",
            UnimplementedError,
        )
    with get_default_graph().name_scope(name or "KullbackLeibler"):
        found = formula(distribution_a, distribution_b, name=name)
        return found if allow_nan_stats else check_numerics(found, "kl_divergence: expected no NaN")


def _formula(a: type, b: type) -> Callable[..., Any] | None:
    """The formula of the nearest pair of base classes."""
    pairs = [
        (i + j, _FORMULAS[p, q])
        for i, p in enumerate(a.__mro__)
        for j, q in enumerate(b.__mro__)
        if (p, q) in _FORMULAS
    ]
    return min(pairs, key=lambda pair: pair[0])[1] if pairs else None
