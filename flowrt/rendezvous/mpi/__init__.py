"""MPI (extra ``mpi``).

mpi_channel     ranks and messages (the only module that imports mpi4py)
mpi_link        frames between two ranks
mpi_place       whether two processes share an MPI world
mpi_connection  a connection over these
"""
