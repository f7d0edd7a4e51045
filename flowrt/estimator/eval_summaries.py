"""Metrics of evaluations as summaries in a directory, and read again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrt.gfile import Glob
from flowrt.protos.event_pb2 import Summary
from flowrt.summary.event_file import read_events
from flowrt.summary.writer import FileWriterCache


def write_eval_metrics(eval_dir: str, results: Mapping[str, Any]) -> None:
    """Write the numbers among ``results`` as summaries of their step, ``global_step``."""
    summary = Summary(
        value=[
            Summary.Value(tag=name, simple_value=float(value))
            for name, value in results.items()
            if name != "global_step" and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu"
        ]
    )
    writer = FileWriterCache.get(eval_dir)
    writer.add_summary(summary, int(results["global_step"]))
    writer.flush()


def read_eval_metrics(eval_dir: Any) -> dict[int, dict[str, float]]:
    """The metrics by name, by the step of the evaluation, in the order of the steps; none without files."""
    found: dict[int, dict[str, float]] = {}
    for path in Glob(os.path.join(eval_dir, "events.out.tfevents.*")):
        for event in read_events(path):
            numbers = {v.tag: v.simple_value for v in event.summary.value if v.HasField("simple_value")}
            if numbers:
                found.setdefault(event.step, {}).update(numbers)
    return dict(sorted(found.items()))
