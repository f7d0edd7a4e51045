"""The seam between tasks: connections that carry frames.

channel                      `Transport`, `Listener`, `Connection`, `Receiver`
framing                      frames <-> bytes; pure
security, tls, host_identity tokens and certificates; TLS for sockets; which host this is
lifeline                     open, lost or closed
rare_log                     warnings that do not fill the log
receive_memory               where large arrays arrive
poller                       polls links that cannot wake a thread
frame_writer, frame_reader   writes frames from any thread; reads them in one at a time
frame_stream                 frames over messages
checked_frames, frame_probes checksums of arrays, and frames that come again; whether they have come
byte_stream                  a socket, plain or TLS
stream_connection            a connection over a stream of messages
"""
