"""Ports for listeners: free, and in a row."""

import socket
import subprocess
import sys

import pytest

from extproc.links import listening
from extproc.links.listening import free_port, free_ports


@pytest.mark.parametrize("count", [1, 3])
def test_free_ports_come_in_a_row_and_can_be_bound(count: int):
    row = free_ports(count)
    assert list(row) == [row[0] + number for number in range(count)]
    probes = [socket.socket() for _ in row]
    for probe, port in zip(probes, row, strict=True):
        probe.bind(("127.0.0.1", port))
    for probe in probes:
        probe.close()


def test_no_row_reaches_beyond_the_ports_of_listeners(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listening, "PORTS_OF_LISTENERS", range(20_000, 20_004))
    monkeypatch.setattr(listening, "find_obstacle", lambda host, port: None)
    assert free_ports(3) == range(20_000, 20_003)
    with pytest.raises(OSError, match="in use"):  # 20,003 begins no row of three
        free_ports(3)


def test_a_port_is_told_once(monkeypatch: pytest.MonkeyPatch):
    """Not even where nobody listens on it yet; and what was reserved for a row that came to nothing is free again."""
    monkeypatch.setattr(listening, "PORTS_OF_LISTENERS", range(20_010, 20_014))
    monkeypatch.setattr(listening, "find_obstacle", lambda host, port: OSError() if port == 20_012 else None)
    with pytest.raises(OSError, match="in use"):
        free_ports(3)
    assert {free_port(), free_port()} == {20_010, 20_011}
    with pytest.raises(OSError, match="in use"):
        free_port()


def test_a_reservation_ends_with_its_process(monkeypatch: pytest.MonkeyPatch):
    code = "from extproc.links.listening import free_port; print(free_port())"
    told = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    monkeypatch.setattr(listening, "PORTS_OF_LISTENERS", range(told, told + 2))
    assert free_port() == told


def test_where_nothing_is_free_it_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listening, "find_obstacle", lambda host, port: OSError())
    with pytest.raises(OSError, match="Address already in use"):
        free_ports(1)


def test_reserved_ports_are_given_back_at_the_end_without_a_warning():
    told = subprocess.run(
        [sys.executable, "-X", "dev", "-c", "from extproc.links.listening import free_port; free_port()"],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert told.stderr == ""
