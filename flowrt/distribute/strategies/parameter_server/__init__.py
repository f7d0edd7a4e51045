"""Training with parameter servers.

graph_homes               the devices of a graph's variables
parameter_server_step     a worker's step
parameter_server_session  sessions that survive a lost server
parameter_server_strategy the strategy
"""
