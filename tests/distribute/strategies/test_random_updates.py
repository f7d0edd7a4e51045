"""Random programs with variables in parts do what they do on one device."""

from __future__ import annotations

import functools
import itertools
from itertools import product
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.distribute.strategies.random_updates import RandomUpdates
from tests.distribute.strategies.standing_workers import Answers
from tests.each import daily, nightly
from tests.executor.test_remote_device import config, plug_in

SEEDS = 3
"""Of one test."""


@functools.cache
def on_one_device(seed: int) -> list[Any]:
    program = RandomUpdates(seed)
    with tf.Graph().as_default():
        built = program.build()
        with tf.Session() as session:
            return program.history(session, built)


def check(program: RandomUpdates, strategy: Any, options: Any, seed: int | None = None) -> None:
    """Check all values, and what each device has of the variables."""
    expected = on_one_device(program.seed)
    with tf.Graph().as_default():
        built = program.build(strategy)
        with tf.Session(config=options, seed=seed) as session:
            check_values(program, program.history(session, built))
            shards = session.variable_shards(built.variables)
            values = expected[-len(built.variables) :]
            for v, value, found in zip(built.variables, values, shards, strict=True):
                for shard in found:
                    device, resource = shard.where
                    part = device.to_host(resource.read())
                    np.testing.assert_allclose(part, value[shard.slices], 1e-8, 1e-9, err_msg=v.op.name)


def check_values(program: RandomUpdates, found: list[Any]) -> None:
    for number, (value, wanted) in enumerate(zip(found, on_one_device(program.seed), strict=True)):
        message = f"seed {program.seed}: value {number}"
        np.testing.assert_allclose(value, wanted, 1e-8, 1e-9, err_msg=message)


@pytest.mark.parametrize("first", nightly(range(0, 200 * SEEDS, SEEDS), 1))
def test_on_several_devices(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By threads, and in every second program interleaved at random; every third is verified."""
    for seed in range(first, first + SEEDS):
        monkeypatch.setenv("FLOWRT_CHECK", "1" if seed % 3 == 0 else "")
        program, options = RandomUpdates(seed), tf.ConfigProto(device_count={"CPU": 6})
        check(program, program.strategy(), options, seed if seed % 2 else None)


@pytest.mark.slow
@pytest.mark.parametrize("first", nightly(range(0, 50 * SEEDS, SEEDS), 1))
def test_on_devices_that_are_as_late_as_they_can_be(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tf.GPUOptions.Experimental.VirtualDevices(memory_limit_mb=[8] * 6)
    for seed in range(first, first + SEEDS):
        plug_in(monkeypatch, seed)
        program = RandomUpdates(seed)
        options = config(streams=seed % 4, gpus=1, virtual_devices=[parts])
        check(program, program.strategy([f"/gpu:{i}" for i in range(6)]), options)


def is_for_every_run(count: int, first: int) -> bool:
    return (count, first) == (2, 0)


@pytest.mark.parametrize(("count", "first"), daily(product([2, 4], [0, 40, 80]), is_for_every_run))
def test_in_processes(answers: Answers, count: int, first: int) -> None:
    found = (
        program for seed in itertools.count(first) if (program := RandomUpdates(seed)).num_devices == count
    )
    for program in itertools.islice(found, SEEDS):
        for values in answers(f"updates:{program.seed}", count):
            check_values(program, values)
