"""`Session`, and its runtime in one process.

clusters           connectors to clusters, by protocol
default_session    the stack of default sessions
request            fetches and feeds, parsed once, with their plans
growth             a warning for graphs that grow between runs
session_variables  variables read and set without operations
local_runtime      devices, variables and plans of a session
session            `Session`, `InteractiveSession`
"""
