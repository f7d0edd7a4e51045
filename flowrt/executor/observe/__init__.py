"""Traces of steps, and the recent steps of a process.

step_stats      kernel times and memory, as ``StepStats`` and ``RunMetadata``
stream_times    times of a program's work, by the host's clock or the device's own
recent_steps    the last steps of the process, for a post-mortem
step_watch      the steps of the process, told to its task
compile_times   phases of a compile, as one log line
placement_log   the device of each operation, for ``log_device_placement``
gc_pause        Python's garbage collector, paused while a plan is compiled
"""
