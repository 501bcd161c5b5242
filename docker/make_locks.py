"""Writes docker/locks: every Python package of the images with its version and hashes. `make locks` runs it.

pip-compile resolves them, in an environment of its own (`.peers/locks`). The images are built on Python 3.11 or 3.12,
and so must be the Python that runs this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "docker" / "locks"
ENVIRONMENT = ROOT / ".peers" / "locks"
PIP_TOOLS = ("pip-tools==7.5.2", "pip==25.3")
BRIDGE = ("numpy", "websockets", "prometheus-client", "pyyaml", "soxr", "uvloop", "av", "h11")
"""What telephony-sip-bridge imports of the project's requirements (tests/deploy/test_images.py)."""
LATER = ("torch", "triton", "nvidia-", "cuda-")
"""Names that begin so are not pinned: PyTorch, whose right build depends on the card, and what it pins itself."""
RESOLVE_S = 600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", default="", help="extras of the image cpu, separated by spaces")
    parser.add_argument("--cuda", default="", help="extras of the images cuda and v100")
    arguments = parser.parse_args()
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        print("make_locks.py: the images have Python 3.11 or 3.12; run this with one of them", file=sys.stderr)
        return 1
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    base, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]

    def with_extras(names: str) -> list[str]:
        return [*base, *(each for name in names.split() for each in extras[name])]

    every = [*base, *(each for extra in extras.values() for each in extra)]
    bridge = [next(each for each in every if named(each) == name) for name in BRIDGE]
    install_pip_tools()
    write("build", [*project["build-system"]["requires"], "wheel"])
    write("bridge", bridge)
    write("cpu", with_extras(arguments.cpu))
    write("cuda", with_extras(arguments.cuda))
    return 0


def named(requirement: str) -> str:
    """The package of a requirement such as "uvloop>=0.19; sys_platform != 'win32'"."""
    return requirement.split(";")[0].split("[")[0].split(">")[0].split("<")[0].split("=")[0].strip().lower()


def install_pip_tools() -> None:
    if not (ENVIRONMENT / "bin" / "pip-compile").is_file():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True, timeout=RESOLVE_S)
        pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", *PIP_TOOLS]
        subprocess.run(pip, check=True, timeout=RESOLVE_S)


def write(name: str, requirements: list[str]) -> None:
    """Resolve `requirements` into docker/locks/NAME.txt."""
    target = LOCKS / f"{name}.txt"
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "requirements.in")
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        out = Path(folder, "locked.txt")
        subprocess.run(
            [str(ENVIRONMENT / "bin" / "pip-compile"), "--quiet", "--generate-hashes", "--strip-extras", "--no-header",
             "--no-annotate", "--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links", "--upgrade",
             "--allow-unsafe", "--output-file", str(out), str(wanted)],
            check=True, timeout=RESOLVE_S,
        )  # fmt: skip
        pinned = out.read_text(encoding="utf-8")
    pinned = "".join(block for block in blocks(pinned) if not block.startswith(LATER))
    target.write_text(f"# The packages of the image {name}. Written by `make locks`.\n{pinned}", encoding="utf-8")
    print(f"{target.relative_to(ROOT)}: {pinned.count('==')} packages")


def blocks(pinned: str) -> list[str]:
    """The packages of a lock file, each with the lines of its hashes. Comments are left out."""
    found: list[str] = []
    for line in pinned.splitlines(keepends=True):
        if line.startswith(" ") and found:
            found[-1] += line
        elif line.strip() and not line.startswith("#"):
            found.append(line)
    return found


if __name__ == "__main__":
    sys.exit(main())
