"""The guard's settings, from the environment of the server that loads it.

A setting that can't be read stops the server at its start, with the variable's name: a guard that quietly fell back to a weaker
setting would be worse than none (CASES K8-03).
"""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

TOKEN: Final = "DELTAFENCE_TOKEN"  # noqa: S105  (a variable's name)
TOKEN_FILE: Final = "DELTAFENCE_TOKEN_FILE"  # noqa: S105
REQUIRE_LEASE: Final = "DELTAFENCE_REQUIRE_LEASE"
LEASE_TTL_MAX_MS: Final = "DELTAFENCE_LEASE_TTL_MAX_MS"
STATE_DIR: Final = "DELTAFENCE_STATE_DIR"

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  (a private directory is made below it)
LEASE_TTL_MAX_MS_DEFAULT: Final = 300_000
"""The longest lease that a policy may ask for (proto/policy.schema.json), so that no policy's attempts are refused for it."""
WORDS: Final = {"true": True, "false": False}


class SettingsError(Exception):
    """A variable is missing or can't be read; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """What a guard is told by its operator."""

    token: bytes = field(repr=False)
    """The shared secret that attempts and guard calls must carry."""
    require_lease: bool = False
    """Refuse generations that carry no lease, so that nothing gets round the gateway."""
    lease_ttl_max_ms: int = LEASE_TTL_MAX_MS_DEFAULT
    """Longest lease that is accepted, and so how long an ended attempt or a tombstone must be remembered."""
    state_dir: Path = field(default_factory=lambda: default_state_dir())
    """Where the processes of one server share their attempts; a memory file system is best."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "GuardSettings":
        """Raises SettingsError."""
        return cls(
            token=_read_token(environment),
            require_lease=_read_bool(environment, REQUIRE_LEASE, default=False),
            lease_ttl_max_ms=_read_positive(environment, LEASE_TTL_MAX_MS, default=LEASE_TTL_MAX_MS_DEFAULT),
            state_dir=Path(environment[STATE_DIR]) if environment.get(STATE_DIR) else default_state_dir(),
        )


def default_state_dir() -> Path:
    """Shared memory, where the system has it."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


def _read_token(environment: Mapping[str, str]) -> bytes:
    given = [name for name in (TOKEN, TOKEN_FILE) if environment.get(name)]
    if len(given) != 1:
        raise SettingsError(f"set exactly one of {TOKEN} and {TOKEN_FILE}: the secret that the gateway's attempts carry")
    try:
        text = environment[TOKEN] if given == [TOKEN] else Path(environment[TOKEN_FILE]).read_text()
    except OSError as error:
        raise SettingsError(f"{TOKEN_FILE}: {error}") from error
    token = text.strip().encode()
    if not token:
        raise SettingsError(f"{given[0]} is empty")
    return token


def _read_bool(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environment.get(name, "").strip().lower()
    if text and text not in WORDS:
        raise SettingsError(f"{name} must be true or false, not {text!r}")
    return WORDS.get(text, default)


def _read_positive(environment: Mapping[str, str], name: str, *, default: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise SettingsError(f"{name} must be a whole number of milliseconds above 0, not {text!r}")
    return int(text)
