"""Two renderings kept as files, so that a change of the chart shows in review. `make chart-golden` renews them."""

import os
from pathlib import Path

import pytest

from tests.chart.rendering import HA, Rendered, render

GOLDEN = Path(__file__).parent / "golden"
RENDERINGS = {"standalone": lambda: render(), "standalone-ha": lambda: render(None, HA)}


@pytest.mark.parametrize("name", RENDERINGS)
def test_the_rendering_is_the_golden_one(name: str) -> None:
    rendered: Rendered = RENDERINGS[name]()
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("RENEW_GOLDEN") == "1":
        file.write_text(rendered.text)
    assert rendered.text == file.read_text(), "run make chart-golden and look at the difference"
