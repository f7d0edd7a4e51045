"""Search of meshes, schedules and sharding on machines that are described by formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.pipeline.replay import replay
from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.times import Times
from flowrt.plan.choice import Choice
from flowrt.plan.model import Model, Stage, Took
from flowrt.plan.stage_search import Shared, choices, describe, estimate, search

SAMPLES = 32


class Machine:
    """``devices`` on hosts of 4; a byte takes ``byte_s``, and nothing else takes time."""

    def __init__(self, devices: int, memory: int = 10**9, byte_s: float = 0.0) -> None:
        self.devices, self.devices_per_host, self.memory, self._byte_s = devices, 4, memory, byte_s

    def collective(self, kind: str, size: int, stride: int, nbytes: float) -> float:
        return self._byte_s * nbytes * (2 if kind == "all_reduce" else 1) * (size - 1) / size

    def message(self, stride: int, nbytes: float) -> float:
        return self._byte_s * nbytes


def model(stages: int) -> Model:
    """64 equal layers. Of a sample each takes 1 s forward and 2 backward."""
    if stages > 64:
        raise InvalidArgumentError("too few operations")
    layers = 64 // stages
    passes = Took(layers * SAMPLES), Took(2 * layers * SAMPLES)
    each = Stage(*passes, layers * SAMPLES * 100, SAMPLES, layers * 1000, layers * 2000)
    return Model((each,) * stages, 1000)


WHOLE = {1: Shared()}
HALVES = {1: Shared(), 2: Shared(computing=0.5, variables=0.5, activations=0.5)}


@pytest.mark.parametrize("devices", [1, 2, 3, 8, 12, 64])
def test_each_choice_has_all_devices_and_equal_parts_of_the_batch(devices: int) -> None:
    found = list(choices(Machine(devices), SAMPLES, HALVES))
    assert len(set(found)) == len(found)
    for choice in found:
        assert choice.devices == devices
        assert SAMPLES % (choice.dp * choice.micro_batches) == 0
        assert choice.sharding == 0 or choice.pp == 1


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
@pytest.mark.parametrize(("pp", "count"), [(2, 4), (4, 8), (4, 16)])
def test_equal_stages_take_as_long_as_in_the_exact_replay(
    schedule: str, chunks: int, pp: int, count: int
) -> None:
    choice = Choice(pp=pp, micro_batches=count, schedule=schedule, chunks=chunks)
    found = estimate(choice, model(pp * chunks), Shared(), Machine(pp), SAMPLES)
    per_device = 64 / pp * SAMPLES / count
    played = replay(order(schedule, pp, count, chunks), Times(per_device, per_device, per_device))
    assert found.seconds == pytest.approx(float(played.makespan))


def test_fewer_bytes_of_a_device_need_more_sharding() -> None:
    by_sharding = [
        estimate(Choice(dp=4, sharding=s), model(1), Shared(), Machine(4), SAMPLES) for s in range(4)
    ]
    sizes = [each.nbytes for each in by_sharding]
    assert sizes == sorted(sizes, reverse=True)
    variables, states = 64_000, 128_000
    kept = 64 * 100 * SAMPLES // 4
    assert sizes[:3] == [2 * variables + states + kept, 2 * variables + states // 4 + kept,
                         variables + (variables + states) // 4 + kept]  # fmt: skip


def test_gradients_of_turns_are_added_up_whole() -> None:
    """And what is gathered for the first turn stays for the others."""
    sizes = [
        estimate(Choice(dp=4, sharding=s, micro_batches=2), model(1), Shared(), Machine(4), SAMPLES).nbytes
        for s in range(4)
    ]
    variables, states, kept = 64_000, 128_000, 64 * 100 * SAMPLES // 8
    part = (variables + states) // 4
    assert sizes == [2 * variables + states + kept, 2 * variables + states // 4 + kept,
                     2 * variables + states // 4 + kept, 3 * variables + part + kept]  # fmt: skip


@pytest.mark.parametrize(("schedule", "whole"), [("1f1b", 1), ("zb_h1", 4)])
def test_what_is_computed_again_stays_until_the_gradients_of_weights(schedule: str, whole: int) -> None:
    choice = Choice(pp=4, micro_batches=8, schedule=schedule, remat=True)
    found = estimate(choice, model(4), Shared(), Machine(4), SAMPLES)
    samples, variables, states = SAMPLES // 8, 16_000, 32_000
    assert found.nbytes == 2 * variables + states + 4 * samples + whole * 16 * samples * 100


def test_where_bytes_are_dear_devices_do_not_share_the_batch() -> None:
    cheap = search(Machine(4), SAMPLES, WHOLE, model).fitting[0].choice
    assert cheap.dp == 4
    dear = search(Machine(4, byte_s=1.0), SAMPLES, WHOLE, model).fitting[0].choice
    assert dear.pp == 4
    assert dear.dp == 1


def test_what_is_given_stays() -> None:
    found = search(Machine(8), SAMPLES, HALVES, model, {"tp": 2, "micro_batches": 4})
    assert {(each.choice.tp, each.choice.micro_batches) for each in found.fitting} == {(2, 4)}


def test_the_order_is_that_of_the_estimates() -> None:
    found = search(Machine(8, memory=100_000, byte_s=1e-3), SAMPLES, HALVES, model)
    seconds = [each.seconds for each in found.fitting]
    assert seconds == sorted(seconds)
    assert all(each.nbytes <= 100_000 for each in found.fitting)
    assert found.too_large
    assert all(each.nbytes > 100_000 for each in found.too_large)
    assert all(math.isclose(sum(each.parts.values()), each.seconds) for each in found.fitting)


def test_a_batch_that_does_not_fit_the_devices() -> None:
    expected = r"expected dp x tp x pp = 7, .*a batch of 32 .*, pp=1; there are no such sizes"
    with pytest.raises(InvalidArgumentError, match=expected):
        search(Machine(7), SAMPLES, WHOLE, model, {"pp": 1})


def test_a_model_that_fits_nowhere() -> None:
    short = r"at most 1,000 bytes of a device; the smallest needs [\d,]+: tp=2 pp=4 .*"
    with pytest.raises(
        ResourceExhaustedError, match=short + r"Devices of .* MiB would do, or about \d+ devices"
    ):
        search(Machine(8, memory=1000), SAMPLES, HALVES, model)


def test_choices_as_text() -> None:
    made: Any = Choice(dp=2, pp=2, micro_batches=4, remat=True)
    assert describe(made) == "dp=2 pp=2 micro_batches=4 schedule=1f1b remat"
    assert describe(Choice(dp=2, sharding=3)) == "dp=2 sharding=3"
    assert describe(Choice()) == "one device"
