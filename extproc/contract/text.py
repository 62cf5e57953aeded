"""Text that comes from outside and is kept or shown: bounded, and such as every encoder takes."""


def bounded(text: str, characters_max: int) -> str:
    """The first characters of a text. JSON may escape half a surrogate pair, which nothing can write: it becomes ``?``."""
    return text[:characters_max].encode("utf-8", "replace").decode("utf-8")
