"""Nested structures: flattening and packing."""

from collections import OrderedDict, namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.base.structure import flatten, flatten_up_to, leaf_paths, map_structure, pack_as, same_structure
from flowrt.errors import InvalidArgumentError

Point = namedtuple("Point", "x y")

structures = st.recursive(
    st.none() | st.integers() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


@given(structures)
def test_packing_what_was_flattened_gives_the_same(structure):
    packed = pack_as(structure, flatten(structure))
    assert packed == structure
    assert repr(packed) == repr(structure)  # container types and key order too


@given(structures)
def test_leaf_paths_lead_to_the_leaves(structure):
    found = [eval("s" + path, {"s": structure}) for path in leaf_paths(structure)]  # noqa: S307
    assert found == flatten(structure)


@given(structures)
def test_a_structure_flattened_up_to_itself_is_flat(structure):
    assert flatten_up_to(structure, structure) == flatten(structure)


def test_keys_are_visited_in_sorted_order_and_kept_in_their_own():
    structure = OrderedDict([("b", 1), ("a", (2, 3))])
    assert flatten(structure) == [2, 3, 1]
    packed = map_structure(lambda leaf: leaf * 10, structure)
    assert packed == OrderedDict([("b", 10), ("a", (20, 30))])
    assert type(packed) is OrderedDict


def test_is_leaf_keeps_lists_whole():
    assert flatten(([1, 2], 3), lambda value: isinstance(value, list)) == [[1, 2], 3]


def test_map_structure_takes_deeper_parts_of_the_others():
    assert map_structure(lambda a, b: (a, b), {"x": 1}, {"x": [2, 3]}) == {"x": (1, [2, 3])}


@pytest.mark.parametrize(
    ("shallow", "value", "message"),
    [
        ((1, 2), (1, 2, 3), "expected 2 items; got 3"),
        ({"a": 1}, {"b": 1}, r"expected keys \['a'\]; got \['b'\]"),
        ({"a": (1, 2)}, {"a": 5}, r"at \['a'\]: expected a tuple of 2; got 5"),
    ],
)
def test_a_different_structure_is_refused_with_its_place(shallow, value, message):
    with pytest.raises(InvalidArgumentError, match=message):
        flatten_up_to(shallow, value)


def test_keys_that_cannot_be_sorted_and_a_wrong_leaf_count_are_refused():
    with pytest.raises(InvalidArgumentError, match="keys that can be sorted"):
        flatten({1: 0, "a": 0})
    with pytest.raises(InvalidArgumentError, match="expected 2 leaves; got 3"):
        pack_as((1, 2), [1, 2, 3])


def test_same_structure_ignores_leaves_only():
    assert same_structure({"a": (1, 2)}, {"a": ("x", None)})
    assert not same_structure({"a": (1, 2)}, {"a": (1, 2, 3)})
    assert not same_structure((1, 2), [1, 2])
