"""A task's work for its clients.

master_session                 sessions of its clients
pending_replies                replies of workers that a request waits for
registered_steps               steps placed, cut, registered and run
partial_stages, partial_runs   steps in several calls
master                         `Master`: a pure state machine
"""
