"""Common parts of all strategies.

multi_steps  several steps in one session call
extended     for library authors
strategy     for scripts
"""
