"""URLs that an operator gave, as messages may name them."""

import re


def without_secrets(url: str) -> str:
    """``url`` without its user information, query and fragment, any of which may hold a password, a key or a token (RFC 3986
    sections 3.2.1 and 3.4). Takes anything, since what is no URL is what messages are about."""
    start = url.find("//") + 2 if "//" in url else 0
    return url[:start] + re.split("[?#]", url[start:].rpartition("@")[2], maxsplit=1)[0]
