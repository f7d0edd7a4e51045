"""Strings, and what talks to the host.

strings, formatting  ops on strings; numbers as text
python_calls         py_func, print, group, tuple
assertions           checks at run time and at build time
summaries            what a step reports to TensorBoard
"""
