"""How long plans of large models take: ``python -m benchmarks.planned``. No such devices are needed.

    search    a GPT of 48 blocks on 64 devices: the best of twenty choices, of which those are lowered and
              played that can be the best
    large     a GPT of 96 blocks on 10,000 devices: one pipeline of 16 stages with 512 micro-batches

Takes these names, or does both. Prints the seconds of the clock and of the processor, and the largest memory
of the process so far, with the bars.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import flowrt
from benchmarks.report import format_seconds
from flowrt.plan.choice import Choice
from flowrt.plan.cluster.cluster_file import Cluster, parse_cluster
from flowrt.plan.planning import Planned
from flowrt.plan.stage_search import REPLAYED, describe
from flowrt.plan.step.recorded import Recorded, RecordingStrategy
from flowrt.plan.task import Task, costs_of
from flowrt.viz.compile_request import compile_request

tf: Any = flowrt

CLUSTER = """
[device.accelerator]
flops.float32 = 156e12
memory = "80GiB"
bandwidth = "2.0TB/s"
efficiency = 0.55
[host]
devices = "8 x accelerator"
link = { latency = "3us", bandwidth = "300GB/s" }
[rack]
hosts = %d
uplink = { latency = "8us", bandwidth = "200GB/s", oversubscription = 1 }
[cluster]
racks = %d
"""

SEARCH_S, LARGE_S, LARGE_GIB = 20.0, 60.0, 4.0


def gpt(blocks: int, batch: int, length: int, width: int, heads: int, words: int) -> Recorded:
    """The training step of a decoder with Adam, recorded for plans."""
    with tf.Graph().as_default() as graph, RecordingStrategy().scope():
        tokens, targets = (tf.placeholder(tf.int32, [batch, length], n) for n in ("tokens", "targets"))
        h = tf.nn.embedding_lookup(_weights("words", words, width), tokens)
        for i in range(blocks):
            with tf.variable_scope(f"block{i}"):
                h = _block(h, length, width, heads)
        logits = tf.matmul(tf.reshape(h, [-1, width]), _weights("logits", width, words))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.reshape(targets, [-1]), logits=logits
        )
        train = tf.train.AdamOptimizer(1e-4).minimize(tf.reduce_mean(losses))
        feeds = dict.fromkeys((tokens, targets), np.zeros((batch, length), np.int32))
        return Recorded(compile_request(graph, [train], feeds))


def _weights(name: str, *shape: int) -> Any:
    return tf.get_variable(name, shape, tf.float32)


def _block(h: Any, length: int, width: int, heads: int) -> Any:
    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, [-1, length, heads, width // heads]), [0, 2, 1, 3])

    x = tf.reshape(_normalised(h, "first"), [-1, width])
    query, key, value = (split(x @ _weights(name, width, width)) for name in ("query", "key", "value"))
    found = tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True)), value)
    joined = tf.reshape(tf.transpose(found, [0, 2, 1, 3]), [-1, width])
    h += tf.reshape(joined @ _weights("output", width, width), [-1, length, width])
    inner = tf.nn.gelu(tf.reshape(_normalised(h, "second"), [-1, width]) @ _weights("up", width, 4 * width))
    return h + tf.reshape(inner @ _weights("down", 4 * width, width), [-1, length, width])


def _normalised(x: Any, name: str) -> Any:
    scale = tf.get_variable(name, [x.shape[-1]], tf.float32, tf.ones_initializer())
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    return centred * tf.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + 1e-5) * scale


def cluster(hosts: int, racks: int) -> Cluster:
    """Racks of ``hosts``, which have eight devices each."""
    return parse_cluster(CLUSTER % (hosts, racks))


def task_of(recorded: Recorded, on: Cluster) -> Task:
    return Task(recorded, on, costs_of(recorded, on))


def search(blocks: int = 48) -> Planned:
    """The best choices for 64 devices."""
    return task_of(gpt(blocks, 512, 1024, 4096, 32, 50_000), cluster(8, 1)).planned()


def large(blocks: int = 96, stages: int = 16, micro_batches: int = 512) -> Planned:
    """One pipeline on 10,000 devices, with one sample of a micro-batch for each."""
    copies = 10_000 // stages
    recorded = gpt(blocks, copies * micro_batches, 1024, 4096, 32, 50_000)
    choice = Choice(dp=copies, pp=stages, micro_batches=micro_batches)
    return task_of(recorded, cluster(125, 10)).given(choice)


def report(name: str, plan: Callable[[], Planned], bar: str) -> None:
    start, started = time.perf_counter(), time.process_time()
    found = plan()
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    best = found.best
    works = sum(len(program.works) for program in best.programs)
    print(
        f"{name}: {format_seconds(wall_s)} ({format_seconds(cpu_s)} of the processor), {memory:.2f} GiB; "
        f"bar: {bar}. {len(found.candidates)} played, {len(found.slower)} slower for certain; "
        f"the best is {describe(best.choice)}: {format_seconds(best.seconds)}, {works:,} works",
        flush=True,
    )


def main(names: Sequence[str]) -> None:
    if "search" in names or not names:
        report("search", search, f"{SEARCH_S:.0f} s for the best of {REPLAYED}")
    if "large" in names or not names:
        report("large", large, f"{LARGE_S:.0f} s and {LARGE_GIB:.0f} GiB")


if __name__ == "__main__":
    main(sys.argv[1:])
