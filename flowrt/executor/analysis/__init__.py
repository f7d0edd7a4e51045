"""Facts about a partition that later stages need.

cost         estimated time per node
streams      list scheduling over a device's streams, and the waits between them
trip_counts  iteration counts of loops that constants decide
"""
