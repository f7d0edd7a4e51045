"""`shard`: the workers' parts of a dataset hold each record once, by file or by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.data.auto_shard import AutoShardPolicy, divide_batches, is_random, shard
from flowrt.data.dataset import Dataset, TextLineDataset
from flowrt.data.node import Node

POLICIES = (AutoShardPolicy.AUTO, AutoShardPolicy.DATA)


def records(node: Node) -> list[Any]:
    """What a step after the other gives, without batches."""
    next_batch = Dataset(node).make_one_shot_iterator().get_next()
    found: list[Any] = []
    with tf.Session() as sess:
        while True:
            try:
                found += sess.run(next_batch).tolist()
            except tf.errors.OutOfRangeError:
                return found


def parts(dataset: Dataset, count: int, policy: AutoShardPolicy) -> list[list[Any]]:
    found = [shard(dataset.node, count, index, policy) for index in range(count)]
    assert all(node is not None for node in found)
    return [records(node) for node in found if node is not None]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Five files of one to five lines, each line its file's number and its own."""
    paths = [tmp_path / f"{i}.txt" for i in range(5)]
    for i, path in enumerate(paths):
        path.write_text("".join(f"{i}{line}\n" for line in range(i + 1)))
    return [str(path) for path in paths]


LINES = sorted(f"{i}{line}".encode() for i in range(5) for line in range(i + 1))


def of_names(files: list[str]) -> Dataset:
    return TextLineDataset(files)


def of_map(files: list[str]) -> Dataset:
    return Dataset.from_tensor_slices(files).flat_map(TextLineDataset)


def of_shuffled_names(files: list[str]) -> Dataset:
    return Dataset.from_tensor_slices(files).shuffle(5).interleave(TextLineDataset, cycle_length=2)


@pytest.mark.parametrize("policy", [AutoShardPolicy.AUTO, AutoShardPolicy.FILE])
@pytest.mark.parametrize("make", [of_names, of_map, of_shuffled_names])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_files_go_to_one_worker_each(files: list[str], policy, make, count: int) -> None:
    found = parts(make(files).shuffle(3).batch(2 * count).prefetch(1), count, policy)
    assert sorted(line for part in found for line in part) == LINES
    for part in found:
        numbers = {line[:1] for line in part}
        assert sorted(part) == [line for line in LINES if line[:1] in numbers]


@pytest.mark.parametrize("make", [of_names, of_map])
def test_too_few_files_are_divided_by_record(files: list[str], make) -> None:
    dataset = make(files[3:]).shuffle(3).batch(3)
    found = parts(dataset, 3, AutoShardPolicy.AUTO)
    assert sorted(line for part in found for line in part) == [line for line in LINES if line[:1] in b"34"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"at least 3 files.*AutoShardPolicy.DATA"):
        shard(dataset.node, 3, 0, AutoShardPolicy.FILE)


@settings(max_examples=30)
@given(st.integers(0, 30), st.integers(1, 5), st.integers(1, 3), st.sampled_from(POLICIES))
def test_every_record_is_in_one_part_whatever_the_orders(
    count: int, workers: int, epochs: int, policy
) -> None:
    with tf.Graph().as_default():
        dataset = Dataset.range(count).map(lambda x: x * 2).shuffle(7).repeat(epochs).batch(workers * 2)
        found = parts(dataset, workers, policy)
    assert sorted(x for part in found for x in part) == sorted([2 * x for x in range(count)] * epochs)
    assert max(map(len, found)) - min(map(len, found)) <= epochs


@pytest.mark.parametrize("workers", [2, 3])
def test_several_inputs_are_divided_each(workers: int) -> None:
    first, second = Dataset.range(10).shuffle(5), Dataset.range(10, 16)
    joined = parts(first.concatenate(second).batch(workers), workers, AutoShardPolicy.DATA)
    assert sorted(x for part in joined for x in part) == list(range(16))
    pairs = Dataset.zip((Dataset.range(12).shuffle(12), Dataset.range(12))).map(lambda a, b: tf.stack([a, b]))
    zipped = parts(pairs.batch(workers), workers, AutoShardPolicy.DATA)
    for column in (0, 1):
        assert sorted(pair[column] for part in zipped for pair in part) == list(range(12))


def test_an_order_that_all_workers_share_needs_no_parts() -> None:
    for dataset in (Dataset.range(9).batch(4), Dataset.range(9).shuffle(3, seed=5).batch(4)):
        for policy in POLICIES:
            assert shard(dataset.node, 2, 0, policy) is None
    assert shard(Dataset.range(9).shuffle(3).batch(4).node, 2, 0, AutoShardPolicy.DATA) is not None


def half(x: Any, seed: int | None = None) -> Any:
    return tf.random_uniform([], seed=seed) < 0.5


def half_by_seed(x: Any) -> Any:
    return half(x, seed=1)


def sampled(seed: int | None) -> Dataset:
    return tf.data.experimental.sample_from_datasets([Dataset.range(9), Dataset.range(9, 18)], seed=seed)


def resampled(seed: int | None) -> Dataset:
    return Dataset.range(18).apply(
        tf.data.experimental.rejection_resample(lambda x: x % 2, [0.2, 0.8], [0.5, 0.5], seed)
    )


