"""Predicted and measured steps of this host: ``python -m benchmarks.predicted``, or with some names only.

For each of `CASES`, a strategy over processes: the host is measured by as many processes, the step is emitted
without them, its programs are run alone, and played together; then the processes train, and the programs are
run alone once more. What was found is kept in ``--out``, and cases can be run in turns; the table has all
that are there.

A core of a machine that others use may take half as long again for the same work a minute later, in its own
processor time. So the *drift* of a run is by how much the programs took longer before the training than
behind it, or the other way round. Of several runs of a case the one with the least drift counts, with what it
predicted and measured: figures of different runs are never put together.

    python -m benchmarks.predicted gpt_dp_2 gpt_tp_2        # these two again
    python -m benchmarks.predicted --show                   # the table of all that are there

As a program, ``python predicted.py SIDE NAME RANK ADDRESSES...``, it is one process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import fully_sharded, layouts, pipelines
from benchmarks.inputs import Gpt
from benchmarks.ranks import outcome_of_first
from benchmarks.timing import Outcome
from flowrt.plan.cluster.host_speed import measure_host
from flowrt.plan.replay.host import HostSpeed, play_on_host
from flowrt.plan.step.device_parts import space_of

WARM_STEPS, STEPS = 16, 26
"""All processes have to make the same steps; flowrt's loops are compiled within the first 2 s."""
STEADY = 0.10
"""A larger drift tells that a run says little: it is in the table, and does not count for the targets."""
MEDIAN_ERROR, WORST_ERROR, SPEARMAN, CHOSEN = 0.10, 0.25, 0.8, 0.10
"""Targets. The last: by how much the choice may take longer than the best."""
SLEEPING_ERROR = 0.05
"""The target of stages that sleep, which share no core and no memory: the worst error."""
MEASURE_S = 6.0
"""For the programs of a case."""


class Case(NamedTuple):
    """A net of `NETS` under a strategy of the ``kind`` on the axes of a mesh, with ``options``."""

    net: str
    kind: str
    axes: tuple[tuple[str, int], ...]
    options: Mapping[str, Any] = {}

    @property
    def processes(self) -> int:
        return int(np.prod([size for _, size in self.axes]))


def _dp(count: int) -> tuple[tuple[str, int], ...]:
    return (("dp", count),)


def _pp(count: int) -> tuple[tuple[str, int], ...]:
    return (("pp", count),)


def _sleeping(schedule: str) -> dict[str, Any]:
    chunks = pipelines.CHUNKS[schedule]
    return {"micro_batches": pipelines.MICRO_BATCHES, "schedule": schedule, "chunks": chunks}


CASES = {
    "mlp_dp_2": Case("mlp", "layouts", _dp(2), {"batch": "dp"}),
    "mlp_stage3_2": Case("mlp", "sharded", _dp(2), {"stage": 3}),
    "mlp_stage2_2": Case("mlp", "sharded", _dp(2), {"stage": 2}),
    "mlp_dp_4": Case("mlp", "layouts", _dp(4), {"batch": "dp"}),
    "gpt_dp_2": Case("gpt", "layouts", _dp(2), {"batch": "dp"}),
    "gpt_tp_2": Case("gpt", "layouts", (("tp", 2),)),
    "gpt_stage3_2": Case("gpt", "sharded", _dp(2), {"stage": 3}),
    "gpt_dp_tp_4": Case("gpt", "layouts", (("dp", 2), ("tp", 2)), {"batch": "dp"}),
    "gpt_gpipe_2": Case("gpt", "pipeline", _pp(2), {"micro_batches": 4, "schedule": "gpipe"}),
    "gpt_1f1b_2": Case("gpt", "pipeline", _pp(2), {"micro_batches": 8, "schedule": "1f1b"}),
    "gpt_1f1b_few_2": Case("gpt", "pipeline", _pp(2), {"micro_batches": 2, "schedule": "1f1b"}),
    "gpt_1f1b_4": Case("gpt", "pipeline", _pp(4), {"micro_batches": 8, "schedule": "1f1b"}),
    "sleep_gpipe_2": Case("sleep", "pipeline", _pp(2), _sleeping("gpipe")),
    "sleep_interleaved_2": Case("sleep", "pipeline", _pp(2), _sleeping("interleaved")),
    "sleep_1f1b_4": Case("sleep", "pipeline", _pp(4), _sleeping("1f1b")),
    "sleep_interleaved_4": Case("sleep", "pipeline", _pp(4), _sleeping("interleaved")),
}

