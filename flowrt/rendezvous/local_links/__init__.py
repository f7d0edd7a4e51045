"""Between processes of one host, and over plain sockets.

shared_memory, shared_frames  arrays in shared memory; frames that carry them
socket_channel                Unix and TCP sockets
"""
