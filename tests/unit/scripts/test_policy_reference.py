"""docs/policy.md is what the schema says."""

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "policy_reference.py"


def test_the_reference_is_fresh() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def test_a_stale_page_is_noticed() -> None:
    script = runpy.run_path(str(SCRIPT))
    page = (ROOT / "docs" / "policy.md").read_text()
    assert script["page_with_reference"](page) == page
    assert script["page_with_reference"](page.replace("`lease.ttl_ms` |", "`lease.ttl` |")) == page
