"""Carries pure protocols over the event loop: bytes from a transport into http2/, and its bytes out again.

Here: reading, writing, pausing, and where a listener can bind. Not here: what the streams mean, which is their owner's
(processor/ or replicas/).
"""
