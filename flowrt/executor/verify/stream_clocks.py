"""Vector clocks: the steps of other streams that have ended for certain before a stream's next step.

A stream knows of the steps of another that it has waited for, and of those that the other knew of (C. Fidge,
"Timestamps in message-passing systems that preserve the partial ordering", 1988). See
`flowrt.executor.verify.verify_program`.
"""

from __future__ import annotations

from typing import Any, TypeAlias, final

Moment: TypeAlias = tuple[int, int]
"""A stream, and the number of a step on it."""


@final
class StreamClocks:
    """A clock for each stream: the number of its steps, and of steps of others that it knows to be over."""

    def __init__(self) -> None:
        self._clocks: dict[int, dict[int, int]] = {}
        self._events: dict[Any, dict[int, int]] = {}
        """Clocks of the senders at that time, by the events."""

    def step(self, stream: int) -> Moment:
        """Begin the next step of the stream."""
        clock = self._clock(stream)
        clock[stream] += 1
        return stream, clock[stream]

    def is_over(self, moment: Moment, stream: int) -> bool:
        """Whether the step has ended for certain when the next one of ``stream`` begins."""
        other, number = moment
        return self._clock(stream).get(other, 0) >= number

    def send(self, stream: int, event: Any) -> None:
        self._events[event] = dict(self._clock(stream))

    def is_sent(self, event: Any) -> bool:
        return event in self._events

    def wait(self, stream: int, event: Any) -> None:
        """Wait for an event. One that was not sent changes nothing."""
        self._join(stream, self._events.get(event, {}))

    def wait_for_stream(self, stream: int, other: int) -> None:
        self._join(stream, self._clock(other))

    def steps(self) -> list[Moment]:
        """The last step of each stream."""
        return [(stream, clock[stream]) for stream, clock in self._clocks.items()]

    def _clock(self, stream: int) -> dict[int, int]:
        return self._clocks.setdefault(stream, {stream: 0})

    def _join(self, stream: int, other: dict[int, int]) -> None:
        clock = self._clock(stream)
        clock.update({s: max(number, clock.get(s, 0)) for s, number in other.items()})
