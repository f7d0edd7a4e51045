"""Foundations that every package may use.

structure      nested structures
closing        base of context managers that close themselves
progress       a progress line on the terminal
"""
