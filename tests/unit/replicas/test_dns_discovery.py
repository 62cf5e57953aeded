"""Members by DNS: every address of a name, asked again, and what a failed look-up may not do."""

import asyncio
import socket
from collections.abc import Sequence

import pytest

from extproc.replicas.dns_discovery import DnsDiscovery, system_lookup
from extproc.replicas.membership import Member


class Names:
    """A resolver that answers what a test says; a missing name fails."""

    def __init__(self, **addresses: list[str]) -> None:
        self.addresses = addresses
        self.pictures: list[list[str]] = []

    async def lookup(self, host: str, port: int) -> Sequence[str]:
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.addresses[host]

    def become(self, members: Sequence[Member]) -> None:
        self.pictures.append([member.replica.url for member in members])

    def discovery(self, *hosts: str) -> DnsDiscovery:
        return DnsDiscovery([("http", host, 8000) for host in hosts], self.become, lookup=self.lookup, refresh_s=0)


async def test_every_address_of_every_name_is_a_member() -> None:
    names = Names(vllm=["10.0.0.2", "10.0.0.1", "10.0.0.1"], other=["[fd00::1]"])
    await names.discovery("vllm", "other").refresh()
    assert names.pictures == [["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://[fd00::1]:8000"]]


async def test_a_picture_is_told_only_when_it_changed() -> None:
    names = Names(vllm=["10.0.0.1"])
    discovery = names.discovery("vllm")
    await discovery.refresh()
    await discovery.refresh()
    assert len(names.pictures) == 1
    names.addresses["vllm"] = ["10.0.0.2"]
    await discovery.refresh()
    assert names.pictures[-1] == ["http://10.0.0.2:8000"]


async def test_a_failed_look_up_keeps_the_last_addresses() -> None:
    names = Names(vllm=["10.0.0.1"], other=["10.0.0.9"])
    discovery = names.discovery("vllm", "other")
    await discovery.refresh()
    del names.addresses["vllm"]
    names.addresses["other"] = ["10.0.0.8"]
    await discovery.refresh()
    assert names.pictures[-1] == ["http://10.0.0.1:8000", "http://10.0.0.8:8000"]


async def test_it_asks_until_it_is_stopped() -> None:
    names = Names(vllm=["10.0.0.1"])
    asked_again = asyncio.Event()

    def become(members: Sequence[Member]) -> None:
        names.become(members)
        names.addresses["vllm"] = []
        if len(names.pictures) == 2:
            asked_again.set()

    discovery = DnsDiscovery([("http", "vllm", 8000)], become, lookup=names.lookup, refresh_s=0)
    task = asyncio.create_task(discovery.run())
    await asked_again.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert names.pictures == [["http://10.0.0.1:8000"], []]


async def test_the_systems_resolver_takes_one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await system_lookup("127.0.0.1", 8000) == ["127.0.0.1"]
    assert await system_lookup("::1", 8000) == ["[::1]"]

    async def both(host: str, port: int, *, type: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:  # noqa: A002
        return [(socket.AF_INET6, type, 0, "", ("fd00::1", port)), (socket.AF_INET, type, 0, "", ("10.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
    assert await system_lookup("both", 1) == ["10.0.0.1"]
