"""`TensorList` against a model: Python tuples, one a version, all of them alive and used in any order."""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, multiple, rule

from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.resources.tensor_list import NEAR, ListSpec, TensorList

FLOATS = ListSpec(dtypes.float64)
Version = tuple[TensorList, tuple[Any, ...]]


def element(number: float) -> Any:
    return np.array(number, np.float64)


def made_of(*numbers: float) -> TensorList:
    return TensorList(FLOATS, [element(n) for n in numbers])


def numbers_in(handle: TensorList) -> list[Any]:
    return [None if e is None else float(e) for e in handle.elements()]


class ListMachine(RuleBasedStateMachine):
    """Versions in a bundle: each rule takes any of them, new or old, and adds what it makes."""

    versions = Bundle("versions")

    @rule(target=versions, numbers=st.lists(st.none() | st.integers(0, 9).map(float), max_size=5))
    def make(self, numbers: list[float | None]) -> Version:
        arrays = [None if n is None else element(n) for n in numbers]
        return TensorList(FLOATS, arrays), tuple(numbers)

    @rule(target=versions, numbers=st.lists(st.integers(0, 9).map(float), max_size=5))
    def make_of_rows(self, numbers: list[float]) -> Version:
        return TensorList.of_rows(FLOATS, np.array(numbers)), tuple(numbers)

    @rule(target=versions, version=versions, number=st.none() | st.floats(0, 9), data=st.data())
    def set(self, version: Version, number: float | None, data: st.DataObject) -> Any:
        handle, model = version
        if not model:
            return multiple()
        index = data.draw(st.integers(0, len(model) - 1))
        changed = handle.set(index, None if number is None else element(number))
        return changed, (*model[:index], number, *model[index + 1 :])

    @rule(target=versions, version=versions, numbers=st.lists(st.floats(0, 9), min_size=1, max_size=2 * NEAR))
    def push(self, version: Version, numbers: list[float]) -> Any:
        found, (handle, model) = [], version
        for number in numbers:
            handle, model = handle.push(element(number)), (*model, number)
            found.append((handle, model))
        return multiple(found[0], found[-1])

    @rule(target=versions, version=versions)
    def pop(self, version: Version) -> Any:
        handle, model = version
        if not model:
            with pytest.raises(InvalidArgumentError, match="got an empty one"):
                handle.pop()
            return multiple()
        popped, value = handle.pop()
        assert (None if value is None else float(value)) == model[-1]
        return popped, model[:-1]

    @rule(target=versions, version=versions, length=st.integers(0, 6))
    def resize(self, version: Version, length: int) -> Version:
        handle, model = version
        return handle.resized(length), (*model[:length], *[None] * (length - len(model)))

    @rule(version=versions)
    def read(self, version: Version) -> None:
        handle, model = version
        assert handle.length == len(model)
        assert numbers_in(handle) == list(model)

    @rule(version=versions, data=st.data())
    def get(self, version: Version, data: st.DataObject) -> None:
        handle, model = version
        if model:
            index = data.draw(st.integers(0, len(model) - 1))
            value = handle.get(index)
            assert (None if value is None else float(value)) == model[index]


TestListMachine = ListMachine.TestCase
TestListMachine.settings = settings(stateful_step_count=60)


# --- what it costs: counted in differences that are turned around and copies


