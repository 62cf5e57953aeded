"""Write the figures of real runs into docs/benchmarks.md, with plots, and keep them beside it; --check compares instead.

Usage: ``python scripts/benchmarks_page.py [FILE ...]``: files of `make bench` and `make soak`. Of what several of them have
measured, the last one's counts. Without a file the page is made anew from the figures that are kept.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from bench.plots import charts
from bench.report import BUSY_LOAD_AVERAGE, Sheet, sheets

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
FOLDER: Final = PAGE.with_suffix("")
FIGURES: Final = "figures.json"

BEGIN: Final = "<!-- made by scripts/benchmarks_page.py from here -->\n"
END: Final = "<!-- to here -->\n"
NOTHING_YET: Final = "No run is recorded here yet.\n"
PLOTS: Final = {
    "latency.svg": "Distribution of the time to first token",
    "concurrency.svg": "CPU per delta against concurrency",
    "memory.svg": "Memory against open streams",
    "soak.svg": "Memory over the soak",
}


def joined(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """One document of several: the last with contenders, and the last of each study."""
    whole = next((each for each in reversed(documents) if each["contenders"]), documents[-1])
    studies: dict[str, Any] = {}
    for document in documents:
        studies |= document["studies"]
    return whole | {"studies": studies}


def made(document: dict[str, Any] | None, plots: dict[str, str]) -> str:
    """What stands between the page's marks."""
    if document is None:
        return NOTHING_YET
    parts = [machine(document["machine"])]
    parts += [markdown(sheet) for sheet in sheets(document)]
    parts += [f"![{words}](benchmarks/{name})\n" for name, words in PLOTS.items() if name in plots]
    parts.append(f"The figures themselves: [benchmarks/{FIGURES}](benchmarks/{FIGURES}).\n")
    return "\n".join(parts)


def machine(facts: dict[str, Any]) -> str:
    """Where the figures come from."""
    programs = ("deltafence", "envoy", "grpcio", "python", "litellm", "vllm-router")
    versions = ", ".join(f"{name} {facts[name]}" for name in programs)
    busy = facts["load_average_before"] > BUSY_LOAD_AVERAGE
    note = " **The machine was busy with other work: figures are off.**" if busy else ""
    return f"Measured on {facts['cores']} cores of an {facts['cpu']} with Linux {facts['kernel']}: {versions}.{note}\n"


def markdown(sheet: Sheet) -> str:
    """One table under its title."""
    lines = [f"## {sheet.title}\n", row(sheet.headings), "|---" * len(sheet.headings) + "|"]
    lines += [row((name, *cells)) for name, cells in sheet.rows]
    return "\n".join(lines) + "\n"


def row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: the figures that are kept")
    parser.add_argument("--check", action="store_true", help="fail where the page is not what its figures make")
    arguments = parser.parse_args()
    kept = [FOLDER / FIGURES] if (FOLDER / FIGURES).exists() else []
    documents = [json.loads(file.read_text()) for file in arguments.files or kept]
    document = joined(documents) if documents else None
    plots = charts(document) if document else {}
    page = PAGE.read_text()
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    files = {PAGE: page[:begin] + made(document, plots) + page[end:]}
    if document:
        files |= {FOLDER / name: plot for name, plot in plots.items()}
        files[FOLDER / FIGURES] = json.dumps(document, indent=1) + "\n"
    for path, text in files.items():
        if not arguments.check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path} is not what scripts/benchmarks_page.py makes of {FIGURES}; run it")


if __name__ == "__main__":
    main()
