"""`FaultyTransport`: a transport that loses, repeats and reorders frames, for tests.

    FLOWRT_FAULTS="RecvTensor:drop_reply=0.1,delay=0.05;*:duplicate=0.01;seed=7"

A rule is ``message:fault=probability``; ``*`` is every message, and ``fault_reply`` applies to its reply,
``<message>Reply``. The faults:

    drop        it is not sent
    duplicate   it is sent twice
    delay       it is held back until up to 8 later frames of its connection are sent
    reorder     it is sent after the next one
    cut         the connection is cut while it is sent, in the middle of a large one

It uses no clock: equal seeds and equal sequences of frames on a connection give equal faults.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from flowrt.errors import InvalidArgumentError, UnavailableError
from flowrt.rendezvous.channel.channel import (
    Bytes,
    Connection,
    Lead,
    Listener,
    Payload,
    Receiver,
    Sent,
    Transport,
)

FAULTS = ("drop", "duplicate", "delay", "reorder", "cut")
MAX_HELD = 8
"""Frames that leave before a delayed one, at most."""

Describe: TypeAlias = Callable[[bytes], str]
"""The name of a frame's message, from its header."""

_log = logging.getLogger(__name__)


class Rule(NamedTuple):
    message: str
    fault: str
    probability: float


class Faults(NamedTuple):
    rules: tuple[Rule, ...]
    seed: int


def parse_faults(text: str) -> Faults:
    """Parse a fault specification. Raises `InvalidArgumentError`, with the expected form."""
    rules: list[Rule] = []
    seed = 0
    message = ""
    for part in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        name, _, setting = part.rpartition(":")
        message = name or message
        key, _, value = setting.partition("=")
        try:
            if key == "seed":
                seed = int(value)
            else:
                rules.append(_rule(message, key, float(value)))
        except ValueError as error:
            raise InvalidArgumentError(
                f"FLOWRT_FAULTS: expected message:fault=probability,...,seed=number; got {part!r}: {error}"
            ) from error
    return Faults(tuple(rules), seed)


def _rule(message: str, key: str, probability: float) -> Rule:
    fault = key.removesuffix("_reply")
    if fault not in FAULTS or not message or not 0 <= probability <= 1:
        raise ValueError(f"the faults are {', '.join(FAULTS)}, with _reply for replies, from 0 to 1")
    return Rule(f"{message}Reply" if fault != key else message, fault, probability)


def with_faults(inner: Transport, describe: Describe, environ: Mapping[str, str] = os.environ) -> Transport:
    """``inner``, with the faults of the variable ``FLOWRT_FAULTS`` where that is set."""
    text = environ.get("FLOWRT_FAULTS")
    if not text:
        return inner
    faults = parse_faults(text)
    _log.warning("FLOWRT_FAULTS=%s: frames will be dropped intentionally, seed=%d", text, faults.seed)
    return FaultyTransport(inner, faults.rules, faults.seed, describe)


@final
class FaultyTransport(Transport):
    """``inner`` with faults in the frames that its connections send."""

    def __init__(self, inner: Transport, rules: Sequence[Rule], seed: int, describe: Describe) -> None:
        self._inner = inner
        self._rules = rules
        self._seeds = random.Random(seed)
        self._describe = describe

    def listen(
        self, address: str, accept: Callable[[Connection], None], is_serving: Callable[[], bool] | None = None
    ) -> Listener:
        return self._inner.listen(address, lambda connection: accept(self._wrap(connection)), is_serving)

    def connect(self, address: str, timeout_s: float) -> Connection:
        return self._wrap(self._inner.connect(address, timeout_s))

    def _wrap(self, connection: Connection) -> Connection:
        return _FaultyConnection(connection, self._rules, self._seeds.getrandbits(64), self._describe)


class _Held(NamedTuple):
    """A frame that leaves after ``frames`` others."""

    frames: int
    leave: Callable[[], None]


@final
class _FaultyConnection(Connection):
    def __init__(self, inner: Connection, rules: Sequence[Rule], seed: int, describe: Describe) -> None:
        self._inner = inner
        self.peer, self.kind = inner.peer, inner.kind
        self._rules = rules
        self._random = random.Random(seed)
        self._describe = describe
        self._held: list[_Held] = []
        self._lock = threading.Lock()

    def send(self, header: bytes, payload: Sequence[Payload] = (), sent: Sent = None) -> None:
        fault, frames = self._draw(self._describe(header))
        match fault:
            case "drop":
                if sent is not None:
                    sent()
            case "delay" | "reorder":
                with self._lock:
                    self._held.append(_Held(frames, lambda: self._inner.send(header, payload, sent)))
            case _:
                if fault == "duplicate":
                    self._inner.send(header, payload)
                self._inner.send(header, payload, sent)
                if fault == "cut":
                    self._inner.abort()
                else:
                    self._leave()

    def start(self, receiver: Receiver) -> None:
        self._inner.start(_Renamed(self, receiver))

    def lead(self) -> Lead | None:
        return self._inner.lead()

    def close(self) -> None:
        while self._held:
            self._leave()
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()

    def _draw(self, message: str) -> tuple[str | None, int]:
        """The fault of a frame, and how many frames it would be held back."""
        with self._lock:
            for rule in self._rules:
                if rule.message in ("*", message) and self._random.random() < rule.probability:
                    most = MAX_HELD if rule.fault == "delay" else 1
                    return rule.fault, self._random.randint(1, most)
        return None, 0

    def _leave(self) -> None:
        """A frame has left: those that waited for it may."""
        with self._lock:
            held = [_Held(frames - 1, leave) for frames, leave in self._held]
            self._held = [entry for entry in held if entry.frames]
        for frames, leave in held:
            if not frames:
                leave()


@final
class _Renamed:
    """Forwards the inner connection's calls to ``receiver``, as from the outer connection."""

    def __init__(self, outer: Connection, receiver: Receiver) -> None:
        self._outer = outer
        self._receiver = receiver

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        self._receiver.on_frame(self._outer, header, payload)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        self._receiver.on_lost(self._outer, error)
