"""`StepTrace`: a task's record of one traced step: its programs' instructions, and its transfers.

A tensor from another task is one ``NodeExecStats`` named ``RecvTensor`` on its receiver's device: from the
request to the arrival of the tensor. The sender has one named ``SendTensor``, at the time when the tensor was
passed to the transport. From both, `flowrt.profiler` derives the wait for the producer and the transfer time.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, final

from flowrt.distribute.observe.flight_recorder import What
from flowrt.executor.observe.recent_steps import MAX_SLICES_A_STREAM
from flowrt.executor.observe.step_stats import StepRecorder, device_stats, set_times
from flowrt.protos.step_stats_pb2 import StepStats
from flowrt.rendezvous.matching.key import ParsedKey, parse_key

LOCALHOST = "/job:localhost/replica:0/task:0"
"""The task in the devices' names of a session without a target."""

RECEIVED, GIVEN = "RecvTensor", "SendTensor"


class _Moment(NamedTuple):
    """``at``: nanoseconds since the epoch."""

    at: int
    what: What
    key: str
    nbytes: int


@final
class StepTrace:
    """Thread-safe. ``is_for_client``: whether it is a part of the step's answer. ``shift_ns``: offset of the
    client's clock. ``local_task``: the task in the process of which a session without a target runs the step.
    """

    def __init__(self, is_for_client: bool, local_task: str = "") -> None:
        self.is_for_client, self._local_task = is_for_client, local_task
        self.recorder = StepRecorder(None if is_for_client else MAX_SLICES_A_STREAM)
        self.shift_ns = 0
        self._moments: list[_Moment] = []

    def note(self, what: What, key: str, value: Any = None) -> None:
        """Record that ``what`` (asked, sent or arrived) happened now to the tensor of ``key``."""
        self._moments.append(_Moment(time.time_ns(), what, key, getattr(value, "nbytes", 0)))

    def encode(self, shift_ns: int) -> bytes:
        """An encoded ``StepStats``, by a clock with the offset ``shift_ns``."""
        stats = StepStats()
        self.recorder.fill(stats, shift_ns)
        asked: dict[str, int] = {}
        for moment in list(self._moments):
            at = moment.at + shift_ns
            match moment.what:
                case What.ASKED:
                    asked[moment.key] = at
                case What.ARRIVED:
                    key = parse_key(moment.key)
                    _add(stats, RECEIVED, key.dst_device, key, moment.nbytes, asked.get(moment.key, at), at)
                case What.SENT:
                    key = parse_key(moment.key)
                    _add(stats, GIVEN, key.src_device, key, moment.nbytes, at, at)
        if self._local_task:
            for device in stats.dev_stats:
                device.device = device.device.replace(LOCALHOST, self._local_task)
        return stats.SerializeToString()


def _add(stats: Any, name: str, device: str, key: ParsedKey, nbytes: int, start: int, end: int) -> None:
    """One transfer, with the label that TensorFlow's timelines have for it."""
    text = f"[{nbytes}B] {key.edge_name} from {key.src_device} to {key.dst_device}"
    entry = device_stats(stats, device).node_stats.add(node_name=name, timeline_label=text)
    set_times(entry, start, end)
    entry.output.add().tensor_description.allocation_description.requested_bytes = nbytes
