"""Whether anything listens at a replica's address: a TCP connection, opened and closed; nothing of its engine is used (R20)."""

import asyncio
from typing import Final
from urllib.parse import urlsplit

LIMIT_S: Final = 1.0


async def refuses_connections(destination: str) -> bool:
    """True only where ``ip:port`` refused; a timeout or any other trouble proves nothing."""
    address = urlsplit(f"//{destination}")
    try:
        async with asyncio.timeout(LIMIT_S):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    writer.close()
    return False
