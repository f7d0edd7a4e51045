"""gRPC's health checking protocol: the methods ``Check`` and ``Watch`` of ``grpc.health.v1.Health``.

    Check(service)  -> SERVING while the task takes work, NOT_SERVING while it drains
    Watch(service)  -> the same, now and after each change, until the caller has had enough

Services are "" and ``flowrt.Transport``; of others Check answers NOT_FOUND and Watch SERVICE_UNKNOWN, as the
protocol says. Orchestrators call it (Kubernetes' ``grpc`` probes, `grpc_health_probe`, load balancers).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, final

from google.protobuf.message import DecodeError

from flowrt.protos import health_pb2 as pb
from flowrt.rendezvous.grpc.grpc_call import Status, load_core

IsServing: TypeAlias = Callable[[], bool]
"""A function: whether the task takes work now."""

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SERVICES = ("", "flowrt.Transport")
MAX_CALLS = 64
"""Limit at any time; further ones are refused."""
REQUEST_S = 10.0
"""Time for the request of a call."""
LOOK_S = 0.5
"""Between two looks of Watch."""

_READ, _WRITE, _FINISH, _END = "read", "write", "finish", "end"


@final
class HealthCall:
    """A call of ``method`` that a listener accepted with ``event``, on the completion queue ``events``. A
    thread of its own serves it; ``release`` is called at its end.
    """

    def __init__(
        self, method: str, event: Any, events: Any, is_serving: IsServing, release: Callable[[], object]
    ) -> None:
        self._core = load_core()
        self._is_watch = method == WATCH
        self._call, self._events = event.call, events
        self._is_serving, self._release = is_serving, release
        self._under_way: set[str] = set()
        self._message: bytes | None = None
        self._thread = threading.Thread(target=self._run, name="grpc health", daemon=True)
        self._begin(_END, self._core.ReceiveCloseOnServerOperation(0))
        begin = self._core.SendInitialMetadataOperation((), 0)
        self._begin(_READ, begin, self._core.ReceiveMessageOperation(0))
        self._thread.start()

    def _run(self) -> None:
        try:
            self._serve()
            while self._under_way:
                self._next(None)
        finally:
            self._events.shutdown()
            self._release()

    def _serve(self) -> None:
        end = time.monotonic() + REQUEST_S
        while _READ in self._under_way and self._next(max(0.0, end - time.monotonic())):
            pass
        if _READ in self._under_way or self._message is None:
            self._finish(Status("INVALID_ARGUMENT", "expected a HealthCheckRequest"))
            return
        try:
            service = pb.HealthCheckRequest.FromString(self._message).service
        except DecodeError:
            self._finish(Status("INVALID_ARGUMENT", "expected a HealthCheckRequest"))
            return
        if self._is_watch:
            self._watch(service)
        elif service not in SERVICES:
            self._finish(Status("NOT_FOUND", f"expected a service of {', '.join(SERVICES[1:])}, or none"))
        else:
            self._finish(Status("OK", ""), self._message_of(self._status(service)))

    def _watch(self, service: str) -> None:
        """Serve until the caller ends it, or the listener."""
        told = None
        while _END in self._under_way:
            status = self._status(service)
            if status != told and _WRITE not in self._under_way:
                told = status
                self._begin(_WRITE, self._message_of(status))
            self._next(LOOK_S)
        self._finish(Status("OK", ""))

    def _status(self, service: str) -> pb.HealthCheckResponse.ServingStatus:
        response = pb.HealthCheckResponse
        if service not in SERVICES:
            return response.SERVICE_UNKNOWN
        return response.SERVING if self._is_serving() else response.NOT_SERVING

    # --- operations of the core

    def _message_of(self, status: pb.HealthCheckResponse.ServingStatus) -> Any:
        message = pb.HealthCheckResponse(status=status).SerializeToString()
        return self._core.SendMessageOperation(message, 0)

    def _finish(self, status: Status, *before: Any) -> None:
        code, details = getattr(self._core.StatusCode, status.code.lower()), status.details.encode()
        self._begin(_FINISH, *before, self._core.SendStatusFromServerOperation((), code, details, 0))

    def _begin(self, tag: str, *operations: Any) -> None:
        self._under_way.add(tag)
        self._call.start_server_batch(operations, tag)

    def _next(self, seconds: float | None) -> bool:
        """Wait so long for the core to have done something. False if it has not."""
        event = self._events.poll(
            None if seconds is None else time.time() + seconds
        )  # gRPC's kind of deadline
        if event.tag is None:
            return False
        self._under_way.discard(event.tag)
        if event.tag == _READ:
            self._message = event.batch_operations[1].message()
        return True
