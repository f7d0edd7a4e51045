"""Links for frames over systems that pass messages: MPI, UCX.

message_path        the interface of such a system: a place in it, and a path to a peer's place
message_link        frames over a path
message_connection  a connection over a link, with the gRPC stream as its heartbeat
"""
