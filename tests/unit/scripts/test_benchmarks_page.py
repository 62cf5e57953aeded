"""The page of benchmarks is made of the figures of real runs."""

import json
from pathlib import Path

import pytest

from scripts import benchmarks_page
from tests.unit.bench.documents import everything


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "benchmarks.md"
    path.write_text(f"# Own words\n\n{benchmarks_page.BEGIN}old\n{benchmarks_page.END}more of them\n")
    monkeypatch.setattr(benchmarks_page, "PAGE", path)
    monkeypatch.setattr(benchmarks_page, "FOLDER", tmp_path / "benchmarks")
    return path


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks_page.py", *map(str, words)])
    benchmarks_page.main()


def test_figures_machine_and_plots_stand_between_the_marks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, soak = tmp_path / "bench.json", tmp_path / "soak.json"
    document = everything()
    soak.write_text(json.dumps(document | {"contenders": {}, "studies": {"soak": document["studies"].pop("soak")}}))
    bench.write_text(json.dumps(document))
    run(monkeypatch, bench, soak)
    text = page.read_text()
    assert text.startswith("# Own words\n")
    assert text.endswith("more of them\n")
    assert "old" not in text
    assert "| processor CPU per delta, of the no-op echo's | ≤ 0.75 x | 0.7 | held |" in text
    assert "| memory's growth over a soak at half load | ≤ 4 MiB | 0.0 | held |" in text
    assert f"{document['machine']['cores']} cores of an {document['machine']['cpu']}" in text
    for name in benchmarks_page.PLOTS:
        assert f"](benchmarks/{name})" in text
        assert (page.with_suffix("") / name).exists()


def test_the_page_is_made_again_from_the_figures_that_are_kept(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = tmp_path / "bench.json"
    bench.write_text(json.dumps(everything()))
    run(monkeypatch, bench)
    run(monkeypatch, "--check")
    page.write_text(page.read_text().replace("held", "missed"))
    with pytest.raises(SystemExit, match=r"benchmarks\.md is not what"):
        run(monkeypatch, "--check")


def test_a_page_without_a_run_says_so(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch)
    assert benchmarks_page.NOTHING_YET in page.read_text()
