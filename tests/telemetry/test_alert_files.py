"""The files of deploy/observability as their own tools read them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
OBSERVABILITY = ROOT / "deploy" / "observability"


def test_dashboard_is_what_its_table_says() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "dashboard.py", "--check"], check=True)


@pytest.mark.parametrize("arguments", [("check", "alerts.yaml"), ("test", "alerts_test.yaml")])
def test_promtool_accepts_the_alerts_and_their_proofs(arguments: tuple[str, str]) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "Debian's prometheus package has promtool; make test-telemetry installs it"
    what, file = arguments
    result = subprocess.run([promtool, what, "rules", file], cwd=OBSERVABILITY, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_is_proved_and_leads_to_a_paragraph_that_exists() -> None:
    proofs = (OBSERVABILITY / "alerts_test.yaml").read_text()
    headings = {
        re.sub(r"[^a-z0-9_ -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in (ROOT / "docs" / "operations.md").read_text().splitlines()
        if line.startswith("#")
    }
    for group in YAML(typ="safe").load(OBSERVABILITY / "alerts.yaml")["groups"]:
        for rule in group["rules"]:
            assert rule["alert"] in proofs
            assert rule["annotations"]["runbook"].partition("#")[2] in headings, rule["alert"]
