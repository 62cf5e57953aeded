"""Pure: HTTP/2 (RFC 9113) for both ends, as far as one gRPC method and the attempts' requests need it.

Bytes and intentions in, events and bytes out: no I/O, clock, randomness or logging; ``links/`` carries the bytes. Not here:
gRPC, and what any stream means. HPACK is the ``hpack`` library's.

frames       the nine bytes and what follows them
settings     SETTINGS parameters and what is wrong with them
fields       header blocks: put together, decoded, judged
streams      states of streams, which ids are idle, live or closed
outbox       what waits to be sent, under both flow-control windows
limits       every bound, with its reason
core         what the parts of a connection share
control      frames about the connection
exchange     frames of streams
connection   one end of a connection, as its owner sees it

Server push, priorities, extended CONNECT and padding of our own are left out: they are optional, and nobody here asks for them.
"""
