"""Threads of a training script: `Coordinator` (coordinator), and those that fill queues (queue_runner)."""
