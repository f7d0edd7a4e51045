"""Which tasks there are, and the rules between them.

cluster_spec          jobs, tasks, addresses
bind_policy           where a task may listen and dial
certificates, tokens  a private CA; the shared secret
timeouts, threads     how long tasks wait for each other; threads for work that may block
graph_limits          what a graph from another process may contain
containers            resources shared by the sessions of a task
exit_codes            exit statuses of the commands
"""
