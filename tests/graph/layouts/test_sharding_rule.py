"""Sharding rules as text, and bound to shapes."""

from __future__ import annotations

import pytest

from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.sharding_rule import Dims, ShardingRule, bind_rule, dim_of, parse_rule
from flowrt.graph.shapes import Shape


def rule_of(text: str, inputs: list[Shape], outputs: list[Shape]) -> ShardingRule:
    rule = bind_rule(text, tuple(inputs), tuple(outputs))
    assert rule is not None
    return rule


def written(rule: ShardingRule) -> str:
    """The rule with its factors' names and sizes, as ``i4 k3, k3 j2 -> i4 j2``."""

    def group(dims: Dims) -> str:
        return " ".join(
            "(" * (len(dim) > 1)
            + " ".join(f"{rule.factors[n].name}={rule.factors[n].size}" for n in dim)
            + ")" * (len(dim) > 1)
            if dim
            else "1"
            for dim in dims
        )

    return f"{', '.join(map(group, rule.inputs))} -> {', '.join(map(group, rule.outputs))}"


def test_a_product_contracts_a_factor() -> None:
    rule = rule_of("i k, k j -> i j", [(4, 3), (3, 2)], [(4, 2)])
    assert written(rule) == "i=4 k=3, k=3 j=2 -> i=4 j=2"
    assert [factor.reduction for factor in rule.factors] == ["", "sum", ""]
    assert [dim_of(1, dims) for dims in (*rule.inputs, *rule.outputs)] == [1, 0, None]


def test_dots_broadcast_from_the_right() -> None:
    rule = rule_of("... i k, ... k j -> ... i j", [(7, 5, 4, 3), (1, 3, 2)], [(7, 5, 4, 2)])
    assert written(rule) == "...[-2]=7 ...[-1]=5 i=4 k=3, 1 k=3 j=2 -> ...[-2]=7 ...[-1]=5 i=4 j=2"
    same = rule_of("..., ... -> ...", [(4, 1), (1, 3)], [(4, 3)])
    assert written(same) == "...[-2]=4 1, 1 ...[-1]=3 -> ...[-2]=4 ...[-1]=3"
    ones = rule_of("..., ... -> ...", [(1, 3), (3,)], [(1, 3)])
    assert written(ones) == "...[-2]=1 ...[-1]=3, ...[-1]=3 -> ...[-2]=1 ...[-1]=3"


def test_runs_of_dimensions_are_written_out() -> None:
    rule = rule_of("v! ..a, ..i -> ..i ..a", [(9, 3, 2), (4, 5)], [(4, 5, 3, 2)])
    assert written(rule) == "v=9 ..a[0]=3 ..a[1]=2, ..i[0]=4 ..i[1]=5 -> ..i[0]=4 ..i[1]=5 ..a[0]=3 ..a[1]=2"
    assert [factor.may_cut for factor in rule.factors] == [False, True, True, True, True]
    empty = rule_of("v! ..a, ..i -> ..i ..a", [(9,), ()], [()])
    assert written(empty) == "v=9,  -> "


def test_a_dimension_of_two_factors_is_cut_by_the_major_one() -> None:
    rule = rule_of("i j k -> (i j) k", [(4, 3, 2)], [(12, 2)])
    assert written(rule) == "i=4 j=3 k=2 -> (i=4 j=3) k=2"
    i, j, k = range(3)
    assert [rule.may_cut(factor, 2) for factor in (i, j, k)] == [True, False, True]
    assert not rule.may_cut(i, 3), "parts of 2, 1 and 1 rows are not array_split's of 12"
    split = rule_of("(i j) -> i j", [(12,)], [(4, 3)])
    assert written(split) == "(i=4 j=3) -> i=4 j=3"


def test_marks_and_what_an_op_makes() -> None:
    rule = rule_of("n c!, n -> n, n c!", [(4, 3), (4,)], [(4,), (4, 3)])
    assert [factor.may_cut for factor in rule.factors] == [True, False]
    made = rule_of("n -> n depth", [(4,)], [(4, 9)])
    assert [factor.may_cut for factor in made.factors] == [True, False]
    largest = rule_of("i k|max -> i", [(4, 3)], [(4,)])
    assert largest.factors[1].reduction == "max"


def test_unknown_sizes_and_ranks() -> None:
    rule = rule_of("i k, k j -> i j", [(None, 3), (3, None)], [(None, None)])
    assert [factor.size for factor in rule.factors] == [None, 3, None]
    assert rule.may_cut(0, 2)
    assert bind_rule("i -> i", (None,), ((3,),)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i k, k j", "expected 'inputs -> outputs'"),
        ("i & -> i", "cannot read '& '|cannot read '&'"),
        ("i|mean -> ", "expected one of .* got 'mean'"),
        ("(i -> i", "cannot read"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_rule(text)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([(4, 3)], [(4, 2)], "expected 2 inputs and 1 outputs; got 1 and 1"),
        ([(4, 3), (3,)], [(4, 2)], "expected a tensor of rank 2; got rank 1"),
        ([(4, 3), (5, 2)], [(4, 2)], r"expected a dimension \(k\) of size 3; got 5"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(inputs: list[Shape], outputs: list[Shape], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        bind_rule("i k, k j -> i j", tuple(inputs), tuple(outputs))
