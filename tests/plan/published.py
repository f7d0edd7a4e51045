"""Published systems as class programs: the machines and settings that are reported, nothing fitted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.times import EQUAL, AnyTimes, Times
from flowrt.plan.replay.played import ClassProgram, Meeting, Work
from flowrt.plan.replay.replay import play
from flowrt.plan.replay.schedule_programs import programs_of_schedule
from tests.plan.programs import ConstantLinks


def makespan(
    name: str, devices: int, micro_batches: int, times: AnyTimes = EQUAL, chunks: int | None = None
) -> float:
    """The step of a schedule whose messages take no time."""
    programs = programs_of_schedule(order(name, devices, micro_batches, chunks), times)
    return play(programs, {}, ConstantLinks()).makespan


def gpipe_speed(devices: int, micro_batches: int) -> float:
    """Throughput of equal stages, of one batch with recomputation, relative to one device."""
    share = 1 / devices / micro_batches
    return 4 / makespan("gpipe", devices, micro_batches, Times(share, 2 * share, share))


# --- torchgpipe's ResNet-101


class Layer(NamedTuple):
    """Seconds of the forward pass of a sample, and the bytes of what comes out, with the shortcut's input."""

    seconds: float
    nbytes: float


P40_FLOPS, P40_BANDWIDTH, PCIE = 11.76e12, 346e9, 12e9
"""A Tesla P40 by its data sheet; what 16 lanes of PCI Express 3 attain of 15.75 GB/s."""


def resnet101() -> list[Layer]:
    """The 304 layers of torchgpipe 0.0.2 for images of 224 x 224. A bottleneck is a copy of the reference to
    its input, which takes no time, three convolutions with batch norms, the sum and a ReLU.
    """
    return [*_stem(), *_bottlenecks(), _pointwise(1, 2048, 7), Layer(0, 4 * 2048), _roofline(4096e3, 0, 4000)]


def _stem() -> Iterator[Layer]:
    yield _convolution(3, 64, 7, 224, 112)
    yield _pointwise(3, 64, 112)
    yield _pointwise(2, 64, 112)
    yield _roofline(0, _size(64, 112) + _size(64, 56), _size(64, 56))


def _bottlenecks() -> Iterator[Layer]:
    width, before = 56, 64
    for planes, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 23, 2), (512, 3, 2)):
        for block in range(blocks):
            after = width // stride if block == 0 else width
            skip, wide = _size(before, width), 4 * planes
            branch = [
                Layer(0, skip),
                _convolution(before, planes, 1, width, width),
                _pointwise(3, planes, width),
                _convolution(planes, planes, 3, width, after),
                _pointwise(3, planes, after),
                _convolution(planes, wide, 1, after, after),
                _pointwise(3, wide, after),
            ]
            yield from (Layer(layer.seconds, layer.nbytes + skip) for layer in branch)
            shortcut = 0.0
            if block == 0:
                shortcut = (
                    _convolution(before, wide, 1, width, after).seconds + _pointwise(3, wide, after).seconds
                )
            yield Layer(shortcut + _pointwise(3, wide, after).seconds, _size(wide, after))
            yield _pointwise(2, wide, after)
            width, before = after, wide


def _convolution(channels: int, out: int, kernel: int, width: int, out_width: int) -> Layer:
    flops = 2 * channels * out * kernel**2 * out_width**2
    return _roofline(flops, _size(channels, width) + _size(out, out_width), _size(out, out_width))


def _pointwise(passes: int, channels: int, width: int) -> Layer:
    """An operation that reads or writes ``passes`` times what comes out; of batch norm three times."""
    return _roofline(0, passes * _size(channels, width), _size(channels, width))


def _size(channels: int, width: int) -> float:
    return 4.0 * channels * width * width


def _roofline(flops: float, moved: float, nbytes: float) -> Layer:
    return Layer(max(flops / P40_FLOPS, moved / P40_BANDWIDTH), nbytes)


class Setting(NamedTuple):
    """A run of torchgpipe 0.0.2 (examples/resnet101_performance_benchmark): layers of each stage."""

    batch: int
    chunks: int
    balance: tuple[int, ...]


TORCHGPIPE = {
    1: Setting(128, 1, (304,)),
    2: Setting(256, 16, (115, 189)),
    4: Setting(1024, 64, (39, 78, 97, 90)),
    8: Setting(1792, 64, (22, 18, 27, 36, 36, 54, 54, 57)),
}


def torchgpipe_speed(devices: int) -> float:
    """Throughput relative to one device without recomputation. Version 0.0.2 copied between devices on the
    stream that computes, so a copy keeps both devices busy. All micro-batches are recomputed here; it leaves
    the last one out. The rate of 8 devices depends on the ratio of copies to computing: 3.3 here, 3.6 if
    computing is as slow as reported for one device (100.5 samples a second, 135.7 by the data sheet).
    """
    batch, chunks, balance = TORCHGPIPE[devices]
    layers, samples = resnet101(), batch / chunks
    bounds = [sum(balance[:stage]) for stage in range(devices + 1)]
    computing = [samples * sum(layer.seconds for layer in layers[a:b]) for a, b in pairwise(bounds)]
    cuts = [0.0, *(samples * layers[b - 1].nbytes / PCIE for b in bounds[1:-1]), 0.0]
    times = [
        Times(seconds + before + after, 3 * seconds + before + after, 0)
        for seconds, before, after in zip(computing, cuts[:-1], cuts[1:], strict=True)
    ]
    alone = 3 * batch * sum(layer.seconds for layer in layers)
    return alone / makespan("gpipe", devices, chunks, times)


# --- fully sharded GPT-175B


def fully_sharded_gpt(has_prefetch: bool, batch: int, flops: float) -> float:
    """Seconds of a step of 96 blocks on 128 A100 with recomputation, hosts of 8 with 2 Tbit/s. Gathers and
    scatters have one stream. Without prefetching, the backward pass asks for a block's parameters after the
    gradients of the block before have been given to the same stream.
    """
    blocks, width, length, devices = 96, 12_288, 2_048, 128
    nbytes = 2 * 12 * width**2
    computing = 96 * batch * length * width**2 * (1 + length / 6 / width) / flops
    seconds = nbytes * (devices - 1) / devices / (2e12 / 8)
    gather, scatter = (Meeting(kind, ("dp",), nbytes) for kind in ("all_gather", "reduce_scatter"))
    works: list[Work] = []

    def add(name: str, seconds: float = 0.0, after: Sequence[int] = (), meets: Meeting | None = None) -> int:
        works.append(Work(name, seconds, tuple(after), meets))
        return len(works) - 1

    forward: list[int] = []
    for block in range(blocks):  # of two blocks, parameters are there at a time
        gathered = add(f"gather {block}", after=forward[-2:-1], meets=gather)
        forward.append(add(f"forward {block}", computing / 4, [gathered]))
    backward: list[int] = [forward[-1]]
    gathered = add("gather", meets=gather)
    for block in range(blocks):
        next_gathered = gathered
        if has_prefetch and block + 1 < blocks:
            next_gathered = add("gather", after=backward[-1:], meets=gather)
        backward.append(add("backward", 3 * computing / 4, [gathered]))
        add("scatter", after=backward[-1:], meets=scatter)
        if not has_prefetch and block + 1 < blocks:
            next_gathered = add("gather", after=backward[-1:], meets=gather)
        gathered = next_gathered
    return play([ClassProgram(0, tuple(works))], {"dp": devices}, ConstantLinks(meeting=seconds)).makespan


# --- parameter servers


def harmonic(first: int, last: int) -> float:
    return math.fsum(1 / each for each in range(first, last + 1))
