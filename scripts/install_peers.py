"""Install the proxies that `make bench` compares with, each into a virtual environment of its own: ours stays as it is.

Usage: ``python scripts/install_peers.py``. Run again, it installs only what is missing. Versions are pinned (``PEERS``); a new
one is a new measurement. Ends with a sentence where the registry can't be reached.
"""

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One program of the registry's: what to install, and the command that the installation brings."""

    package: str
    version: str
    extra: str = ""
    command: str
    environment: Path

    @property
    def requirement(self) -> str:
        return f"{self.package}{self.extra}=={self.version}"

    @property
    def executable(self) -> Path:
        return self.environment / "bin" / self.command

    @property
    def record(self) -> Path:
        """A file that says which version an installation that went to its end has put there."""
        return self.environment / "installed"

    @property
    def is_installed(self) -> bool:
        return self.record.exists() and self.record.read_text() == self.requirement


PEERS: Final = {
    "litellm": Peer(package="litellm", extra="[proxy]", version="1.108.7", command="litellm", environment=ROOT / ".venv-litellm"),
    "vllm_router": Peer(package="vllm-router", version="0.1.17", command="vllm-router", environment=ROOT / ".venv-vllm-router"),
}


def install(peer: Peer) -> None:
    """Raises SystemExit where pip fails, with what to do."""
    if peer.is_installed:
        return
    python = peer.environment / "bin" / "python"
    if not python.exists():
        venv.create(peer.environment, with_pip=True)
    print(f"installing {peer.requirement} into {peer.environment}", file=sys.stderr)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if subprocess.run((*pip, peer.requirement)).returncode:
        sys.exit(
            f"{peer.requirement} could not be installed (pip's reason is above). It comes from PyPI, which has to be in reach;"
            " `python -m bench --only deltafence echo envoy` measures without the peers."
        )
    peer.record.write_text(peer.requirement)


if __name__ == "__main__":
    for each in PEERS.values():
        install(each)
