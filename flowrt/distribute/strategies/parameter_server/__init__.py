"""Training with parameter servers.

graph_homes               where a graph's variables are
parameter_server_step     a worker's step
parameter_server_session  sessions that survive a lost server
parameter_server_strategy the strategy
"""
