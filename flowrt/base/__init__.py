"""Foundations that every package may use.

structure       nested structures
closing         base of context managers that close themselves
progress        a progress line on the terminal
markup          HTML and SVG as values
in_notebook     objects that notebooks show as cards
user_frames     which frames of a stack are the user's
user_traceback  tracebacks of the user's frames only
exit_codes      exit statuses of the commands
environment     the environment variables that flowrt reads
rotating_file   a log of bounded size
log_records     log records as text or JSON, and in files
"""
