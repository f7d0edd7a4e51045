"""Datasets of a strategy: every record once an epoch, whatever the number of replicas, and an end without a
hang.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.data.auto_shard import AutoShardPolicy
from flowrt.data.node import ElementIterator
from flowrt.distribute.collectives import JoinedGroup
from flowrt.distribute.strategies.input.distributed_input import InputContext
from flowrt.distribute.strategies.input.replica_batches import DealBatches, SplitBatch, UntilAllEnd, share_of
from tests.distribute.strategies.cpus import central, mirrored, session
from tests.distribute.strategies.workers_of_one_process import Worker, at_once, joined_workers

D = tf.distribute
Dataset = tf.data.Dataset


def epoch(strategy: Any, iterator: Any) -> list[list[Any]]:
    """What each step of an epoch gives the replicas."""
    parts = strategy.experimental_local_results(iterator.get_next())
    steps = []
    with session() as sess:
        sess.run(iterator.initializer)
        while True:
            try:
                steps.append([part.tolist() for part in sess.run(list(parts))])
            except tf.errors.OutOfRangeError:
                return steps


# --- TensorFlow's own examples


def test_elements_are_dealt_to_four_replicas() -> None:
    """range(8), a number a replica and step: the sums are 4, 6, 8, 10, and 28 together."""
    strategy = mirrored(4)
    with strategy.scope():
        total = tf.Variable(
            np.int64(0),
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    iterator = strategy.distribute_datasets_from_function(
        lambda _: Dataset.range(8).batch(1)
    ).make_initializable_iterator()
    added = strategy.run(lambda x: total.assign_add(tf.reduce_sum(x)), args=(iterator.get_next(),))
    step = strategy.group(added)
    with session() as sess:
        sess.run([iterator.initializer, total.initializer])
        sess.run(step)
        sess.run(step)
        assert sess.run(list(total.copies)) == [4, 6, 8, 10]
        assert sess.run(total) == 28
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(step)


def test_the_mean_of_a_partial_batch_divides_by_its_six_records() -> None:
    strategy = mirrored(2)
    data = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 9.0])
    iterator = strategy.make_dataset_iterator(Dataset.from_tensor_slices(data).batch(8))
    batch = iterator.get_next()
    mean = strategy.reduce("MEAN", batch, axis=0)
    sizes = [tf.shape(part)[0] for part in batch.values]
    with session() as sess:
        sess.run(iterator.initializer)
        assert sess.run([mean, *sizes]) == [4.0, 4, 2]


# --- every record once


@pytest.mark.parametrize("make", [mirrored, central])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("records", [0, 1, 59, 60, 125])
def test_every_record_comes_once_an_epoch(make, replicas: int, records: int) -> None:
    strategy = make(replicas)
    iterator = strategy.make_dataset_iterator(Dataset.range(records).batch(60))
    steps = epoch(strategy, iterator)
    assert len(steps) == -(-records // 60)
    assert [record for step in steps for part in step for record in part] == list(range(records))
    assert all(len(part) <= 60 // replicas for step in steps for part in step)


@given(st.integers(0, 40), st.integers(1, 8), st.integers(1, 4), st.integers(1, 3))
def test_workers_that_read_the_same_batches_share_them_out(
    records: int, share: int, local: int, workers: int
) -> None:
    found = shares_of_workers(records, share * local * workers, local, workers, may_be_uneven=False)
    assert in_order(found) == list(range(records))


@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 4), st.integers(1, 3))
def test_uneven_shares_have_all_rows_once(records: int, batch: int, local: int, workers: int) -> None:
    found = shares_of_workers(records, batch, local, workers, may_be_uneven=True)
    assert in_order(found) == list(range(records))
    sizes = [[len(part) for parts in step for part in parts] for step in zip(*found, strict=True)]
    assert all(max(step) - min(step) <= 1 for step in sizes)  # a mean of no rows would be NaN


def test_batches_that_are_all_full_keep_their_static_shape() -> None:
    node = Dataset.range(16).batch(12, drop_remainder=True).node
    assert share_of(node, 4, may_be_uneven=True) == 3
    assert share_of(Dataset.range(16).batch(12).node, 4, may_be_uneven=True) is None


def shares_of_workers(
    records: int, batch: int, local: int, workers: int, may_be_uneven: bool
) -> list[list[Any]]:
    """The steps of each worker, with a part for each of its ``local`` replicas."""
    replicas = local * workers
    node = Dataset.range(records).batch(batch).node
    share = share_of(node, replicas, may_be_uneven)
    found = [
        list(ElementIterator(SplitBatch(node, replicas, worker * local, local, share)))
        for worker in range(workers)
    ]
    assert len({len(steps) for steps in found}) == 1
    return found


def in_order(found: list[list[Any]]) -> list[Any]:
    """The rows of all workers' parts, step by step."""
    return [x for step in zip(*found, strict=True) for parts in step for part in parts for x in part]


