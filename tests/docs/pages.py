"""Pages as a reader meets them: fenced blocks, headings, links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", *(ROOT / "deploy").rglob("*.md")])


@dataclass(frozen=True)
class Command:
    """A command of a console block, and what the page says that it prints."""

    line: str
    output: str


def blocks(page: Path, language: str) -> list[str]:
    """The contents of a page's blocks in a language; ``""`` for blocks that name none."""
    return [
        text
        for named, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        if named == language
    ]


def commands(page: Path) -> Iterator[Command]:
    """Every command of every console block, in order."""
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            yield Command(line, output)


def shell_lines(page: Path) -> list[str]:
    """Every line of the blocks that hold commands alone, without prompt or output."""
    held = [*blocks(page, "sh"), *blocks(page, "")]
    return [line.partition(" # ")[0].strip() for block in held for line in block.replace("\\\n", " ").splitlines()]


def inline_code(page: Path) -> list[str]:
    """What stands between backquotes in the text."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def anchors(page: Path) -> set[str]:
    """The ids that GitHub gives a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
