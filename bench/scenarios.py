"""The loads. Every contender gets the same ones, in turns."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Pace(StrEnum):
    """When the deltas of several streams come (upstream.Replica.first_due_s)."""

    OWN = "own"
    """Each stream's from its own beginning on."""
    SPREAD = "spread"
    """Evenly spread over the time between two deltas of one stream, as from many replicas: each wakes everything on its way."""
    STEPS = "steps"
    """All together, as from one vLLM, whose running sequences get a token each in every step of its engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load. ``window_s`` None: every slot sends one request and the run ends with the last answer.

    Otherwise each slot sends one request after the other, and only the window that follows the ramp counts; what is
    still running at its end is cut off.
    """

    name: str
    streams: int
    deltas: int
    deltas_per_s: float
    prefill_ms: int
    ramp_s: float
    window_s: float | None
    keep_alive: bool
    pace: Pace = Pace.OWN


STEADY: Final = Scenario(
    name="steady", streams=50, deltas=20, deltas_per_s=20, prefill_ms=20, ramp_s=1, window_s=4, keep_alive=True
)
"""Time to first token and gaps: about 50 opens a second, far from saturation."""
DELTAS: Final = Scenario(
    name="deltas",
    streams=400,
    deltas=100_000,
    deltas_per_s=15,
    prefill_ms=20,
    ramp_s=1.5,
    window_s=4,
    keep_alive=False,
    pace=Pace.SPREAD,
)
"""CPU per delta: 6,000 deltas a second and no opens in the window, so that it is the delta path alone."""
BURST: Final = Scenario(
    name="burst", streams=500, deltas=30, deltas_per_s=15, prefill_ms=20, ramp_s=0, window_s=None, keep_alive=False
)
"""500 new connections at once; all must finish."""
PEERS: Final = replace(DELTAS, name="peers", streams=60, ramp_s=8, window_s=5)
"""Whole-path CPU per delta next to other people's proxies: 900 deltas a second, which the slowest carries on half a core; the
ramp is as long because opening one stream costs the slowest tens of milliseconds."""

STEPS: Final = replace(PEERS, name="steps", pace=Pace.STEPS)
"""The same, as one vLLM sends it."""

SCENARIOS: Final = (STEADY, DELTAS, BURST, PEERS, STEPS)
