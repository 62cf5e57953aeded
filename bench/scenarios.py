"""The loads. Every contender gets the same ones, in turns."""

from dataclasses import dataclass
from typing import Final


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


STEADY: Final = Scenario(
    name="steady", streams=50, deltas=20, deltas_per_s=20, prefill_ms=20, ramp_s=1, window_s=4, keep_alive=True
)
"""Time to first token and gaps: about 50 opens a second, far from saturation."""
DELTAS: Final = Scenario(
    name="deltas", streams=400, deltas=100_000, deltas_per_s=15, prefill_ms=20, ramp_s=1.5, window_s=4, keep_alive=False
)
"""CPU per delta: 6,000 deltas a second and no opens in the window, so that it is the delta path alone."""
BURST: Final = Scenario(
    name="burst", streams=500, deltas=30, deltas_per_s=15, prefill_ms=20, ramp_s=0, window_s=None, keep_alive=False
)
"""500 new connections at once; all must finish."""
PEERS: Final = Scenario(
    name="peers", streams=60, deltas=100_000, deltas_per_s=15, prefill_ms=20, ramp_s=8, window_s=5, keep_alive=False
)
"""Whole-path CPU per delta next to other people's proxies: 900 deltas a second, which the slowest carries on half a core; the
ramp is as long because opening one stream costs the slowest tens of milliseconds."""

SCENARIOS: Final = (STEADY, DELTAS, BURST, PEERS)
