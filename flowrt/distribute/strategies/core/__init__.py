"""What all strategies share.

multi_steps  several steps in one session call
extended     for library authors
strategy     for scripts
"""
