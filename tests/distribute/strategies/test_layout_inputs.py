"""Inputs of a `LayoutStrategy` and parts of its tensors: distributed datasets, `local_shards`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.attributes import LAYOUT
from flowrt.viz.explain_layouts import explain_layouts

CONFIG = tf.ConfigProto(device_count={"CPU": 4})
DATA = np.arange(36.0).reshape(12, 3)


def batches(size: int = 4, drop_remainder: bool = True) -> Any:
    return tf.data.Dataset.from_tensor_slices(DATA).batch(size, drop_remainder)


def strategy_of(axes: Any = (("dp", 2), ("tp", 2))) -> Any:
    return tf.distribute.LayoutStrategy(tf.distribute.Mesh(axes), batch="dp")


WAYS: dict[str, Callable[[Any], Any]] = {
    "iterator": lambda s: s.make_dataset_iterator(batches()),
    "dataset": lambda s: s.experimental_distribute_dataset(batches()).make_initializable_iterator(),
    "input function": lambda s: s.make_input_fn_iterator(lambda context: batches()),
    "from function": lambda s: s.experimental_distribute_datasets_from_function(
        lambda context: batches(context.get_per_replica_batch_size(4))
    ).make_initializable_iterator(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_inside", [True, False])
def test_elements_of_a_distributed_dataset_are_global_batches(way: str, is_inside: bool) -> None:
    with tf.Graph().as_default() as graph:
        strategy = strategy_of()
        if is_inside:
            with strategy.scope():
                iterator = WAYS[way](strategy)
                x = iterator.get_next()
        else:
            iterator = WAYS[way](strategy)
            x = iterator.get_next()
        (element,) = strategy.experimental_local_results(x)
        total = tf.reduce_sum(element, 0)
        (taken,) = [op for op in graph.get_operations() if op.type == "IteratorGetNext"]
        assert taken.node.attrs[LAYOUT] == "[dp]"
        with tf.Session(config=CONFIG) as session:
            session.run(iterator.initializer)
            for batch in DATA.reshape(3, 4, 3):
                np.testing.assert_array_equal(session.run(total), batch.sum(0))
            explained = explain_layouts(session, [total])
    assert explained is not None
    assert "float64[4/dp, 3]" in {t.layout for t in explained.tensors}


def test_a_batch_of_unknown_size_is_whole_and_that_is_said() -> None:
    with tf.Graph().as_default():
        strategy = strategy_of()
        iterator = strategy.make_dataset_iterator(batches(5, drop_remainder=False))
        x = strategy.experimental_local_results(iterator.get_next())[0]
        with tf.Session(config=CONFIG) as session:
            session.run(iterator.initializer)
            total = tf.reduce_sum(x)
            sums = [session.run(total) for _ in range(3)]
            explained = explain_layouts(session, [total])
    assert sums == [DATA[:5].sum(), DATA[5:10].sum(), DATA[10:].sum()]
    assert explained is not None
    (remark,) = explained.remarks
    assert "batch(n, drop_remainder=True) makes the size known" in remark


@pytest.mark.parametrize("size", [4, 6])
def test_a_batch_has_the_size_that_set_shape_says_and_is_cut_after_its_check(size: int) -> None:
    with tf.Graph().as_default():
        strategy = strategy_of()
        iterator = strategy.make_dataset_iterator(batches(drop_remainder=False))
        x = strategy.experimental_local_results(iterator.get_next())[0]
        x.set_shape([size, 3])
        total = tf.reduce_sum(x, 0)
        with tf.Session(config=CONFIG) as session:
            session.run(iterator.initializer)
            explained = explain_layouts(session, [total])
            assert explained is not None
            assert not explained.remarks
            assert f"float64[{size}/dp, 3]" in {t.layout for t in explained.tensors}
            if size == 4:
                np.testing.assert_array_equal(session.run(total), DATA[:4].sum(0))
                return
            with pytest.raises(InvalidArgumentError, match=r"\[6, 3\]; got \[4, 3\]"):
                session.run(total)


def test_nothing_is_said_of_a_batch_that_one_device_has_anyway() -> None:
    with tf.Graph().as_default():
        strategy = tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 1)], ["/cpu:0"]), batch="dp")
        iterator = strategy.make_dataset_iterator(batches(5, drop_remainder=False))
        x = strategy.experimental_local_results(iterator.get_next())[0]
        with tf.Session() as session:
            explained = explain_layouts(session, [tf.reduce_sum(x)])
    assert explained is not None
    assert not explained.remarks


# --- local shards


def assembled(shape: tuple[int, ...], shards: Any, values: Any) -> Any:
    whole = np.full(shape, np.nan)
    for shard, value in zip(shards, values, strict=True):
        assert np.isnan(whole[shard.slices]).all(), "two shards of one element"
        whole[shard.slices] = value
    return whole


@pytest.mark.parametrize("shape", [(4, 6), (5, 3), (1, 2)])
@pytest.mark.parametrize(
    ("layout", "count"), [(["dp", "tp"], 4), ([None, ("dp", "tp")], 4), (["tp", None], 2), ([None, None], 1)]
)
def test_shards_are_the_parts_of_a_tensor(shape: tuple[int, ...], layout: Any, count: int) -> None:
    value = np.random.default_rng(0).standard_normal(shape)
    with tf.Graph().as_default():
        with strategy_of().scope():
            fed = tf.placeholder_with_default(value, shape)
            shards = tf.distribute.local_shards(tf.distribute.relayout(2.0 * fed, layout))
        assert len(shards) <= count
        with tf.Session(config=CONFIG) as session:
            found = session.run([shard.value for shard in shards])
    np.testing.assert_array_equal(assembled(shape, shards, found), 2.0 * value)


def test_shards_of_a_variable_are_those_that_are_stored() -> None:
    with tf.Graph().as_default():
        with strategy_of().scope():
            value = np.arange(8.0).reshape(4, 2)
            w = tf.get_variable("w", initializer=value, layout=[None, None], stored=["dp", "tp"])
        shards = tf.distribute.local_shards(w)
        with tf.Session(config=CONFIG) as session:
            session.run(w.initializer)
            values = [shard.value for shard in shards]
            np.testing.assert_array_equal(assembled((4, 2), shards, session.run(values)), value)
            explained = explain_layouts(session, values)
    assert explained is not None
    assert explained.totals() == {}, "something moved"


def test_a_tensor_without_a_layout_of_its_own_has_no_shards() -> None:
    with tf.Graph().as_default(), strategy_of().scope():
        with pytest.raises(InvalidArgumentError, match="or a result of relayout; got 'zeros'"):
            tf.distribute.local_shards(tf.zeros([2]))
        with pytest.raises(InvalidArgumentError, match="expected a tensor of known shape"):
            tf.distribute.local_shards(tf.placeholder(tf.float32, [None, 2]))
