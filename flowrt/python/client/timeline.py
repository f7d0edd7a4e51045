"""``timeline.Timeline``: a traced step for Chrome's chrome://tracing and Perfetto."""

from flowrt.profiler.timeline import Timeline

__all__ = ["Timeline"]
