"""`capture`: the work of a stream as a CUDA graph, relaunched by one call.

Work on fixed addresses that does not involve the host can be captured. `capture` fails on: waiting for a
stream, host callbacks, reading a value (``float(x)``, ``x.get()``), waiting for an event recorded earlier, a
stream that waited for this one and was not joined, a function that raises.

The first run of some work compiles kernels, loads modules and creates cuBLAS's handles, so run the work once
before it is captured. Memory allocated during capture belongs to the graph: no piece is reused, so a graph of
large temporaries needs more memory than the same work from a pool.
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

    It reads and writes fixed addresses: inputs are changed by copying into their memory. Launches are
    serialized. The memory that the work allocated is freed when the graph is destroyed, in stream order.
    """

    def __init__(self, stream: CudaStream, native: Any, kept: list[Any]) -> None:
        self._stream, self._native, self._kept = stream, native, kept

    def __call__(self) -> None:
        """Launch the work; returns immediately. Raises the stream's error, if it failed."""
        self._stream.check()
        self._stream.issue(self._native.launch, self._stream.native)


def capture(stream: CudaStream, run: Callable[[], Any], mode: int) -> CudaGraph | None:
    """Capture the work of ``run()`` on ``stream`` without executing it; None if it cannot be captured.

    ``run`` is called inside the stream's `activate` context. Either way the stream is unchanged, and an error
    of the function does not fail it: run it again, uncaptured, to see the error. ``mode`` is a
    ``cudaStreamCaptureMode``.
    """
    work = Capture()
    stream.native.begin_capture(mode)
    work.add_stream(stream)
    failure: Exception | None = None
    native = None
    try:
        run()
    except Exception as error:  # noqa: BLE001 - the uncaptured run raises it
        failure = error
    finally:
        try:
            native = stream.native.end_capture()
        except RuntimeError as error:  # the driver invalidated the capture, and reports it only at the end
            failure = failure or error
        work.end()
    if failure is not None:
        LOGGER.debug("%s: not captured: %r", stream.name, failure)
        return None
    return CudaGraph(stream, native, work.kept)
