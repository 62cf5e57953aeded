"""Clients of a port, from the kernel's table."""

import asyncio
from pathlib import Path

from extproc.worker.clients_of_port import count_clients
from tests.unit.scripted_replica import idle_replica

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0
   1: 0100007F:1F40 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0
   2: 0100007F:1F40 0100007F:C002 08 00000000:00000000 00:00000000 00000000     0        0 3 1 0
   3: 0100007F:C001 0100007F:1F40 01 00000000:00000000 00:00000000 00000000     0        0 4 1 0
   4: 0100007F:1F41 0100007F:C003 01 00000000:00000000 00:00000000 00000000     0        0 5 1 0
broken
"""


def test_only_established_connections_to_the_port_count(tmp_path: Path):
    table = tmp_path / "tcp"
    table.write_text(TABLE)
    assert count_clients(8000, (table, tmp_path / "tcp6")) == 1
    assert count_clients(9000, (table,)) == 0


def test_no_table_is_no_answer(tmp_path: Path):
    assert count_clients(8000, (tmp_path / "none",)) is None


async def test_a_real_connection_is_seen_while_it_lasts():
    async with idle_replica().serving() as replica:
        assert count_clients(replica.port) == 0
        _, writer = await asyncio.open_connection("127.0.0.1", replica.port)
        assert count_clients(replica.port) == 1
        writer.close()
        await writer.wait_closed()
