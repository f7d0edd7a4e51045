"""UCX (extra ``ucx``).

ucx_worker  the process's worker, and the ends of connections in it (the only module that imports ucxx)
"""
