"""Runs inside the replica's pod: the ASGI lease guard for vLLM and the liveness probe server.

Imports contract/ and the pure decision/ only, and no third-party package, so that a model's image gains nothing.
"""

from extproc.worker.guard import LeaseGuard

__all__ = ["LeaseGuard"]
