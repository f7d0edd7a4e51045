"""Facts of the system about this process, as samples under Prometheus' standard names."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from flowrt.distribute.observe.metrics import Sample

_PROC = Path("/proc/self")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def process_samples() -> Iterator[Sample]:
    """The samples of now; only those that need no /proc where there is none."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield Sample("process_cpu_seconds_total", usage.ru_utime + usage.ru_stime)
    yield Sample("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        fields = (_PROC / "stat").read_text().rpartition(") ")[2].split()
        resident = int((_PROC / "statm").read_text().split()[1]) * _PAGE_BYTES
        num_open = len(os.listdir(_PROC / "fd"))
    except OSError:
        return
    num_threads, since_boot = int(fields[17]), int(fields[19]) / _TICKS  # proc(5): fields 20 and 22
    yield Sample("process_resident_memory_bytes", resident)
    yield Sample("process_open_fds", num_open)
    yield Sample("process_threads", num_threads)
    yield Sample(
        "process_start_time_seconds", time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    )