COLUMNS, ROWS = "|".join(layouts.COLUMNS), "|".join(layouts.ROWS)


def strategy_of(tf: Any, case: Case, workers: Mapping[str, Any]) -> Any:
    """The strategy of ``case``, over ``workers`` if there are any."""
    mesh, options = tf.distribute.Mesh(case.axes), {**case.options, **workers}
    if case.kind == "sharded":
        return tf.distribute.FullyShardedStrategy(mesh, units=r"\d", **options)
    if case.kind == "pipeline":
        return tf.distribute.PipelineStrategy(mesh, "pp", **options)
    kind = tf.distribute.MultiWorkerLayoutStrategy if workers else tf.distribute.LayoutStrategy
    strategy = kind(mesh, **options)
    if "tp" in dict(case.axes):
        strategy.variable_layouts({rf"\d\.({COLUMNS})": [None, "tp"], rf"\d\.({ROWS})": ["tp", None]})
    return strategy


def step_of(tf: Any, case: Case, workers: Mapping[str, Any]) -> tuple[list[Any], dict[Any, Any]]:
    """The fetches and feeds of the training step, in the default graph."""
    strategy = strategy_of(tf, case, workers)
    with strategy.scope():
        if case.net == "mlp":
            loss, feed = fully_sharded._flowrt_mlp(tf)
        elif case.net == "sleep":
            loss, feed = pipelines._flowrt_sleep(tf, strategy.schedule)
        else:
            given = tf.placeholder(tf.int64, [Gpt.batch, Gpt.length + 1])
            weights = {name: tf.Variable(value, name=name) for name, value in layouts.parameters().items()}
            loss, feed = layouts.flowrt_loss(tf, weights, given), {given: layouts.tokens()}
        return [tf.train.AdamOptimizer(1e-3).minimize(loss), loss], feed


# --- measured