def below(seed: int | None) -> Any:
    threshold = tf.random_uniform([], 0, 9, tf.int64, seed=seed)
    return lambda x: x < threshold


def shuffled_names(seed: int | None) -> Dataset:
    return Dataset.from_tensor_slices(tf.random_shuffle(["a", "b", "c"], seed=seed))


def shuffled_windows(dataset: Dataset) -> Dataset:
    return dataset.apply(
        tf.data.experimental.group_by_window(lambda x: x % 2, lambda key, window: window.shuffle(4), 4)
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda rows: rows.shuffle(9), True),
        (lambda rows: rows.shuffle(9, seed=1), False),
        (lambda rows: sampled(None), True),
        (lambda rows: sampled(1), False),
        (lambda rows: rows.interleave(lambda x: Dataset.range(x).shuffle(9), cycle_length=2), True),
        (lambda rows: rows.interleave(lambda x: Dataset.range(x).shuffle(9, seed=1), cycle_length=2), False),
        (shuffled_windows, True),
        (lambda rows: rows.filter(half), True),
        (lambda rows: rows.filter(lambda x: half(x, seed=1)), False),
        (lambda rows: rows.filter(lambda x: tf.cond(x > 3, lambda: half(x), lambda: True)), True),
        (lambda rows: rows.map(lambda x: (x, half(x))).filter(lambda x, chosen: chosen), True),
        (lambda rows: rows.map(lambda x: (x, half(x))), False),
        (lambda rows: rows.map(half_by_seed).filter(lambda chosen: chosen), False),
        (lambda rows: rows.map(half_by_seed, num_parallel_calls=4).filter(lambda chosen: chosen), True),
        (lambda rows: rows.map(half_by_seed, num_parallel_calls=4), False),
        (lambda rows: rows.map(lambda x: x + 1, num_parallel_calls=4).filter(lambda x: x > 4), False),
        (lambda rows: resampled(None), True),
        (lambda rows: resampled(1), False),
        (lambda rows: rows.filter(below(None)), True),
        (lambda rows: rows.filter(below(1)), False),
        (lambda rows: rows.flat_map(lambda x: rows.map(half)).filter(lambda chosen: chosen), True),
        (lambda rows: rows.take(tf.random_uniform([], 0, 9, tf.int64)), True),
        (lambda rows: rows.shuffle(9, seed=tf.random_uniform([], 0, 9, tf.int64)), True),
        (lambda rows: shuffled_names(None), True),
        (lambda rows: shuffled_names(1), False),
        (lambda rows: Dataset.from_tensor_slices(tf.random_uniform([9])), False),
        (lambda rows: Dataset.from_tensor_slices(tf.random_uniform([9])).filter(lambda x: x < 0.5), True),
    ],
    ids=[
        "shuffle", "seeded shuffle", "sample", "seeded sample", "shuffle in interleave",
        "seeded shuffle in interleave", "shuffle in windows", "random filter", "seeded filter",
        "random branch of a filter", "filter of random values", "random values", "filter of seeded values",
        "filter of seeded values drawn in parallel", "seeded values drawn in parallel",
        "filter of values made in parallel", "resample", "seeded resample", "captured threshold",
        "captured seeded threshold", "filter of a random map in flat_map", "random count",
        "seed drawn without a seed", "random_shuffle", "seeded random_shuffle", "random slices",
        "filter of random slices",
    ],
)  # fmt: skip
def test_what_draws_without_a_seed_has_another_order_in_each_process(make, expected: bool) -> None:
    assert is_random(make(Dataset.range(9)).node) is expected


@pytest.mark.parametrize(
    "make",
    [lambda names: Dataset.from_tensor_slices(names).flat_map(TextLineDataset), TextLineDataset],
    ids=["names as elements", "names"],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_sources_in_an_order_of_their_own_in_each_worker_cannot_be_divided(make, policy) -> None:
    dataset = make(tf.random_shuffle(["a", "b", "c"])).batch(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"same order in all .* Give that op a seed"):
        shard(dataset.node, 2, 0, policy)


def test_records_that_are_sampled_at_random_are_in_one_part_each() -> None:
    found = parts(sampled(None).batch(3), 3, AutoShardPolicy.AUTO)
    assert sorted(x for part in found for x in part) == list(range(18))


def test_off_leaves_the_records_and_divides_the_batches() -> None:
    node = shard(Dataset.range(6).batch(4).node, 2, 1, AutoShardPolicy.OFF)
    assert node is not None
    assert records(node) == list(range(6))
    (size,) = {leaf.shape for leaf in [divide_batches(Dataset.range(8).batch(4, True).node, 2).spec]}
    assert size == (2,)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (lambda: Dataset.range(9).shuffle(3).batch(5), "divisible by 2, the number of workers; got 5"),
        (
            lambda: Dataset.range(9).shuffle(3).map(lambda x: tf.stack([x, x])),
            "got one batched in another function",
        ),
    ],
)
def test_batches_that_cannot_be_divided_are_refused(dataset, words: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        shard(dataset().node, 2, 0, AutoShardPolicy.DATA)


def test_the_policy_has_tensorflows_name() -> None:
    assert tf.data.experimental.AutoShardPolicy is AutoShardPolicy
    assert [policy.value for policy in AutoShardPolicy] == [-1, 0, 1, 2]
