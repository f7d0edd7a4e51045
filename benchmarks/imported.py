"""Public ONNX models beside onnxruntime: ``python -m benchmarks.imported [MODEL ...]``.

The two run in turns, each with as many threads as ``--threads`` says; a figure is the lowest of many turns of
several runs. With ``--clock cpu`` it is processor time, for machines that others use too: with one thread.
The models are fetched before, by ``python -m tests.models.fetch``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import flowrt
from flowrt.onnx import load
from tests.models.public import ONNX_MODELS, PublicModel

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}

TURNS, TURN_S = 15, 0.05
"""The number of turns, and seconds of one."""

WARM_S = 1.5
"""Seconds of runs before the first turn: compiled loops come in while a plan is running."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="their names; by default all that are there")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args(arguments)
    ratios = []
    for model in ONNX_MODELS:
        if options.models and str(model) not in options.models:
            continue
        if model.why_absent:
            print(f"{model!s:32} {model.why_absent}")
            continue
        ours, theirs = measured(model, options.threads, CLOCKS[options.clock])
        ratios.append(ours / theirs)
        print(f"{model!s:32} {ours * 1e3:9.3f} ms {theirs * 1e3:9.3f} ms {ours / theirs:6.2f}", flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{'geometric mean, largest':32} {'':25} {mean:6.2f} {max(ratios):6.2f}")


def measured(model: PublicModel, threads: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of a run of ours and of onnxruntime's."""
    feeds = model.feeds(np.random.default_rng(0))
    config = flowrt.ConfigProto(intra_op_parallelism_threads=threads)
    with flowrt.Session(graph=flowrt.Graph(), config=config):  # limits the threads of the process
        ours = load(model.path)
    theirs = _onnxruntime(model, threads)
    sides: list[Callable[[], Any]] = [lambda: ours.run(feeds), lambda: theirs.run(None, feeds)]
    end = time.perf_counter() + WARM_S
    while time.perf_counter() < end:
        for side in sides:
            side()
        time.sleep(0.01)
    lowest = [math.inf, math.inf]
    for _ in range(TURNS):
        for i, side in enumerate(sides):
            lowest[i] = min(lowest[i], _turn(side, clock))
    ours.close()
    return lowest[0], lowest[1]


def _turn(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds of a run, the lowest mean of several in a row."""
    count, start, begin = 0, clock(), time.perf_counter()
    while time.perf_counter() < begin + TURN_S:
        run()
        count += 1
    return (clock() - start) / count


def _onnxruntime(model: PublicModel, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()
