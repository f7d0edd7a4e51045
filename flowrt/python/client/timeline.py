"""``timeline.Timeline``: a traced step for Chrome's chrome://tracing and Perfetto."""

from __future__ import annotations

import json
from typing import Any, final


@final
class Timeline:
    """``step_stats``: of a `RunMetadata` that a run with ``trace_level=FULL_TRACE`` has filled."""

    def __init__(self, step_stats: Any) -> None:
        self._step_stats = step_stats

    def generate_chrome_trace_format(self, show_dataflow: bool = True, show_memory: bool = False) -> str:
        """JSON text in Chrome's trace format: a process a device, a slice an operation, microseconds.

        The arguments are accepted for TensorFlow's sake: there are no arrows, and no memory.
        """
        events: list[dict[str, Any]] = []
        for pid, device in enumerate(self._step_stats.dev_stats):
            events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": device.device}})
            events += [_slice(pid, node) for node in device.node_stats]
        return json.dumps({"traceEvents": events}, indent=4)


def _slice(pid: int, node: Any) -> dict[str, Any]:
    name, _, call = node.timeline_label.partition(" = ")
    op, _, inputs = call.rstrip(")").partition("(")
    return {
        "ph": "X",
        "cat": "Op",
        "name": op,
        "pid": pid,
        "tid": 0,
        "ts": node.all_start_micros,
        "dur": node.op_end_rel_micros,
        "args": {"name": name, "op": op, "inputs": inputs},
    }
