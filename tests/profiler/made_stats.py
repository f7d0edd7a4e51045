"""``StepStats`` that nobody has measured."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from flowrt.protos.step_stats_pb2 import StepStats


def add(stats: Any, device: str, label: str, start: int, end: int, stream: int = 0, nbytes: int = 0) -> Any:
    """One operation; times in nanoseconds."""
    found = [each for each in stats.dev_stats if each.device == device]
    on = found[0] if found else stats.dev_stats.add(device=device)
    entry = on.node_stats.add(node_name=label.partition(" = ")[0], timeline_label=label, thread_id=stream)
    entry.all_start_nanos, entry.op_end_rel_nanos, entry.all_end_rel_nanos = start, end - start, end - start
    if nbytes:
        entry.memory.add(allocator_name="CPU:0", total_bytes=nbytes)
    return entry


DEVICES = [f"/job:worker/replica:0/task:{t}/device:CPU:{c}" for t in range(2) for c in range(2)]
BASE = 1_795_312_004_016_962_297  # the epoch's nanoseconds have more digits than a double


@st.composite
def several_stats(draw: st.DrawFn) -> list[Any]:
    """Steps of devices and streams that do one thing at a time; the steps may run at once."""
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        stats, begin = StepStats(), draw(st.integers(0, 3000))
        for device in draw(st.lists(st.sampled_from(DEVICES), unique=True, max_size=3)):
            for stream in range(draw(st.integers(1, 2))):
                at, made = BASE + begin, [f"x{i}" for i in range(3)]
                for number in range(draw(st.integers(0, 5))):
                    at += draw(st.integers(0, 400))
                    took = draw(st.integers(0, 1500))
                    operand = draw(st.sampled_from(made))
                    made.append(f"op{stream}_{number}")
                    add(stats, device, f"{made[-1]} = Op({operand})", at, at + took, stream, took)
                    at += took
        steps.append(stats)
    return steps
