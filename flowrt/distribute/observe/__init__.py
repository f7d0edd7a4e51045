"""Diagnostics recorded by a task.

flight_recorder  the last rendezvous events of a task
missing_sender   the causes of blocked receives, from these records
observer         decides when records are written
stalls           steps that make no progress
metrics          counts of steps and transfers, in families as Prometheus has them
process_facts    memory, processor time and descriptors of the process
exposition       Prometheus' text format
metrics_page     ``GET /metrics``
cluster_view     rates of all tasks, and stragglers, from two readings of their metrics
"""
