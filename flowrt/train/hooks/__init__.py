"""Hooks around the runs of a monitored session.

session_run_hook          the interface
basic_session_run_hooks   logging, progress, NaN checks, stopping
agreed_saving             saving when every worker has its own graph
recording_hooks           checkpoints, summaries, step counters, traces
"""
