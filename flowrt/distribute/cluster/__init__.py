"""The tasks of a cluster, and the rules between them.

cluster_spec          jobs, tasks, addresses
bind_policy           addresses where a task may listen and dial
metrics_address       where a task serves its metrics
certificates, tokens  a private CA; the shared secret
timeouts, threads     timeouts between tasks; threads for work that may block
standstill            times in which this process was stopped
graph_limits          limits on graphs from other processes
containers            resources shared by the sessions of a task
"""
