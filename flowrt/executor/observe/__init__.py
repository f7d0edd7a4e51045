"""What a step records about itself, and what a process remembers of its steps.

step_stats      kernel times and memory, as ``StepStats`` and ``RunMetadata``
stream_times    when an asynchronous device did what, by its own clock
recent_steps    the last steps of the process, for a post-mortem
compile_times   phases of a compile, as one log line
gc_pause        Python's garbage collector, paused while a plan is compiled
"""
