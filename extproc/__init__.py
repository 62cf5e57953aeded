"""deltafence: repeat only while nothing was delivered; after the first delta, end the stream honestly.

The rooms and their arrows are described in docs/architecture.md and enforced by import-linter (pyproject.toml).
"""

from pathlib import Path

__version__ = "0.1.0"


def data_file(name: str) -> Path:
    """The path of a data file that ships with the package, such as ``envoy/envoy.yaml.j2``.

    A wheel carries them under ``extproc/_files``; a checkout has them at its root, so that an edit is seen at once.
    """
    package = Path(__file__).parent
    shipped = package / "_files" / name
    return shipped if shipped.exists() else package.parent / name
