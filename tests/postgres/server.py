"""A real PostgreSQL server for one run of tests: a fresh cluster in a temporary folder, loopback only, gone afterwards.

    python tests/postgres/server.py COMMAND [ARGUMENT ...]

runs COMMAND with DELTAFENCE_TEST_POSTGRES set to the server's address, and ends with its exit status. PostgreSQL refuses to run
as root, so as root it runs as the user ``postgres``, whom Debian's package makes.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extproc.links.listening import free_port

ADDRESS_VARIABLE = "DELTAFENCE_TEST_POSTGRES"
SERVER_USER = "postgres"


def binaries() -> Path:
    """Debian keeps them out of PATH, one folder a major version; the newest is taken."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    in_path = shutil.which("initdb")
    if in_path is None:
        sys.exit("no PostgreSQL server is installed; on Debian: apt-get install postgresql")
    return Path(in_path).parent


def as_server_user(command: list[str | Path]) -> list[str | Path]:
    """The command, with root's rights laid down if we have them."""
    if os.geteuid() != 0:
        return command
    return ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--clear-groups", *command]


@contextmanager
def running_server() -> Iterator[str]:
    """The address of an empty server, as long as the block runs."""
    # /tmp, where the server's user can enter, and where a socket's name is short enough.
    folder = Path(tempfile.mkdtemp(prefix="deltafence-postgres-", dir="/tmp"))
    port = free_port()
    try:
        if os.geteuid() == 0:
            owner = pwd.getpwnam(SERVER_USER)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        data, log = folder / "data", folder / "log"
        initdb = [binaries() / "initdb", "-D", data, "-U", "deltafence", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(as_server_user(initdb), check=True, stdout=subprocess.DEVNULL)
        settings = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c max_connections=200"
        settings += " -c deadlock_timeout=50ms"  # how long a lock is waited for before a deadlock is looked for; default 1 s
        settings += " -c fsync=off"  # clients are killed here, never the machine; a busy disk would only hold tests up
        control = as_server_user([binaries() / "pg_ctl", "-D", data, "-l", log, "-w", "-o", settings])
        started = subprocess.run([*control, "start"], stdout=subprocess.DEVNULL)
        if started.returncode != 0:
            sys.exit(log.read_text() if log.exists() else "pg_ctl start failed")
        try:
            yield f"postgresql://deltafence@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with running_server() as address:
        status = subprocess.run(sys.argv[1:], env={**os.environ, ADDRESS_VARIABLE: address}).returncode
    sys.exit(status)
