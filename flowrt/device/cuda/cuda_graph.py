"""`capture`: the work of a stream as a CUDA graph, which one call launches again.

What can be captured is work on fixed addresses that asks nothing of the host. What cannot, and makes
`capture` give up: waiting for a stream, host callbacks, reading a value (``float(x)``, ``x.get()``), waiting
for an event that was recorded before, a stream that waited for this one and was not waited for in turn, a
function that raises.

The first run of some work compiles kernels, loads modules and creates cuBLAS's handles, so run the work once
before it is captured. What it allocates on the way is its own until the graph is gone: no piece is used
twice, so a graph of large temporaries needs more memory than the same work from a pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, final

from flowrt.device.cuda.cuda_stream import Capture, CudaStream

LOGGER = logging.getLogger(__name__)


@final
class CudaGraph:
    """Captured work: calling it launches all of it, on the stream that it was captured from.

    It reads and writes the addresses that the work had: inputs are changed by copying into their memory. One
    launch follows the other. The memory that the work allocated goes back when the graph dies, in the order
    of the stream.
    """

    def __init__(self, stream: CudaStream, native: Any, kept: list[Any]) -> None:
        self._stream, self._native, self._kept = stream, native, kept

    def __call__(self) -> None:
        """Launch the work; returns at once. Raises the stream's error, if it failed."""
        self._stream.check()
        self._stream.issue(self._native.launch, self._stream.native)


def capture(stream: CudaStream, run: Callable[[], Any], mode: int) -> CudaGraph | None:
    """What ``run()`` puts on ``stream``, with nothing of it done yet; None if it cannot be captured.

    ``run`` is called inside the stream's `activate` context. Either way the stream is as it was, and a
    function that raises does not fail it: run it again, uncaptured, to see its error. ``mode`` is a
    ``cudaStreamCaptureMode``.
    """
    work = Capture()
    stream.native.begin_capture(mode)
    work.add_stream(stream)
    failure: Exception | None = None
    native = None
    try:
        run()
    except Exception as error:  # noqa: BLE001 - whoever runs it uncaptured is told
        failure = error
    finally:
        try:
            native = stream.native.end_capture()
        except RuntimeError as error:  # the driver gave the capture up: it says so at the end only
            failure = failure or error
        work.end()
    if failure is not None:
        LOGGER.debug("%s: not captured: %r", stream.name, failure)
        return None
    return CudaGraph(stream, native, work.kept)