class Counted:
    """How many differences are turned around, and how many elements are copied, inside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turned = self.copied = 0
        take_over = TensorList._take_over
        module = sys.modules[TensorList.__module__]
        replayed = module._replayed

        def counted_take_over(handle: TensorList) -> Any:
            self.turned += 1
            return take_over(handle)

        def counted_replayed(path: Any) -> Any:
            elements = replayed(path)
            self.copied += len(elements)
            return elements

        monkeypatch.setattr(TensorList, "_take_over", counted_take_over)
        monkeypatch.setattr(module, "_replayed", counted_replayed)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


N = 500


def test_a_loop_on_the_newest_version_copies_nothing(counted: Counted) -> None:
    handle = TensorList(FLOATS)
    for i in range(N):
        handle = handle.push(element(i))
    for i in range(N):
        handle = handle.set(i, element(-i))
    for i in reversed(range(N)):
        handle, value = handle.pop()
        assert value == -i
    assert (counted.turned, counted.copied) == (3 * N, 0)


def test_reading_the_version_before_a_write_in_each_step_is_cheap(counted: Counted) -> None:
    handle = made_of(*range(N))
    for i in range(N):
        written = handle.set(i, element(0))
        assert handle.get(i) == i
        handle = written
    assert counted.copied == 0
    assert counted.turned <= 3 * N


def test_two_loops_from_one_version_part(counted: Counted) -> None:
    """Equal ops are merged, so two arrays of one size may begin as one list."""
    first = second = TensorList(FLOATS, [None] * N)
    for i in range(N):
        first, second = first.set(i, element(i)), second.set(i, element(-i))
    assert counted.copied == N
    assert counted.turned <= 2 * N + NEAR**2
    assert numbers_in(first) == [float(i) for i in range(N)]
    assert numbers_in(second) == [float(-i) for i in range(N)]


def test_a_loop_that_writes_an_array_while_it_reads_the_old_one_copies_once(counted: Counted) -> None:
    old = made_of(*range(N))
    new = old
    for i in range(N):
        new = new.set(i, element(old.get(i) * 2))
    assert counted.copied == N
    assert numbers_in(new) == [2.0 * i for i in range(N)]
    assert numbers_in(old) == [float(i) for i in range(N)]


def test_old_versions_are_read_backwards_without_copies(counted: Counted) -> None:
    versions = [TensorList(FLOATS)]
    for i in range(N):
        versions.append(versions[-1].push(element(i)))
    for length in reversed(range(1, N + 1)):
        assert versions[length].get(length - 1) == length - 1
    assert counted.copied == 0
    assert counted.turned <= 2 * N


# --- memory


def test_elements_go_with_the_last_version_that_has_them() -> None:
    array = element(1.0)
    before = sys.getrefcount(array)
    handle = TensorList(FLOATS).push(array)
    longer = handle.push(element(2.0))
    assert sys.getrefcount(array) == before + 1
    handle = handle.set(0, element(3.0))
    assert sys.getrefcount(array) == before + 1  # `longer` has it
    del longer
    handle.get(0)
    assert sys.getrefcount(array) == before


def test_a_long_chain_of_versions_is_freed_without_recursion() -> None:
    first = handle = TensorList(FLOATS, [None])
    for _ in range(50_000):
        handle = handle.set(0, None)
    del handle
    assert first.get(0) is None
    handle = first
    for _ in range(50_000):
        handle = handle.set(0, None)
    del first, handle


# --- threads


def test_threads_may_use_versions_of_one_list_at_once() -> None:
    """A step's threads hold versions of one list. Each goes on from shared ones and checks all it reads."""
    shared = [(made_of(*range(8)), tuple(map(float, range(8))))]
    for i in range(40):
        handle, model = shared[-1]
        shared.append((handle.set(i % 8, element(-i)), (*model[: i % 8], float(-i), *model[i % 8 + 1 :])))
    failures: list[str] = []
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        barrier.wait()
        for step in range(1500):
            handle, model = chance.choice(shared)
            for _ in range(chance.randrange(3)):
                handle, model = handle.push(element(seed)), (*model, float(seed))
            if chance.random() < 0.5:
                handle, _ = handle.pop()
                model = model[:-1]
            index = chance.randrange(len(model))
            if handle.get(index) != model[index] or numbers_in(handle) != list(model):
                failures.append(f"thread {seed}, step {step}: expected {model}; got {numbers_in(handle)}")
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []


# --- bad input leaves the list as it is


@pytest.mark.parametrize("index", [-1, 2, 100])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    handle = made_of(1, 2)
    with pytest.raises(InvalidArgumentError, match=rf"expected an index in \[0, 2\); got {index}"):
        handle.get(index)
    with pytest.raises(InvalidArgumentError, match="expected an index"):
        handle.set(index, element(3))
    assert numbers_in(handle) == [1, 2]


def test_an_element_that_does_not_fit_is_refused() -> None:
    handle = TensorList(ListSpec(dtypes.float64, (None, 2)), [np.zeros((1, 2))])
    with pytest.raises(InvalidArgumentError, match=r"expected elements of shape \[\?, 2\]; got \[3\]"):
        handle.push(np.zeros(3))
    with pytest.raises(DTypeError, match="expected elements of dtype float64; got int64"):
        handle.set(0, np.zeros((1, 2), np.int64))
    with pytest.raises(InvalidArgumentError, match="expected elements of shape"):
        TensorList(handle.spec, [np.zeros(3)])
    assert handle.length == 1


def test_a_full_list_is_refused() -> None:
    handle = TensorList(ListSpec(dtypes.float64, None, 1)).push(element(1))
    with pytest.raises(InvalidArgumentError, match="fewer than 1 elements; got a full one"):
        handle.push(element(2))
    assert numbers_in(handle) == [1]


def test_a_list_is_no_array_and_copies_to_itself() -> None:
    handle = made_of(1)
    with pytest.raises(DTypeError, match="is not an array"):
        np.asarray(handle)
    assert handle.copy() is handle
    assert repr(handle) == "<TensorList float64<unknown> length=1>"
    with pytest.raises(InvalidArgumentError, match="length of at least 0; got -1"):
        handle.resized(-1)


def test_rows_are_those_of_the_list_that_was_made_of_them() -> None:
    rows = np.arange(6.0).reshape(3, 2)
    made = TensorList.of_rows(FLOATS, rows)
    changed = made.set(1, np.zeros(2))
    assert made.rows is rows
    assert changed.rows is None
    assert [e.tolist() for e in changed.elements()] == [[0, 1], [0, 0], [4, 5]]
    assert [e.tolist() for e in made.elements()] == rows.tolist()


def test_rows_fit_the_list() -> None:
    with pytest.raises(DTypeError):
        TensorList.of_rows(FLOATS, np.zeros(2, np.float32))
    with pytest.raises(InvalidArgumentError):
        TensorList.of_rows(ListSpec(dtypes.float64, (3,)), np.zeros((2, 4)))
