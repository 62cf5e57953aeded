import pytest

from extproc.app.parameters import parse_duration_s


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("0s", 0), ("30s", 30), ("5m", 300), ("1h", 3600)])
def test_a_duration_has_a_unit(text, seconds) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1.5s", "1d", "30 s", "\u0661s", "1e3s", "inf", "nan", "9999999999s"])
def test_anything_else_is_refused(text) -> None:
    with pytest.raises(ValueError, match="is not a whole number with a unit"):
        parse_duration_s(text)
