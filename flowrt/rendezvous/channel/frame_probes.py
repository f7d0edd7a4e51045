"""`Probes`: the thread that has connections ask, now and then, whether what they sent has come.

gRPC may lose a whole message, or wait for the rest of one with a damaged length: see
`flowrt.rendezvous.channel.checked_frames`. If nothing follows, only the sender can notice, by the
acknowledgement that does not come. A socket loses nothing: none is needed there.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol, final

PROBE_S = 2.0
"""Seconds between two calls."""
MAX_SILENT = 8
"""Calls in a row after which an end that does not answer is given up, if nothing else moves either."""


class Probed(Protocol):
    def probe(self) -> None:
        """Ask the other end, if there is something to ask. Never raises."""


@final
class Probes:
    """Has a thread as long as it has connections. Any thread may call anything."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all, as in a forked child: the thread and the connections are the parent's."""
        self._changed = threading.Condition()
        self._probed: list[Probed] = []
        self._thread: threading.Thread | None = None

    def add(self, probed: Probed) -> None:
        """Call ``probed`` every `PROBE_S` seconds, until it is removed."""
        with self._changed:
            self._probed.append(probed)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="flowrt probes", daemon=True)
                self._thread.start()

    def remove(self, probed: Probed) -> None:
        with self._changed:
            self._probed.remove(probed)
            self._changed.notify_all()

    def _run(self) -> None:
        while probed := self._after_pause():
            for each in probed:
                each.probe()

    def _after_pause(self) -> list[Probed]:
        """The connections to call; empty if there are none any more: the thread ends."""
        with self._changed:
            self._changed.wait_for(lambda: not self._probed, PROBE_S)
            if not self._probed:
                self._thread = None
            return list(self._probed)


PROBES = Probes()
os.register_at_fork(after_in_child=PROBES.reset)
