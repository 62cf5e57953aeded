"""The heartbeat: one for each replica, which carries the leases of all this processor's attempts there (DESIGN section 5).

Each beat renews and brings back a stamp, the only thing that a further renewal can count from. Beats do not wait for one another:
an answer that comes late still counts, and a beat lost in a dead connection holds nothing up. A beat that fails proves nothing;
an attempt becomes uncertain only when its lease could not be renewed in time (R5: slow is not dead).
"""

import asyncio
import logging
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NoReturn, Protocol

from extproc.contract.guard import HeartbeatRequest, LeaseEntry
from extproc.decision.lease import Lease, LeaseTerms, Stamp, grant, is_newer
from extproc.replicas.guard_client import GuardAbsentError, GuardClient, GuardUnheardError, TokenRefusedError

log = logging.getLogger("deltafence.lease")

INTERVAL_MS: Final = 2_000
ABSENT_INTERVAL_MS: Final = 30_000
"""Where there is no guard: it may come with the next start of the replica, and until then each beat is a line in its log."""
BEATS_PER_LEASE: Final = 5
"""A lease shorter than five intervals makes its replica's heartbeat faster, so that two lost beats do not end it."""
OUTSTANDING_MAX: Final = 4
"""Beats that wait for their answers at once, so that a replica that can't be reached costs a bounded number of connections."""
ANSWER_TIMEOUT_MS: Final = 10_000
"""An answer that is later than this could renew no lease of the default length."""


TOKEN_ADVICE: Final = "--token-file must hold what DELTAFENCE_TOKEN or DELTAFENCE_TOKEN_FILE holds there"  # noqa: S105


class GuardStanding(StrEnum):
    """Whether a replica has a guard, as far as it has answered."""

    UNKNOWN = "unknown"
    PRESENT = "present"
    ABSENT = "absent"
    TOKEN_REFUSED = "token_refused"  # noqa: S105  (a standing, not a secret)
    """There is a guard and it does not know our secret, so nothing can be leased there."""


class HeartbeatListener(Protocol):
    """Who hears of it. Called on the event loop; must not block or raise."""

    def on_stamp(self, stamp: Stamp) -> None:
        """A beat was answered. May be older than the last stamp, where answers overtook one another."""

    def on_boot(self, before: str | None, after: str) -> None:
        """The replica answers with a boot id for the first time (``before`` is None), or with another one than it did: a new
        process serves there."""

    def on_silence(self, attempt_id: str, silent_ms: int) -> None:
        """The attempt's lease is over because no beat was answered in time; ``silent_ms`` since the last answer."""


