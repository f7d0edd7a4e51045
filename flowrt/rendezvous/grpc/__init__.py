"""gRPC, and the negotiation of a faster link.

grpc_errors   gRPC's errors as typed errors
grpc_call     one bidirectional call (the only module that imports gRPC)
health        gRPC's health checking protocol
offers        which upgrades the server offers
upgrade       the negotiation
grpc_channel  listens and dials
"""
