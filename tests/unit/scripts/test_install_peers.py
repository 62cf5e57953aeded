"""The proxies that a benchmark compares with: what counts as installed, and what is said where there is no registry."""

import dataclasses
from pathlib import Path

import pytest

from bench import peers
from scripts import install_peers
from scripts.install_peers import PEERS, Peer


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 1\n")  # a pip that reaches no registry
    python.chmod(0o755)
    return dataclasses.replace(PEERS["litellm"], environment=environment)


def test_a_registry_out_of_reach_ends_with_what_to_do(peer: Peer) -> None:
    with pytest.raises(SystemExit, match=r"litellm\[proxy\]==.* could not be installed.*--only"):
        install_peers.install(peer)
    assert not peer.is_installed


def test_an_installation_of_another_version_does_not_count(peer: Peer) -> None:
    peer.record.write_text(peer.requirement)
    assert peer.is_installed
    assert not dataclasses.replace(peer, version="0.0.1").is_installed


def test_a_peer_that_is_not_installed_is_named_with_its_command(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "litellm", peer)
    with pytest.raises(SystemExit, match="is not installed: `make bench-peers`"), peers.litellm(1, peer.environment):
        raise AssertionError("it started")
