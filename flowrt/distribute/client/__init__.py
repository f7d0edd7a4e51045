"""A session whose target is a cluster.

cluster_steps    requests to its master
cluster_runtime  takes the place of the local runtime
"""
