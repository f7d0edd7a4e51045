"""Public models beside the library that they are for: ``python -m benchmarks.imported [MODEL ...]``.

ONNX models run beside onnxruntime. With ``--peers INTERPRETER``, of an environment with TensorFlow, graphs of
TensorFlow.js run beside TensorFlow instead, in a session, and SavedModels by their default signature.

The two run in turns, each with as many threads as ``--threads`` says; a figure is the lowest of many turns of
several runs. With ``--clock cpu`` it is processor time, for machines that others use too: with one thread.
The models are fetched before, by ``python -m tests.models.fetch``.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import flowrt
from flowrt.onnx import load
from tests.models.fetch import folder_of
from tests.models.public import ONNX_MODELS, PublicModel
from tests.models.tensorflow_cases import (
    GRAPHS,
    ROOT,
    SAVED_MODELS,
    pictures,
    write_case,
    write_saved_model_case,
)

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}

TURNS, TURN_S = 15, 0.05
"""The number of turns, and seconds of one."""

PAUSE_S = 0.05
"""Seconds after a turn: onnxruntime's threads spin for 30 ms after a run, on the cores of the next turn."""

WARM_S = 1.5
"""Seconds of runs before the first turn: compiled loops come in while a plan is running."""


Turn: TypeAlias = Callable[[float], float]
"""A function that runs a model for some seconds and returns the seconds of a run."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="their names; by default all that are there")
    parser.add_argument("--peers", metavar="INTERPRETER")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args(arguments)
    ratios = []
    for name in map(str, (*GRAPHS, *SAVED_MODELS) if options.peers else ONNX_MODELS):
        if options.models and name not in options.models:
            continue
        with _sides(name, options) as sides:
            if isinstance(sides, str):
                print(f"{name:32} {sides}")
                continue
            ours, theirs = measured(sides)
        ratios.append(ours / theirs)
        print(f"{name:32} {ours * 1e3:9.3f} ms {theirs * 1e3:9.3f} ms {ours / theirs:6.2f}", flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{'geometric mean, largest':32} {'':25} {mean:6.2f} {max(ratios):6.2f}")


def measured(sides: Sequence[Turn]) -> list[float]:
    """Seconds of a run of each side."""
    for _ in range(round(WARM_S / (2 * TURN_S))):
        for side in sides:
            side(TURN_S)
    lowest = [math.inf for _ in sides]
    for _ in range(TURNS):
        for i, side in enumerate(sides):
            lowest[i] = min(lowest[i], side(TURN_S))
            time.sleep(PAUSE_S)
    return lowest


@contextmanager
def _sides(name: str, options: argparse.Namespace) -> Iterator[list[Turn] | str]:
    """Our side and theirs, or why there are none."""
    config = flowrt.ConfigProto(intra_op_parallelism_threads=options.threads)
    with flowrt.Session(graph=flowrt.Graph(), config=config):
        pass  # limits the threads of the process
    clock = CLOCKS[options.clock]
    if options.peers:
        package = SAVED_MODELS[name].package if name in SAVED_MODELS else "@vladmandic/human"
        if not folder_of(package).is_dir():
            yield f"{package} is not there: python -m tests.models.fetch"
            return
        with tempfile.TemporaryDirectory() as folder:
            run = (_saved_model if name in SAVED_MODELS else _graph)(name, Path(folder, name))
            with _tensorflow(options, folder, name) as theirs:
                yield [_turn(run, clock), theirs]
        return
    (model,) = [each for each in ONNX_MODELS if str(each) == name]
    if model.why_absent:
        yield model.why_absent
        return
    feeds, ours = model.feeds(np.random.default_rng(0)), load(model.path)
    other = _onnxruntime(model, options.threads)
    yield [_turn(lambda: ours.run(feeds), clock), _turn(lambda: other.run(None, feeds), clock)]
    ours.close()


def _graph(name: str, case: Path) -> Callable[[], Any]:
    """Runs a graph of TensorFlow.js, of which ``case`` is written for TensorFlow."""
    path = folder_of("@vladmandic/human") / f"{name}.json"
    graph = flowrt.saved_model.load_graph_model(path)
    feeds = pictures(graph.inputs)
    write_case(path, case, graph, feeds, graph.run(feeds))
    return lambda: graph.run(feeds)


def _saved_model(name: str, case: Path) -> Callable[[], Any]:
    """The same of a SavedModel."""
    model = SAVED_MODELS[name]
    signature = flowrt.saved_model.load_model(str(model.path)).signatures["serving_default"]
    write_saved_model_case(name, case)
    return lambda: signature(**model.feeds)


def _turn(run: Callable[[], Any], clock: Callable[[], float]) -> Turn:
    """Runs, of which the seconds of one are the mean of several in a row."""

    def turn(seconds: float) -> float:
        count, start, begin = 0, clock(), time.perf_counter()
        while not count or time.perf_counter() < begin + seconds:
            run()
            count += 1
        return (clock() - start) / count

    return turn


@contextmanager
def _tensorflow(options: argparse.Namespace, folder: str, name: str) -> Iterator[Turn]:
    module = "tests.models.run_tensorflow"
    command = [options.peers, "-m", module, "--turns", str(options.threads), folder, name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, cwd=ROOT, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, answers = process.stdin, process.stdout

        def turn(seconds: float) -> float:
            print(seconds, file=to, flush=True)
            return float(answers.readline().split()[list(CLOCKS).index(options.clock)])

        yield turn
        to.close()


def _onnxruntime(model: PublicModel, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()