@given(st.integers(0, 20), st.integers(1, 4), st.integers(1, 4))
def test_dealt_batches_come_in_order(records: int, size: int, count: int) -> None:
    node = DealBatches(Dataset.range(records).batch(size).node, count)
    hands = list(ElementIterator(node))
    assert [x for hand in hands for part in hand for x in part] == list(range(records))
    assert all(len(hand) == count for hand in hands)


def test_batches_of_unknown_size_are_cut_evenly() -> None:
    strategy = mirrored(2)
    batches = [np.arange(4), np.arange(3), np.arange(1)]
    dataset = Dataset.from_generator(lambda: iter(batches), tf.int64, [None])
    assert epoch(strategy, strategy.make_dataset_iterator(dataset)) == [
        [[0, 1], [2, 3]],
        [[0, 1], [2]],
        [[0], []],
    ]


def test_structures_and_static_shapes_stay() -> None:
    strategy = mirrored(2)
    data = {"x": np.zeros((6, 3), "f"), "y": np.arange(6)}
    dataset = Dataset.from_tensor_slices(data).batch(4, drop_remainder=True).prefetch(1)
    distributed = strategy.experimental_distribute_dataset(dataset)
    assert distributed.element_spec["x"].shape == (2, 3)
    iterator = distributed.make_one_shot_iterator()
    assert iterator.output_types == {"x": tf.float32, "y": tf.int64}
    element = iterator.get_next()
    assert [v.device for v in element["x"].values] == ["/device:CPU:0", "/device:CPU:1"]
    with session() as sess:
        assert [y.tolist() for y in sess.run(list(element["y"].values))] == [[0, 1], [2, 3]]
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(list(element["y"].values))


def test_a_worker_without_data_goes_on_with_none_until_all_end() -> None:
    node = UntilAllEnd(DealBatches(Dataset.range(3).batch(2).node, 2))
    elements = ElementIterator(node)
    found = [next(elements) for _ in range(4)]
    assert [bool(has_rows) for has_rows, *_ in found] == [True, False, False, False]
    assert [len(part) for part in found[0][1:]] == [2, 1]
    assert [part.shape for part in found[3][1:]] == [(0,), (0,)]
    elements.close()


def test_a_worker_that_never_had_data_has_the_right_types() -> None:
    node = UntilAllEnd(DealBatches(Dataset.from_tensor_slices(np.zeros((0, 5), "f")).batch(2).node, 1))
    has_rows, part = next(ElementIterator(node))
    assert not has_rows
    assert (part.shape, part.dtype) == ((0, 5), np.float32)


def test_an_iterator_begins_again() -> None:
    strategy = mirrored(2)
    iterator = strategy.make_dataset_iterator(Dataset.range(4).batch(4))
    assert epoch(strategy, iterator) == epoch(strategy, iterator) == [[[0, 1], [2, 3]]]


def test_the_function_of_a_worker_is_told_how_many_there_are() -> None:
    strategy = mirrored(3)

    def dataset_fn(context: InputContext) -> Any:
        assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
        return Dataset.range(7).batch(context.get_per_replica_batch_size(6))

    iterator = strategy.make_input_fn_iterator(dataset_fn)
    assert epoch(strategy, iterator) == [[[0, 1], [2, 3], [4, 5]], [[6], [], []]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"divisible by 3 replicas; got 7. Use 9"):
        InputContext(1, 0, 3).get_per_replica_batch_size(7)