@dataclass(slots=True, kw_only=True)
class Held:
    """A lease that this processor granted. Invariant: ``lease`` is the longest grant sent; after ``revoke`` it stays as it is."""

    lease: Lease
    terms: LeaseTerms
    is_renewed: bool = True
    timer: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """One replica's heartbeat. ``url`` has no trailing slash."""

    url: str
    processor_id: str
    client: GuardClient
    listener: HeartbeatListener
    interval_ms: int = INTERVAL_MS

    standing: GuardStanding = field(default=GuardStanding.UNKNOWN, init=False)
    stamp: Stamp | None = field(default=None, init=False)
    """The newest one; what grants and renewals count from."""
    _held: dict[str, Held] = field(default_factory=dict, init=False)
    _beats: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _is_due_earlier: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def hold(self, attempt_id: str, terms: LeaseTerms) -> Lease:
        """Grant a lease on the newest stamp, and renew it from now on."""
        assert self.stamp is not None, "a lease counts from a stamp"
        held = Held(lease=grant(self.stamp, terms), terms=terms)
        if terms.ttl_ms // BEATS_PER_LEASE < self._current_interval_ms():
            self._is_due_earlier.set()
        self._held[attempt_id] = held
        self._watch_end(attempt_id, held)
        return held.lease

    def lease(self, attempt_id: str) -> Lease | None:
        """The longest grant sent, also after ``revoke``; None once dropped."""
        held = self._held.get(attempt_id)
        return held.lease if held else None

    def revoke(self, attempt_id: str) -> None:
        """No renewal any more, and no ``on_silence``: whoever revokes waits for the end itself."""
        held = self._held[attempt_id]
        held.is_renewed = False
        held.stop_timer()

    def drop(self, attempt_id: str) -> None:
        """The attempt is over, in whatever way; nothing happens where it was dropped before."""
        held = self._held.pop(attempt_id, None)
        if held is not None:
            held.stop_timer()

    async def run(self) -> NoReturn:
        """Beat until cancelled."""
        try:
            while True:
                if len(self._beats) < OUTSTANDING_MAX:
                    beat = asyncio.create_task(self.beat(), name=f"heartbeat {self.url}")
                    self._beats.add(beat)
                    beat.add_done_callback(self._beats.discard)
                await self._rest()
        finally:
            for beat in self._beats:
                beat.cancel()
            await asyncio.gather(*self._beats, return_exceptions=True)

    async def beat(self) -> None:
        """One beat and what its answer says. A beat that fails is only a beat that was not answered."""
        try:
            stamp = await self.client.beat(self.url, self._renewals(), timeout_ms=ANSWER_TIMEOUT_MS)
        except TokenRefusedError:
            self._stand(GuardStanding.TOKEN_REFUSED)
        except GuardAbsentError:
            self._stand(GuardStanding.ABSENT)
        except GuardUnheardError as error:
            log.debug("heartbeat of %s not answered: %s", self.url, error)
        else:
            self._stand(GuardStanding.PRESENT)
            self._take(stamp)

    def _renewals(self) -> HeartbeatRequest:
        """Count every renewal before it is sent: from here on its receipt is possible."""
        renewed = {attempt_id: held for attempt_id, held in self._held.items() if held.is_renewed}
        for held in renewed.values():
            assert self.stamp is not None
            held.lease = held.lease.renewed(self.stamp, held.terms)
        return HeartbeatRequest(
            processor_id=self.processor_id,
            leases=[
                LeaseEntry(attempt_id=attempt_id, valid_until_ms=held.lease.valid_until_ms)
                for attempt_id, held in renewed.items()
                # The clock of another process may be another one, and it doesn't know the attempt anyway.
                if self.stamp is not None and held.lease.boot_id == self.stamp.boot_id
            ],
        )

    def _take(self, stamp: Stamp) -> None:
        before = self.stamp
        if before is None or is_newer(stamp, before):
            self.stamp = stamp
            if before is None or before.boot_id != stamp.boot_id:
                self.listener.on_boot(None if before is None else before.boot_id, stamp.boot_id)
        self.listener.on_stamp(stamp)

    def _stand(self, standing: GuardStanding) -> None:
        if standing is self.standing:
            return
        log.info("guard at %s: %s, was %s", self.url, standing, self.standing)
        if standing is GuardStanding.TOKEN_REFUSED:
            log.error("%s has a guard that refuses our token, so nothing can be leased there: %s", self.url, TOKEN_ADVICE)
        self.standing = standing

    def _current_interval_ms(self) -> int:
        if self._held:
            return min(self.interval_ms, *(max(1, held.terms.ttl_ms // BEATS_PER_LEASE) for held in self._held.values()))
        return ABSENT_INTERVAL_MS if self.standing is GuardStanding.ABSENT else self.interval_ms

    async def _rest(self) -> None:
        """Until the next beat is due, or a lease was granted that needs it earlier."""
        self._is_due_earlier.clear()
        try:
            async with asyncio.timeout(self._current_interval_ms() / 1000):
                await self._is_due_earlier.wait()
        except TimeoutError:
            return

    def _watch_end(self, attempt_id: str, held: Held) -> None:
        now_ms = self.client.clock_ms()
        left_ms = held.lease.publish_bound_ms - now_ms
        if left_ms > 0:
            held.timer = asyncio.get_running_loop().call_later(left_ms / 1000, self._watch_end, attempt_id, held)
            return
        assert self.stamp is not None
        self.listener.on_silence(attempt_id, now_ms - self.stamp.received_at_ms)
