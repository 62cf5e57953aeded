"""docs/errors.md says of every code what the code itself says, of those that Envoy makes as well."""

import re

from extproc.contract.errors import ENVOY_FORMS, FORMS, ErrorCode
from tests.docs.pages import DOCS

ROW = re.compile(r"^\| `(\w+)` \| (\d+)[^|]*\| (\d*) ?\|", re.MULTILINE)


def test_every_code_is_on_the_page_with_its_status_and_its_wait() -> None:
    rows = {
        code: (int(status), int(after) if after else None)
        for code, status, after in ROW.findall((DOCS / "errors.md").read_text())
    }
    told = {str(code): (form.status, form.retry_after_s) for code, form in (FORMS | ENVOY_FORMS).items()}
    # The one code that a client meets inside a stream, under the status that its answer began with.
    told[str(ErrorCode.UPSTREAM_DECODE_INTERRUPTED)] = (200, None)
    assert rows == told