# --- workers


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(1, 3))
def test_workers_with_any_numbers_of_records_end_together(counts: list[int], size: int) -> None:
    def work(joined: JoinedGroup) -> list[list[Any]]:
        (rank,) = joined.group.ranks
        first = sum(counts[:rank])
        with tf.Graph().as_default():
            strategy = Worker(joined.group)
            distributed = strategy.distribute_datasets_from_function(
                lambda _: Dataset.range(first, first + counts[rank]).batch(size)
            )
            return epoch(strategy, distributed.make_initializable_iterator())

    with joined_workers(len(counts)) as joined:
        found = at_once(work, joined)
    assert [x for steps in found for step in steps for part in step for x in part] == list(range(sum(counts)))
    assert {len(steps) for steps in found} == {-(-max(counts) // size)}


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("by", [AutoShardPolicy.FILE, AutoShardPolicy.DATA])
def test_workers_divide_files_or_records_and_each_comes_once(workers: int, by, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.txt" for i in range(7)]
    for i, path in enumerate(paths):
        path.write_text("".join(f"{i}{line}\n" for line in range(i)))

    def work(joined: JoinedGroup) -> list[list[Any]]:
        with tf.Graph().as_default():
            strategy = Worker(joined.group)
            lines = tf.data.TextLineDataset(list(map(str, paths))).shuffle(4).batch(2 * workers)
            numbers = lines.map(lambda line: tf.strings.to_number(line, tf.int64))
            distributed = strategy.experimental_distribute_dataset(numbers, D.InputOptions(by))
            return epoch(strategy, distributed.make_initializable_iterator())

    with joined_workers(workers) as joined:
        found = at_once(work, joined)
    everything = sorted(x for steps in found for step in steps for part in step for x in part)
    assert everything == [10 * i + line for i in range(7) for line in range(i)]
    assert len({len(steps) for steps in found}) == 1


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("by", [AutoShardPolicy.FILE, AutoShardPolicy.DATA, None])
def test_workers_go_on_together_after_the_end_of_an_epoch(workers: int, by, tmp_path: Path) -> None:
    """With collectives in the step that the end comes into, before the data is there and after it."""
    paths = [tmp_path / f"{i}.txt" for i in range(4)]
    for i, path in enumerate(paths):
        path.write_text("".join(f"{10 * i + line}\n" for line in range(2 * i + 1)))

    def distributed(strategy: Any) -> Any:
        if by is None:
            return strategy.distribute_datasets_from_function(
                lambda context: Dataset.range(7 * context.input_pipeline_id + 1).batch(2)
            )
        lines = tf.data.TextLineDataset(list(map(str, paths))).batch(2 * workers)
        numbers = lines.map(lambda line: tf.strings.to_number(line, tf.int64))
        return strategy.experimental_distribute_dataset(numbers, D.InputOptions(by))

    def work(joined: JoinedGroup) -> list[int]:
        with tf.Graph().as_default():
            strategy = Worker(joined.group)
            iterator = distributed(strategy).make_initializable_iterator()
            total = strategy.reduce(
                "SUM", strategy.run(tf.reduce_sum, args=(iterator.get_next(),)), axis=None
            )
            count = strategy.reduce("SUM", strategy.run(lambda: tf.constant(1)), axis=None)
            return [in_one_epoch(iterator, total, count) for _ in range(3)]

    def in_one_epoch(iterator: Any, total: Any, count: Any) -> int:
        with session() as sess:
            for _ in range(2):
                sess.run(iterator.initializer)
                seen = []
                with pytest.raises(tf.errors.OutOfRangeError):  # noqa: PT012
                    while True:
                        seen.append(sess.run([total, count])[0])
                assert sess.run(count) == workers
            return sum(seen)

    files, ranges = range(4), range(workers)
    everything = sum(10 * i + line for i in files for line in range(2 * i + 1))
    if by is None:
        everything = sum(sum(range(7 * i + 1)) for i in ranges)
    with joined_workers(workers) as joined:
        assert at_once(work, joined) == [[everything] * 3] * workers


# --- bad input


def test_a_batch_that_the_replicas_do_not_divide_is_refused() -> None:
    dataset = Dataset.range(20).batch(10).map(lambda x: x + 1).prefetch(1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"got 10. Use batch\(9\) or batch\(12\)"):
        mirrored(3).experimental_distribute_dataset(dataset)


def test_elements_that_are_no_batches_are_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"scalar. Call dataset.batch"):
        mirrored(2).experimental_distribute_dataset(Dataset.range(4))
    with pytest.raises(tf.errors.DTypeError, match=r"expected a flowrt.data.Dataset"):
        mirrored(2).experimental_distribute_dataset([1, 2])
    with pytest.raises(tf.errors.DTypeError, match=r"expected a flowrt.data.Dataset"):
        mirrored(2).distribute_datasets_from_function(lambda _: None)
    with pytest.raises(tf.errors.DTypeError, match="AutoShardPolicy"):
        D.InputOptions("file")


def test_components_of_different_length_are_found_in_the_step() -> None:
    dataset = Dataset.from_tensors((np.zeros(4), np.zeros(3)))
    dataset = Dataset.from_generator(
        lambda: iter([(np.zeros(4), np.zeros(3))]), (tf.float64, tf.float64), ([None],) * 2
    )
    strategy = mirrored(2)
    iterator = strategy.make_dataset_iterator(dataset)
    parts = iterator.get_next()
    with session() as sess:
        sess.run(iterator.initializer)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"the same number of rows in all components"
        ):
            sess.run(parts[0].values[0])


def test_scalars_cannot_be_missing_at_the_end() -> None:
    strategy = mirrored(2)
    iterator = strategy.make_input_fn_iterator(lambda _: Dataset.range(3))
    parts = list(iterator.get_next().values)
    with session() as sess:
        sess.run(iterator.initializer)
        assert sess.run(parts) == [0, 1]
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected batches"):
            sess.run(parts)


def test_a_loop_over_a_dataset_is_refused() -> None:
    distributed = mirrored(2).experimental_distribute_dataset(Dataset.range(4).batch(2))
    with pytest.raises(tf.errors.FailedPreconditionError, match="get_next"):
        iter(distributed)
