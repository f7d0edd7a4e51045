"""The commands ``flowrt`` (a module for each of its own; `main` reads the command line), ``flowrt-run`` and
``flowrt-worker``.
"""
