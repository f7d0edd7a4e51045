"""Queues (queues), conditional accumulators (accumulators), and readers of files (readers)."""
