"""Client side of a session that targets a cluster.

cluster_steps    requests to its master
cluster_runtime  replacement of the local runtime
"""
