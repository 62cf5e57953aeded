"""What follows from `deltafence up`'s options before anything is started."""

import errno
from pathlib import Path

import pytest

from extproc.app import gateway_settings
from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.gateway_settings import GatewaySettings, StartRefusedError

ANY_PORT = Address(host="127.0.0.1", port=0)


def settings(admin: Address) -> GatewaySettings:
    replicas = (ReplicaAddress.parse("http://127.0.0.1:8000"),)
    return GatewaySettings(replicas=replicas, listen=ANY_PORT, admin=admin, envoy=Path("/usr/bin/envoy"), processors=2)


def test_an_admin_port_that_was_asked_for_stays():
    asked = Address(host="127.0.0.1", port=9_090)
    assert settings(asked).with_admin_ports().admin == asked


def test_where_any_would_do_every_processor_has_a_port_of_its_own():
    first, second = settings(ANY_PORT).with_admin_ports().admins
    assert second.port == first.port + 1


def test_where_no_row_of_ports_is_free_the_option_is_named(monkeypatch: pytest.MonkeyPatch):
    def taken(count: int, host: str) -> range:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(gateway_settings, "free_ports", taken)
    with pytest.raises(StartRefusedError, match="--admin: found no 2 free ports in a row"):
        settings(ANY_PORT).with_admin_ports()
