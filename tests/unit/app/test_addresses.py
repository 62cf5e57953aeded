import socket
from collections.abc import Callable

import pytest

from extproc.app.addresses import Address, ReplicaAddress, host_port
from extproc.worker.plain_http import Target


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("0.0.0.0:1", "0.0.0.0", 1),
        ("[::1]:65535", "::1", 65535),
        ("[::]:0", "::", 0),
        ("localhost:80", "127.0.0.1", 80),
        (":8080", "127.0.0.1", 8080),
        (":0", "127.0.0.1", 0),
    ],
)
def test_a_listening_address_is_read(text, host, port) -> None:
    assert Address.parse(text) == Address(host=host, port=port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "8080",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:http",
        "::1:8080",
        "[::1]",
        "[::1:80",
        "example.com:80",
        "http://127.0.0.1:80",
        "127.0.0.1:80/",
        "user@127.0.0.1:80",
        "@:80",
        "127.0.0.1:80?x",
        "127.0.0.1:80#x",
        "[]:80",
    ],
)
def test_anything_else_is_refused_with_the_text(text) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "[::1]:8080"])
def test_an_address_is_written_as_it_was_read(text) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(("text", "dialled"), [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")])
def test_a_wildcard_is_dialled_on_loopback(text, dialled) -> None:
    assert str(Address.parse(text).reachable) == dialled


@pytest.mark.parametrize("options", [(), (socket.SO_REUSEPORT,)], ids=["plain", "reuseport"])
def test_a_listener_is_an_obstacle_and_nothing_is_none(options) -> None:
    with socket.socket() as holder:
        for option in options:
            holder.setsockopt(socket.SOL_SOCKET, option, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = Address(host="127.0.0.1", port=holder.getsockname()[1])
        obstacle = address.find_obstacle()
        assert obstacle is not None
        assert obstacle.strerror == "Address already in use"
    assert address.find_obstacle() is None


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001"),
        ("http://vllm-0.vllm:8000/", "http://vllm-0.vllm:8000"),
        ("http://VLLM", "http://vllm:80"),
        ("https://gpu.example", "https://gpu.example:443"),
        ("https://[::1]:8443", "https://[::1]:8443"),
    ],
)
def test_a_replicas_origin_is_read(url, parsed) -> None:
    assert str(ReplicaAddress.parse(url)) == parsed


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("127.0.0.1:8001", "does not start with http"),
        ("ftp://127.0.0.1", "does not start with http"),
        ("http://", "has no host"),
        ("http://:80", "has no host"),
        ("http://127.0.0.1:8001/v1", "goes beyond host and port"),
        ("http://127.0.0.1?x=1", "goes beyond host and port"),
        ("http://127.0.0.1#x", "goes beyond host and port"),
        ("http://key@127.0.0.1", "holds credentials"),
        ("http://127.0.0.1:0", "has port 0"),
        ("http://127.0.0.1:port", "not a number"),
        ("http://127.0.0.1:70000", "not a number"),
        ("http://[::1", "is no URL"),
        ("http://a b", "not plain ASCII"),
        ("http://gpü", "not plain ASCII"),
    ],
)
def test_another_replica_url_is_refused_with_the_reason(url, why) -> None:
    with pytest.raises(ValueError, match=why):
        ReplicaAddress.parse(url)


@pytest.mark.parametrize("parse", [ReplicaAddress.parse, Target.parse])
@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@host:80",
        "http://me:secret@host:80:90",
        "http://me:se/cret@host",
        "http://me:secret?@host",
        "https://me@secret@host/",
        "ftp://secret@host",
        "me:secret@host:80",
        "http://host?key=secret",
        "http://host/#secret",
    ],
)
def test_a_refusal_does_not_repeat_what_may_be_a_secret(parse: Callable[[str], object], url: str) -> None:
    with pytest.raises(ValueError, match="host") as refusal:
        parse(url)
    assert "cret" not in str(refusal.value)


def test_brackets_come_back_around_ipv6_only() -> None:
    assert (host_port("::1", 1), host_port("a", 1), host_port("1.2.3.4", 1)) == ("[::1]:1", "a:1", "1.2.3.4:1")
