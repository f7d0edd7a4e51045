"""Predicted and measured steps of this host: ``python -m benchmarks.predicted``, or with some names only.

For each of `CASES`, a strategy over processes: the step is emitted without them, its operations are measured
alone, the links of as many processes are measured, and the program is played; then the processes train. What
was found is kept in ``--out``, so cases can be run in turns; the table has all that are there.

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
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import fully_sharded, layouts
from benchmarks.inputs import Gpt
from benchmarks.ranks import outcome_of_first
from benchmarks.timing import Outcome

WARM_STEPS, STEPS = 20, 30
"""All processes have to make the same steps; flowrt's loops are compiled within the first 2 s."""
SIZES = (64, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Bytes of the arrays that measure links."""
ROUNDS = 12
MEDIAN_ERROR, WORST_ERROR, SPEARMAN = 0.10, 0.25, 0.8
"""Targets."""


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
    with strategy_of(tf, case, workers).scope():
        if case.net == "mlp":
            loss, feed = fully_sharded._flowrt_mlp(tf)
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


# --- links


def probe(name: str, rank: int, addresses: Sequence[str]) -> Outcome:
    """Seconds, as latency and seconds per byte of the whole, of collectives and of a message."""
    from flowrt.distribute.collectives import Group, join
    from flowrt.distribute.collectives.probe import fit_line

    del name
    count = len(addresses)
    figures = {}
    with join(Group("links", count, (rank,)), addresses) as joined:
        (member,) = joined.members
        for kind in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast"):
            seconds = {}
            for nbytes in SIZES:
                times = [_collective_s(member, kind, nbytes // 4, count, i, rank) for i in range(ROUNDS)]
                seconds[nbytes] = median(times[ROUNDS // 3 :])
            figures[kind] = tuple(fit_line(seconds).link)
        seconds = {}
        for nbytes in SIZES:
            times = [_round_trip_s(member, nbytes, i, rank) for i in range(ROUNDS)]
            seconds[nbytes] = median(times[ROUNDS // 3 :]) / 2
        figures["message"] = tuple(fit_line(seconds).link)
        _collective_s(member, "AllReduce", 1, count, -1, rank)  # all have finished
    return Outcome(figures)


def _collective_s(member: Any, kind: str, size: int, count: int, number: int, rank: int) -> float:
    given = np.ones(size // count if kind == "AllGather" else size, np.float32)
    shape = (
        size // count * count if kind == "AllGather" else size // count if kind == "ReduceScatter" else size,
    )
    attrs = {
        "reduction": "sum",
        "root": 0,
        "axis": 0,
        "dtype": np.dtype(np.float32),
        "shape": shape,
        "plan": "",
    }
    edge = f"{kind} {size} {number}"
    array = None if kind == "Broadcast" and rank else given
    start = time.perf_counter()
    member.start(edge, kind, array, attrs)
    member.wait(edge)
    return time.perf_counter() - start


def _round_trip_s(member: Any, nbytes: int, number: int, rank: int) -> float:
    """A message from rank 0 to rank 1 and back, while the others wait."""
    array, start = np.ones(nbytes, np.uint8), time.perf_counter()
    for sender in (0, 1):
        if rank == sender:
            member.send_tagged(1 - sender, f"{nbytes} {number} {sender}", array)
        elif rank == 1 - sender:
            member.receive_tagged(sender, f"{nbytes} {number} {sender}")
    return time.perf_counter() - start


COLLECTIVES = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast", "all_to_all": "AllGather",
}  # fmt: skip
"""What was measured for each kind of meeting."""


class HostLinks:
    """Seconds of meetings and messages between the processes of this host, as measured."""

    def __init__(self, figures: Mapping[str, Sequence[float]]) -> None:
        self._figures = figures

    def meeting(self, position: int, meeting: Any) -> float:
        del position
        latency_s, per_byte = self._figures[COLLECTIVES[meeting.kind]]
        return latency_s + per_byte * meeting.nbytes

    def message(self, position: int, message: Any) -> float:
        del position
        latency_s, per_byte = self._figures["message"]
        return latency_s + per_byte * message.nbytes


# --- predicted


def predicted_s(name: str, links: HostLinks) -> dict[str, float]:
    """The seconds of the step as played, those of computing of the first process and of all together, and the
    prediction: the processes cannot compute faster than all cores.
    """
    import flowrt as tf
    from flowrt.plan.step.device_parts import device_parts
    from flowrt.plan.step.emitted import class_program
    from flowrt.plan.step.measure import load_table, measure, save_table, table_path
    from flowrt.viz.compile_request import compile_request

    with tf.Graph().as_default() as graph:
        fetches, feed = step_of(tf, CASES[name], {})
        parts = device_parts(compile_request(graph, fetches, feed).request)
    path = table_path()
    table = measure(parts, load_table(path))
    save_table(table, path)
    costs = table.costs()
    programs = [class_program(part, costs, frozenset()) for part in parts]
    lanes = CASES[name].processes // len(programs)
    computing = lanes * sum(work.seconds for program in programs for work in program.works)
    cores = len(os.sched_getaffinity(0))
    played = played_s(programs, links)
    first = sum(work.seconds for work in programs[0].works)
    return {
        "played": played, "computing": computing, "first": first, "predicted": max(played, computing / cores)
    }  # fmt: skip


def played_s(programs: Sequence[Any], links: HostLinks) -> float:
    """The makespan of class programs of equal devices: each computes and communicates in order."""
    from flowrt.plan.replay.played import Lane, Meeting, Message

    ends: list[list[float]] = [[] for _ in programs]
    free = [dict.fromkeys(Lane, 0.0) for _ in programs]
    sent: dict[tuple[str, int], float] = {}
    moved = True
    while moved:
        moved = False
        for at, program in enumerate(programs):
            for work in program.works[len(ends[at]) :]:
                start = max([free[at][work.lane], *[ends[at][i] for i in work.after]])
                end = start + work.seconds
                if isinstance(work.meets, Meeting):
                    end = start + links.meeting(at, work.meets)
                elif isinstance(work.meets, Message) and work.meets.is_sent:
                    end = start + links.message(at, work.meets)
                    sent[work.meets.tag, work.meets.position] = end
                elif isinstance(work.meets, Message):
                    key = work.meets.tag, at
                    if key not in sent:
                        break
                    end = max(start, sent[key])
                free[at][work.lane] = end
                ends[at].append(end)
                moved = True
    stuck = [
        program.position
        for program, done in zip(programs, ends, strict=True)
        if len(done) < len(program.works)
    ]
    if stuck:
        raise RuntimeError(f"positions {stuck} wait for messages that nobody sends")
    return max(end for each in ends for end in each)


# --- the table


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of the ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def table_lines(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Markdown, and the figures beside their targets. Predictions are held against low times: operations are
    measured at their best, and others may use the machine; the median shows how much they do.
    """
    yield "| case | predicted | measured, low | median | error | CPU of rank 0: predicted, measured |"
    yield "|---|---|---|---|---|---|"
    errors = {}
    for name, row in found.items():
        errors[name] = row["predicted"] / row["measured"] - 1
        yield (
            f"| {name} | {row['predicted'] * 1e3:.1f} ms | {row['measured'] * 1e3:.1f} ms "
            f"| {row['median'] * 1e3:.1f} ms | {errors[name]:+.0%} "
            f"| {row['first'] * 1e3:.1f}, {row['cpu'] * 1e3:.1f} ms |"
        )
    sizes = sorted(map(abs, errors.values()))
    if sizes:
        yield f"\nmedian error {median(sizes):.1%} (target {MEDIAN_ERROR:.0%})"
        yield f"worst error {sizes[-1]:.1%} (target {WORST_ERROR:.0%})"
    if len(sizes) > 2:
        rows = list(found.values())
        correlation = spearman([row["predicted"] for row in rows], [row["measured"] for row in rows])
        yield f"Spearman's correlation {correlation:.2f} (target {SPEARMAN})"


def run(name: str, out: Path) -> None:
    """Predict and measure a case, and keep what was found."""
    links = outcome_of_first(__file__, "links", name, CASES[name].processes).figures
    found = predicted_s(name, HostLinks(links))  # type: ignore[arg-type]
    measured = outcome_of_first(__file__, "train", name, CASES[name].processes).figures
    out.mkdir(parents=True, exist_ok=True)
    row = {**found, "measured": measured["low"], "median": measured["step"], "cpu": measured["cpu"]}
    row["links"] = links
    row["load"] = os.getloadavg()[0]
    (out / f"{name}.json").write_text(json.dumps(row, indent=1))
    print(
        f"{name}: predicted {found['predicted'] * 1e3:.1f} ms, measured {row['measured'] * 1e3:.1f} ms",
        flush=True,
    )


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


SIDES: dict[str, Callable[[str, int, Sequence[str]], Outcome]] = {"train": train, "links": probe}

if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] in SIDES:
        print(json.dumps(SIDES[sys.argv[1]](sys.argv[2], int(sys.argv[3]), sys.argv[4:])), flush=True)
    else:
        sys.exit(main())
