"""`CoalescedAnswers`: small tensors sent by one thread to a task at about the same time, as one message.

    begin() --> the thread runs: add(peer, ...), add(peer, ...), ... --> end(): one message per peer

Sending a message takes longer than filling it: ten scalars in one take a fifth of the time. The first tensor
for a peer is sent at once, since it may be the only one; later ones are held back until `end` (Nagle,
"Congestion Control in IP/TCP Internetworks", RFC 896, 1984). So `begin` is for code that ends soon: look-ups
of requested tensors, and short parts (`flowrt.distribute.worker.part`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

import numpy as np

from flowrt.distribute.wire.peer import Peer, TensorAnswer

SMALL_BYTES = 1 << 10
"""Maximum size of a coalesced tensor."""

MAX_TOGETHER = 50
"""Maximum number of tensors in a message. It is then small enough to be kept until acknowledged
(`ResponseCache`).
"""


class _Here(threading.local):
    """Tensors held back by a thread, by peer; None between `end` and `begin`."""

    answers: dict[Peer, list[TensorAnswer]] | None = None


@final
class CoalescedAnswers:
    """Thread-safe; tensors added by a thread wait for that thread only."""

    def __init__(self) -> None:
        self._here = _Here()

    def begin(self) -> bool:
        """Hold back tensors added by this thread until it calls `end`; False if already active."""
        if self._here.answers is not None:
            return False
        self._here.answers = {}
        return True

    def add(self, peer: Peer, request_id: int, value: Any, sent: Callable[[], None]) -> bool:
        """Answer a request for a tensor at the `end`, and call ``sent`` then. False: it must be answered at
        once, separately.
        """
        answers = self._here.answers
        if answers is None:
            return False
        together = answers.get(peer)
        if together is None:
            answers[peer] = []
            return False
        if not _is_small(value):
            return False
        together.append(TensorAnswer(request_id, value, sent))
        if len(together) == MAX_TOGETHER:
            answers[peer] = []
            peer.answer_together(together)
        return True

    def end(self) -> None:
        """Send the tensors held back since `begin`."""
        answers, self._here.answers = self._here.answers, None
        for peer, together in (answers or {}).items():
            if together:
                peer.answer_together(together)


def _is_small(value: Any) -> bool:
    is_number = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OSU"
    return is_number and value.nbytes <= SMALL_BYTES