def train(name: str, rank: int, addresses: Sequence[str]) -> Outcome:
    """The seconds of a step, the median and a low one, at the tenth part of the times in order; and the CPU
    time of this process, which shows what others take of the cores.
    """
    import flowrt as tf

    spec = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=rank)
    if CASES[name].net == "sleep":
        pipelines.end_sleeps_on_time()
    fetches, feed = step_of(tf, CASES[name], {"cluster_resolver": resolver})
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1))
    session.run(tf.global_variables_initializer())
    times, used = [], 0.0
    for number in range(WARM_STEPS + STEPS):
        if number == WARM_STEPS:
            used = time.process_time()
        start = time.perf_counter()
        session.run(fetches, feed)
        times.append(time.perf_counter() - start)
    timed, cpu = sorted(times[WARM_STEPS:]), (time.process_time() - used) / STEPS
    return Outcome({"step": median(timed), "low": timed[len(timed) // 10], "cpu": cpu})


# --- predicted


def predicted_s(name: str, speed: HostSpeed) -> dict[str, float]:
    """The seconds of the step as played on the host, and those of computing of the first process."""
    import flowrt as tf
    from flowrt.plan.step.device_parts import device_parts
    from flowrt.plan.step.emitted import class_program
    from flowrt.plan.step.measure import measure
    from flowrt.viz.compile_request import compile_request

    with tf.Graph().as_default() as graph:
        fetches, feed = step_of(tf, CASES[name], {})
        parts = device_parts(compile_request(graph, fetches, feed).request)
    costs = measure(parts, limit_s=MEASURE_S, processes=CASES[name].processes).costs()
    programs = [class_program(part, costs, frozenset()) for part in parts]
    first = sum(work.seconds for work in programs[0].works)
    played = play_on_host(programs, space_of(parts[0].mesh), speed).makespan
    return {"predicted": played, "first": first}


# --- the table


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of the ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def table_lines(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Markdown, and the figures beside their targets. Predictions are held against low times: operations are
    measured at their best, and others may use the machine; the median shows how much they do.
    """
    yield "| case | predicted | measured, low | median | error | CPU of rank 0: predicted, measured | drift |"
    yield "|---|---|---|---|---|---|---|"
    for name, row in found.items():
        yield (
            f"| {name} | {row['predicted'] * 1e3:.1f} ms | {row['measured'] * 1e3:.1f} ms "
            f"| {row['median'] * 1e3:.1f} ms | {row['predicted'] / row['measured'] - 1:+.0%} "
            f"| {row['first'] * 1e3:.1f}, {row['cpu'] * 1e3:.1f} ms | {row['drift']:.0%} |"
        )
    steady = {name: row for name, row in found.items() if row["drift"] <= STEADY}
    yield ""
    yield f"{len(steady)} of {len(found)} cases have a drift of at most {STEADY:.0%}"
    for name, value, bound in bars(steady) if steady else ():
        is_held = value >= bound if name == "Spearman's correlation" else value <= bound
        yield f"{name}: {value:.3f} (target {bound}): {'holds' if is_held else 'does not hold'}"


def bars(found: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, float, float]]:
    """The figures of all rows, each with its target."""
    by_net = _by_net(found)
    sleeping = by_net.pop("sleep", [])
    rows = [row for same in by_net.values() for row in same]
    if rows:
        errors = _errors(rows)
        yield "median error", median(errors), MEDIAN_ERROR
        yield "worst error", max(errors), WORST_ERROR
        if len(rows) > 2:
            predicted, measured = ([row[key] for row in rows] for key in ("predicted", "measured"))
            yield "Spearman's correlation", spearman(predicted, measured), SPEARMAN
        yield "chosen over best", max(map(_chosen_over_best, by_net.values())), CHOSEN
    if sleeping:
        yield "worst error of stages that sleep", max(_errors(sleeping)), SLEEPING_ERROR


def _errors(rows: Sequence[Mapping[str, float]]) -> list[float]:
    return [abs(row["predicted"] / row["measured"] - 1) for row in rows]


def _by_net(found: Mapping[str, Mapping[str, float]]) -> dict[str, list[Mapping[str, float]]]:
    """The rows of each net: those that train the same."""
    nets: dict[str, list[Mapping[str, float]]] = {}
    for name, row in found.items():
        nets.setdefault(CASES[name].net, []).append(row)
    return nets


def _chosen_over_best(rows: Sequence[Mapping[str, float]]) -> float:
    """By how much the fastest by prediction takes longer than the fastest."""
    chosen = min(rows, key=lambda row: row["predicted"])
    return chosen["measured"] / min(row["measured"] for row in rows) - 1


def run(name: str, out: Path) -> None:
    """Predict and measure a case, and keep what was found, unless an earlier run has a smaller drift."""
    case = CASES[name]
    speed = measure_host(case.processes)
    if case.net == "sleep":
        pipelines.end_sleeps_on_time()
        speed = replace(speed, cores=case.processes)  # which a sleep does not take
    before = predicted_s(name, speed)
    measured = outcome_of_first(__file__, "train", name, case.processes).figures
    row = row_of(before, measured, predicted_s(name, speed))
    keep({**row, "cores": speed.cores, "exchanges": speed.exchanges, "load": os.getloadavg()[0]}, name, out)
    predicted, found = row["predicted"] * 1e3, row["measured"] * 1e3
    print(
        f"{name}: predicted {predicted:.1f} ms, measured {found:.1f} ms, drift {row['drift']:.0%}", flush=True
    )


def row_of(
    before: Mapping[str, float], measured: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    """The figures of a run: predictions are means of those from before and behind the training."""
    low, high = sorted((before["first"], after["first"]))
    means = {key: (before[key] + after[key]) / 2 for key in before}
    times = {"measured": measured["low"], "median": measured["step"], "cpu": measured["cpu"]}
    return {**means, **times, "drift": high / low - 1}


def keep(row: Mapping[str, Any], name: str, out: Path) -> None:
    """Write ``row`` to a file in ``out``, unless what is there has a smaller drift."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    if not path.exists() or row["drift"] < json.loads(path.read_text())["drift"]:
        path.write_text(json.dumps(row, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *CASES], help="cases; all by default")
    parser.add_argument("--out", type=Path, default=Path("runs/predicted"))
    parser.add_argument("--show", action="store_true", help="only the table of what is there")
    arguments = parser.parse_args()
    for name in () if arguments.show else arguments.names or CASES:
        run(name, arguments.out)
    kept = {name: arguments.out / f"{name}.json" for name in CASES}
    found = {name: json.loads(path.read_text()) for name, path in kept.items() if path.exists()}
    print("\n".join(table_lines(found)))
    return 0


SIDES: dict[str, Callable[[str, int, Sequence[str]], Outcome]] = {"train": train}

if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] in SIDES:
        print(json.dumps(SIDES[sys.argv[1]](sys.argv[2], int(sys.argv[3]), sys.argv[4:])), flush=True)
    else:
        sys.exit(main())
