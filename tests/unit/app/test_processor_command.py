"""``deltafence processor``: what it refuses before anything starts."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.app.processor_command import processor


@pytest.mark.parametrize(("text", "trouble"), [("no PEM\n", "no certificate or crl found"), (None, "No such file or directory")])
def test_authorities_that_can_not_be_read_are_named(tmp_path: Path, text: str | None, trouble: str) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    options = ["--socket", "/unused", "--egress", "/unused", "--replica", "https://127.0.0.1:1", "--replica-ca", str(file)]
    result = CliRunner().invoke(processor, options)
    assert result.exit_code == 1
    assert f"--replica-ca {file}: " in result.output
    assert trouble in result.output
