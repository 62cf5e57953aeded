"""What strikes many at once in a fleet. Everything of it that is still to come when the fleet heals does not come."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from extproc.decision import events
from extproc.decision.causes import Cause
from extproc.replicas.roster import Standing
from tests.simulation.fleet_parties import Gateway
from tests.simulation.fleet_replicas import Site
from tests.simulation.world import TTL_MS

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

Disaster = Callable[["Fleet"], None]


def lose_a_rack(fleet: "Fleet") -> None:
    """Its machines have no power any more, its network is gone with them; some come back."""
    sites = of_a_rack(fleet)
    for site in sites:
        site.way.is_cut = True
        site.kill()
        if fleet.random.random() < 0.5:
            fleet.later(fleet.random.uniform(0, 3 * TTL_MS), fleet.restart, site)
            fleet.later(fleet.random.uniform(0, 3 * TTL_MS), site.way.heal)
    fleet.tell_health(sites, Standing.WITHHELD)


def kill_many(fleet: "Fleet") -> None:
    """One bad driver update: processes end everywhere at once."""
    sites = fleet.random.sample(fleet.sites, fleet.random.choice((len(fleet.sites) // 10, len(fleet.sites) // 2)))
    for site in sites:
        if site.is_alive:
            site.kill()
    fleet.tell_health(sites, Standing.WITHHELD)


def cut_a_rack(fleet: "Fleet") -> None:
    """Its replicas decode on, and nobody hears them for a while."""
    duration_ms = fleet.random.uniform(0, 3 * TTL_MS)
    for site in of_a_rack(fleet):
        site.way.is_cut = True
        fleet.later(duration_ms, site.way.heal)


def hang_a_rack(fleet: "Fleet") -> None:
    """Engines stand still behind living servers; health proves it after a while, and says so of every attempt there."""
    sites = of_a_rack(fleet)
    for site in sites:
        site.is_hung = True
    fleet.later(2 * TTL_MS, call_hung, fleet, sites)


def call_hung(fleet: "Fleet", sites: list[Site]) -> None:
    hung = {site.index for site in sites if site.is_hung}
    for request in fleet.requests:
        if request.attempt is not None and request.attempt.site.index in hung:
            request.on_failed(request.attempt.number, Cause.HUNG)


def roll_out(fleet: "Fleet") -> None:
    """A new model revision, replica by replica. Some answers of a bad one end in errors."""
    is_bad = fleet.random.random() < 0.5
    for number, site in enumerate(fleet.random.sample(fleet.sites, len(fleet.sites) // 2)):
        fleet.later(number * fleet.random.uniform(0, 4), replace_revision, fleet, site, is_bad)


def replace_revision(fleet: "Fleet", site: Site, is_bad: bool) -> None:
    if site.is_alive:
        site.terminate()
    site.revision, site.errs = "two", is_bad
    fleet.later(fleet.random.uniform(1, TTL_MS), fleet.restart, site)


def lose_gateways(fleet: "Fleet") -> None:
    """Killed, or drained as in a rollout of the gateways."""
    for gateway in fleet.random.sample(fleet.gateways, len(fleet.gateways) // 10):
        if fleet.random.random() < 0.5:
            gateway.crash()
        elif gateway.is_up:
            gateway.is_draining = True
            fleet.later(TTL_MS, reach_drain_limit, gateway)


def reach_drain_limit(gateway: Gateway) -> None:
    if gateway.is_up:
        for request in gateway.requests:
            request.feed(events.DrainLimitReached())


def of_a_rack(fleet: "Fleet") -> list[Site]:
    rack = fleet.random.choice(fleet.sites).rack
    return [site for site in fleet.sites if site.rack == rack]


DISASTERS: Final[tuple[Disaster, ...]] = (lose_a_rack, kill_many, cut_a_rack, hang_a_rack, roll_out, lose_gateways)
