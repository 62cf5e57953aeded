"""Pure: SSE framing and the dialects of the four APIs (what is content, finish, error; each one's terminal event).

Bytes in, readings out: no I/O, clock, randomness or logging.
"""
