"""Queues (queues) and conditional accumulators (accumulators)."""
