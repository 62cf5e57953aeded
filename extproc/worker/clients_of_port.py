"""How many clients hold a connection to the server in this pod, read from the kernel's own table.

The containers of a pod share one network namespace, so the sidecar sees the model server's sockets. Where no client holds a
connection nobody can be waiting for an answer, whatever a gauge that froze after a mass cancel says (FACTS A). The reverse proves
nothing, since clients keep idle connections.
"""

from pathlib import Path
from typing import Final

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"


def count_clients(port: int, tables: tuple[Path, ...] = TABLES) -> int | None:
    """Established connections whose local port is this one, or None where the table can't be read (not Linux)."""
    texts = []
    for table in tables:
        try:
            texts.append(table.read_text())
        except OSError:
            continue
    if not texts:
        return None
    ending = f":{port:04X}"
    rows = (line.split() for text in texts for line in text.splitlines()[1:])
    return sum(1 for row in rows if len(row) > 3 and row[1].endswith(ending) and row[3] == _ESTABLISHED)
