"""Prints the part of requirements.lock that some extras of pyproject.toml need, with its hashes: what a container image installs.

python scripts/image_requirements.py gateway postgres
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def normalized(name: str) -> str:
    """As the lock writes names (packaging.python.org/specifications/name-normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_blocks(lock: str) -> dict[str, str]:
    """Each package's lines, by name."""
    blocks = re.split(r"(?m)^(?=[a-z0-9])", lock)
    return {re.split(r"==| @ ", block, maxsplit=1)[0]: block for block in blocks if block.strip()}


def required_by(block: str) -> set[str]:
    """The names below ``# via``: who asked for the package."""
    via = block.partition("# via")[2]
    return set(re.findall(r"[a-z0-9][a-z0-9-]*", re.sub(r"\(.*?\)", "", via.replace("#", " "))))


def closure(names: set[str], blocks: dict[str, str]) -> list[str]:
    """``names`` and all that they need, in the lock's order."""
    chosen = set(names)
    while more := {name for name, block in blocks.items() if name not in chosen and required_by(block) & chosen}:
        chosen |= more
    return [name for name in blocks if name in chosen]


def requirements(extras: list[str]) -> str:
    """The requirements file. Raises KeyError for an extra or a package that is not there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [requirement for extra in extras for requirement in project["optional-dependencies"][extra]]
    names = {normalized(re.split(r"[<>=!~; \[]", requirement, maxsplit=1)[0]) for requirement in wanted}
    blocks = locked_blocks((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    missing = names - blocks.keys()
    if missing:
        raise KeyError(f"not in requirements.lock: {sorted(missing)}")
    return "".join(blocks[name] for name in closure(names, blocks))


if __name__ == "__main__":
    print(requirements(sys.argv[1:]), end="")
