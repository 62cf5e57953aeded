"""One thing that is measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way from a client to the replica, up and answering on ``port``, and the processes that it is made of.

    ``processor_pids`` are all but Envoy's: of a peer, which has no Envoy, the whole proxy.
    """

    port: int
    processor_pids: tuple[int, ...]
    envoy_pids: tuple[int, ...]
