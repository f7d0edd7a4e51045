"""Common parts of master and worker.

events          their inputs and outputs: events and actions
session_graph   a session's graph as client and master have it
sent_constants  large constants that a task already has
"""
