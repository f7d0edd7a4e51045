"""Rates of each task of a cluster between two readings of its metrics, and the task that the others wait for.

    Reading (before), Reading (now)  --view-->  TaskView...     pure: the caller has the clock and the cluster

A task delays the others by the time that they wait for it, less the time that it waits itself: of a chain of
waiting tasks, only the last is to blame. It is a straggler if that is much, compared with the other tasks of
its job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple, TypeAlias

from flowrt.distribute.observe.metrics import short_task
from flowrt.protos import cluster_pb2 as pb

Key: TypeAlias = tuple[str, str]
"""A sample's name, and its label; "" if it has none. No sample that is read here has two."""

DELAY_SHARE = 0.1
"""Share of the time by which a straggler delays the others, at least."""
DELAY_RATIO = 2.0
"""Least ratio of its delay to the median of the others of its job."""


class Reading(NamedTuple):
    """The metrics of one task at ``seconds`` of its own clock."""

    seconds: float
    values: Mapping[Key, float]
    url: str


@dataclass(frozen=True)
class Memory:
    """Bytes of a device's pool; ``limit`` 0: none."""

    in_use: int
    peak: int
    limit: int


@dataclass(frozen=True)
class TaskView:
    """One task. Rates and shares are those between the readings, None if there was only one. ``step_s`` is
    the mean time of a step, None without a step. ``waits`` has the shares of the time that it waited for each
    other, ``delay`` the share by which it delays them. ``error``: the reason why it does not answer.
    """

    task: str
    state: str
    error: str = ""
    steps_per_s: float | None = None
    failed_per_s: float | None = None
    step_s: float | None = None
    running_steps: int = 0
    oldest_step_s: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)
    collective_share: float | None = None
    sent_bytes_per_s: float | None = None
    received_bytes_per_s: float | None = None
    collective_bytes_per_s: float | None = None
    resident_bytes: int = 0
    cpu_share: float | None = None
    devices: Mapping[str, Memory] = field(default_factory=dict)
    delay: float = 0.0
    is_straggler: bool = False
    metrics_url: str = ""


def read_metrics(metrics: pb.Metrics) -> Reading:
    """A task's answer as a `Reading`."""
    values = {(each.name, "".join(each.labels.values())): each.value for each in metrics.samples}
    return Reading(metrics.seconds, values, metrics.url)


def view(before: Mapping[str, Reading], now: Mapping[str, Reading | str]) -> list[TaskView]:
    """The tasks of ``now``, by name; a text is the reason why one does not answer."""
    views = [
        TaskView(short_task(task), "no answer", error=reading)
        if isinstance(reading, str)
        else _task_view(short_task(task), before.get(task), reading)
        for task, reading in now.items()
    ]
    return _with_stragglers(sorted(views, key=lambda each: _by_number(each.task)))


def _by_number(task: str) -> tuple[str, int]:
    job, _, index = task.rpartition(":")
    return job, int(index) if index.isdigit() else 0


def _task_view(task: str, before: Reading | None, now: Reading) -> TaskView:
    values = now.values
    devices = {
        label: Memory(
            int(value),
            int(values.get(("flowrt_device_memory_peak_bytes", label), 0)),
            int(values.get(("flowrt_device_memory_limit_bytes", label), 0)),
        )
        for (name, label), value in values.items()
        if name == "flowrt_device_memory_bytes"
    }
    is_draining = values.get(("flowrt_draining", ""), 0)
    found = TaskView(
        task,
        "draining" if is_draining else "ok",
        running_steps=int(values.get(("flowrt_running_steps", ""), 0)),
        oldest_step_s=values.get(("flowrt_oldest_step_seconds", ""), 0.0),
        resident_bytes=int(values.get(("process_resident_memory_bytes", ""), 0)),
        devices=devices,
        metrics_url=now.url,
    )
    if before is None or now.seconds <= before.seconds:  # it was restarted
        return found
    return _with_rates(found, before, now)


def _with_rates(found: TaskView, before: Reading, now: Reading) -> TaskView:
    seconds = now.seconds - before.seconds

    def grown(key: Key) -> float:
        return now.values.get(key, 0.0) - before.values.get(key, 0.0)

    def rate(name: str) -> float:
        """The sum over all labels."""
        return sum(grown(key) for key in now.values if key[0] == name) / seconds

    steps = grown(("flowrt_step_seconds_count", ""))
    waits = {
        peer: grown((name, peer)) / seconds
        for name, peer in now.values
        if name == "flowrt_wait_seconds_total"
    }
    return replace(
        found,
        steps_per_s=steps / seconds,
        failed_per_s=grown(("flowrt_steps_total", "failed")) / seconds,
        step_s=grown(("flowrt_step_seconds_sum", "")) / steps if steps else None,
        waits={peer: share for peer, share in waits.items() if share > 0},
        collective_share=rate("flowrt_collective_seconds_total"),
        sent_bytes_per_s=rate("flowrt_sent_bytes_total"),
        received_bytes_per_s=rate("flowrt_received_bytes_total"),
        collective_bytes_per_s=rate("flowrt_collective_bytes_total"),
        cpu_share=rate("process_cpu_seconds_total"),
    )


# --- stragglers


def _with_stragglers(views: Sequence[TaskView]) -> list[TaskView]:
    in_collectives = [v for v in views if v.collective_share and v.collective_bytes_per_s is not None]
    delays = {each.task: max(_tensor_delay(each, views), _rank_delay(each, in_collectives)) for each in views}
    return [
        replace(
            each,
            delay=delays[each.task],
            is_straggler=_straggles(delays[each.task], [delays[v.task] for v in views if _are_kin(v, each)]),
        )
        for each in views
    ]


def _are_kin(one: TaskView, other: TaskView) -> bool:
    """Whether both are answering tasks of one job, and not the same."""
    job = one.task.partition(":")[0]
    return one is not other and not one.error and other.task.startswith(f"{job}:")


def _tensor_delay(each: TaskView, views: Iterable[TaskView]) -> float:
    """The share of the time that others wait for its tensors, while it waits for nobody's."""
    waited_for = max((other.waits.get(each.task, 0.0) for other in views if other is not each), default=0.0)
    return max(0.0, waited_for - max(each.waits.values(), default=0.0))


def _rank_delay(each: TaskView, ranks: Sequence[TaskView]) -> float:
    """The time that it spends less than the others in collectives: they wait there for the last rank."""
    others = [rank.collective_share or 0.0 for rank in ranks if rank is not each]
    if each not in ranks or not others:
        return 0.0
    return max(0.0, median(others) - (each.collective_share or 0.0))


def _straggles(delay: float, others: Sequence[float]) -> bool:
    return bool(others) and delay >= DELAY_SHARE and delay >= DELAY_RATIO * median(others)
