"""MPI (extra ``mpi``).

mpi_channel  ranks and messages (the only module that imports mpi4py)
mpi_place    one end of a connection: a rank and a tag
"""
