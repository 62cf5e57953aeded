import pytest

from extproc.app.parameters import parse_duration_s, parse_tool
from extproc.decision.tool_call import ToolRoute


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("0s", 0), ("30s", 30), ("5m", 300), ("1h", 3600)])
def test_a_duration_has_a_unit(text, seconds) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1.5s", "1d", "30 s", "\u0661s", "1e3s", "inf", "nan", "9999999999s"])
def test_anything_else_is_refused(text) -> None:
    with pytest.raises(ValueError, match="is not a whole number with a unit"):
        parse_duration_s(text)


def test_a_tool_has_a_name_and_an_origin() -> None:
    tool = parse_tool("mail=https://mail.example:8443")
    assert (str(tool), str(tool.address)) == ("mail", "https://mail.example:8443")
    assert tool.route == ToolRoute(name="mail")


def test_settings_of_a_tools_route_follow_its_origin() -> None:
    route = parse_tool("mail=http://10.0.0.9,require_key=true,wait_ms=500,status_path=/calls/{key}?by=key").route
    assert route == ToolRoute(name="mail", require_key=True, wait_ms=500, status_path="/calls/{key}?by=key")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mail", "is not NAME=URL"),
        ("mail=http://10.0.0.9,require_key", "is not NAME=URL"),
        ("Mail=http://10.0.0.9", "name: .*lower-case"),
        ("mail=http://10.0.0.9,waits_ms=1", "waits_ms: unknown key"),
        ("mail=http://10.0.0.9,require_key=yes,wait_ms=-1", "require_key: .*; wait_ms: "),
        ("mail=http://10.0.0.9/path", "beyond host and port"),
    ],
)
def test_anything_else_is_no_tool(text, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_tool(text)
