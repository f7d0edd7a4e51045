"""`ElasticJob.distribute`: each record comes as often as without changes, in the same steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.data.auto_shard import AutoShardPolicy
from flowrt.distribute.collectives import JoinedGroup
from flowrt.distribute.elastic.elastic_messages import Epoch
from flowrt.train.elastic.commits import Commit
from flowrt.train.elastic.elastic_job import ElasticJob
from tests.distribute.strategies.cpus import session
from tests.distribute.strategies.workers_of_one_process import Worker, at_once, joined_workers

Dataset = tf.data.Dataset
RECORDS, BATCH = 40, 7
EPOCHS = ((3, 3), (2, 5), (4, 4))
"""The size of each group, and its number of steps."""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Five files, one after the other with the numbers of all records."""
    paths = [tmp_path / f"{i}.txt" for i in range(5)]
    for path, part in zip(paths, np.split(np.arange(RECORDS), 5), strict=True):
        path.write_text("".join(f"{number}\n" for number in part))
    return [str(path) for path in paths]


def job_of(rank: int, size: int, step: int) -> ElasticJob:
    epoch = Epoch(1, rank, ["worker"] * size, ["localhost:1"] * size, step)
    return ElasticJob(epoch, Commit(step), None, lambda commit: None, lambda is_committed: None)


def steps_of(size: int, first: int, count: int, dataset: Callable[[], Any]) -> list[list[int]]:
    """The records of ``count`` steps of a group of ``size``, from step ``first`` on."""

    def work(joined: JoinedGroup) -> list[Any]:
        (rank,) = joined.group.ranks
        with tf.Graph().as_default():
            strategy = Worker(joined.group)
            batches = job_of(rank, size, first).distribute(strategy, dataset())
            iterator = batches.make_initializable_iterator()
            parts = list(strategy.experimental_local_results(iterator.get_next()))
            with session() as sess:
                sess.run(iterator.initializer)
                return [np.concatenate(sess.run(parts)) for _ in range(count)]

    with joined_workers(size) as joined:
        return [np.concatenate(parts).tolist() for parts in zip(*at_once(work, joined), strict=True)]


def of_rows(files: list[str]) -> Any:
    return Dataset.range(RECORDS).shuffle(RECORDS, seed=1).repeat().batch(BATCH)


def of_partial_batches(files: list[str]) -> Any:
    return Dataset.range(RECORDS).shuffle(RECORDS, seed=1).batch(BATCH).repeat()


def of_files(files: list[str]) -> Any:
    return tf.data.TextLineDataset(files).map(number).shuffle(9, seed=1).repeat().batch(BATCH)


def of_interleaved_files(files: list[str]) -> Any:
    names = Dataset.from_tensor_slices(files)
    lines = names.interleave(tf.data.TextLineDataset, cycle_length=2)
    return lines.map(number).repeat().batch(BATCH)


def of_sampled(files: list[str]) -> Any:
    halves = [Dataset.range(RECORDS // 2).repeat(), Dataset.range(RECORDS // 2, RECORDS).repeat()]
    return tf.data.experimental.sample_from_datasets(halves, seed=1).batch(BATCH)


def number(line: Any) -> Any:
    return tf.strings.to_number(line, tf.int64)


@pytest.mark.parametrize("make", [of_rows, of_partial_batches, of_files, of_interleaved_files, of_sampled])
def test_the_steps_of_all_groups_have_the_records_of_one_worker(make, files: list[str]) -> None:
    found: list[list[int]] = []
    for size, count in EPOCHS:
        found += steps_of(size, len(found), count, lambda: make(files))
    assert found == steps_of(1, 0, len(found), lambda: make(files))


@pytest.mark.parametrize("policy", [AutoShardPolicy.FILE, AutoShardPolicy.OFF])
def test_workers_with_different_data_are_refused(policy) -> None:
    options = tf.distribute.InputOptions(policy)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"got AutoShardPolicy.{policy.name}. Use .*DATA"
    ):
        job_of(0, 2, 0).distribute(None, Dataset.range(4).batch(2), options)


def test_an_order_that_no_seed_decides_is_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"without a seed .*Use shuffle"):
        job_of(0, 2, 0).distribute(None, Dataset.range(4).shuffle(4).batch(2))


@pytest.mark.parametrize(("counted", "words"), [(0, "come again, unless"), (1, None), (2, "are left out.")])
def test_runs_that_count_no_step_or_several_are_warned_of(counted: int, words, caplog: Any) -> None:
    """The third run counts that many; three runs follow it."""
    with tf.Graph().as_default():
        job, strategy = job_of(0, 1, 0), tf.distribute.MirroredStrategy(["/cpu:0"])
        job.distribute(strategy, Dataset.range(4).batch(2))
        step, increment = tf.train.get_or_create_global_step(), tf.placeholder(tf.int64, [])
        count = step.assign_add(increment)
        with job.session() as sess:
            for number in (1, 1, counted, 1, 1, 1):
                sess.run(count, {increment: number})
    warnings = [record.getMessage() for record in caplog.records if "count one step each" in record.message]
    assert len(warnings) == (words is not None)
    assert all(f"batches {words}" in warning for warning in warnings)
