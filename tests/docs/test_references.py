"""Pages that are made by a script are what the script makes."""

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT


@pytest.mark.parametrize("script", ["metrics_reference.py", "cli_reference.py", "dashboard.py", "benchmarks_page.py"])
def test_page_is_what_its_script_writes(script: str) -> None:
    result = subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
