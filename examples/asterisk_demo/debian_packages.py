"""Programs from signed Debian packages, unpacked into a folder of the checkout. Nothing is installed on the host.

The ordinary apt client downloads and checks the packages, with separate directories and an empty package status. With
an empty status the dependencies reach down to libc, so the programs run on any Linux with their own dynamic loader. No
maintainer script runs, and no root is needed.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MIRROR_VARIABLE = "TELEPHONY_TTS_DEBIAN_MIRROR"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TRIPLET = "x86_64-linux-gnu"
_STAMP = ".installed"
_LAYOUT = 1
"""Increased when the same packages must be unpacked in another way, so that existing folders are replaced."""

_UPDATE_S, _DOWNLOAD_S, _UNPACK_S = 120.0, 600.0, 60.0
_WITHOUT = "or skip such tests: make test PYTEST_ARGS='-m \"not peer\"'"

# Packages that only maintainer scripts and administrators' tools need.
_UNUSED = re.compile(
    r"(perl|libperl|python3|libpython3|gnupg|gpg|dirmngr|pinentry|passwd|login\.defs|base-passwd|adduser|debconf"
    r"|libc-gconv-modules-extra|pci\.ids|libpam|sysuser-helper|systemd|readline-common|libsemanage|libsepol"
    r"|init-system-helpers|media-types|tzdata)[^_]*_"
)
_UNUSED_FOLDERS = ("doc", "man", "locale", "zoneinfo", "info", "lintian", "bug")

_SETTINGS = """\
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "{cache}/sources";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "{cache}/none";
Dir::State "{cache}/state";
Dir::State::Status "{cache}/status";
Dir::Cache "{cache}";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "{user}";
Acquire::Languages "none";
Acquire::Retries "3";
"""


class PeerUnavailable(Exception):
    """A program is not installed and cannot be fetched; the message says what to do."""


class Unpacked:
    """A folder with programs and all their libraries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libraries = folder / "usr" / "lib" / _TRIPLET

    def command(self, program: str, *arguments: str) -> list[str]:
        """The command line of a program, which is given by its path in the package, such as "usr/sbin/asterisk".

        The loader of the folder is called by its path, so the host's libc is not used.
        """
        loader = self.libraries / "ld-linux-x86-64.so.2"
        path = f"{self.libraries}:{self.libraries / 'pulseaudio'}"
        return [str(loader), "--library-path", path, str(self.folder / program), *arguments]


def install(folder: Path, packages: Sequence[str], suite: str, megabytes: int = 95) -> Unpacked:
    """Unpack packages of a Debian suite into `folder`, if they are not there yet. `megabytes` to fetch is only told.

    A second process waits for the first. After a failure the downloads are kept for the next try. Raises
    PeerUnavailable.
    """
    stamp = folder / _STAMP
    wanted = f"{_LAYOUT} {suite}: {' '.join(packages)}"
    if _is_there(stamp, wanted):
        return Unpacked(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock"), folder.name):
        if not _is_there(stamp, wanted):
            _require_tools()
            began_s = time.monotonic()
            _tell(f"==> fetching {', '.join(packages)} of Debian {suite} into {folder}, about {megabytes} MB, once")
            cache = folder.with_name(folder.name + ".cache")
            archives = _download(cache, packages, suite)
            _unpack(archives, folder, wanted)
            shutil.rmtree(cache)
            _tell(f"==> {len(archives)} packages fetched and unpacked, {time.monotonic() - began_s:.0f} s")
    return Unpacked(folder)


def _is_there(stamp: Path, wanted: str) -> bool:
    try:
        return stamp.read_text() == wanted
    except OSError:
        return False


def _tell(line: str) -> None:
    """Print to the terminal even under pytest: minutes without output would look like a test that hangs."""
    print(line, file=sys.__stderr__, flush=True)


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    """The kernel drops the lock when its holder dies."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell(f"==> {name}: another process is installing it, waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _require_tools() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise PeerUnavailable(
            f"the packages are for Linux on amd64, this is {sys.platform} on {platform.machine()}: "
            f"use such a machine or a container, {_WITHOUT}"
        )
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise PeerUnavailable(
            f"no {' and no '.join(missing)} here: use Debian or a container of it, {_WITHOUT}"
        )
    if not _KEYRING.exists():
        raise PeerUnavailable(f"{_KEYRING} is missing: apt-get install debian-archive-keyring, {_WITHOUT}")


# ------------------------------------------------------------------- mirror


def mirror(apt: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")) -> str:
    """The Debian mirror: TELEPHONY_TTS_DEBIAN_MIRROR, else that of this machine's system. Raises PeerUnavailable."""
    told = os.environ.get(MIRROR_VARIABLE)
    if told:
        return told
    codename = next(iter(re.findall(r"^VERSION_CODENAME=\"?(\w+)", _text(os_release), re.M)), "")
    system = {codename, "stable", "oldstable", "testing", "unstable", "sid"} - {""}
    for uri, suites, components in _sources(apt):
        if "main" in components and system & set(suites):
            return uri
    raise PeerUnavailable(
        f"no source of this Debian in {apt}: set {MIRROR_VARIABLE} to the address of a Debian mirror, {_WITHOUT}"
    )


def _sources(apt: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """(URI, suites, components) of each enabled source of packages, in both formats of apt."""
    parts = apt / "sources.list.d"
    for path in sorted(parts.glob("*.sources")):
        for stanza in re.split(r"\n[ \t]*\n", re.sub(r"^#.*\n?", "", _text(path), flags=re.M)):
            named = re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", stanza, re.M)
            fields = {name.lower(): value.split() for name, value in named}
            if "deb" in fields.get("types", []) and fields.get("enabled", ["yes"]) != ["no"]:
                for uri in fields.get("uris", []):
                    yield uri, fields.get("suites", []), fields.get("components", [])
    for path in [apt / "sources.list", *sorted(parts.glob("*.list"))]:
        for uri, suite, components in re.findall(r"^deb\s+(?:\[[^]]*]\s+)?(\S+)\s+(\S+)\s*(.*)$", _text(path), re.M):
            yield uri, [suite], components.split()


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


# ------------------------------------------------------------------- download and unpack


def _download(cache: Path, packages: Sequence[str], suite: str) -> list[Path]:
    """Download the packages with their dependencies; apt checks the signature of the suite."""
    for part in ("sources", "none/partial", "state/lists/partial", "archives/partial"):
        (cache / part).mkdir(parents=True, exist_ok=True)
    (cache / "status").touch()
    (cache / "sources" / "peer.sources").write_text(
        f"Types: deb\nURIs: {mirror()}\nSuites: {suite}\nComponents: main\nArchitectures: amd64\n"
        f"Signed-By: {_KEYRING}\n"
    )
    user = "root" if os.geteuid() == 0 else ""
    (cache / "apt.conf").write_text(_SETTINGS.format(cache=cache, user=user))
    _apt(cache, ["update"], _UPDATE_S)
    _apt(cache, ["--download-only", "install", *packages], _DOWNLOAD_S)
    # With an empty archive folder it also names packages that are already downloaded.
    listed = _apt(cache, ["-o", f"Dir::Cache::archives={cache}/none", "--print-uris", "install", *packages], _UPDATE_S)
    names = re.findall(r"^'[^']*' (\S+\.deb) ", listed, re.M)
    if not names:
        raise PeerUnavailable(f"apt names no package for {', '.join(packages)} of Debian {suite}, {_WITHOUT}")
    return [cache / "archives" / name for name in names]


def _apt(cache: Path, arguments: Sequence[str], within_s: float) -> str:
    # The error option makes an update fail if no server was reached; by default it only warns.
    command = ["apt-get", "-qq", "-y", "-o", "APT::Update::Error-Mode=any", *arguments]
    try:
        ran = subprocess.run(
            command, env={**os.environ, "APT_CONFIG": str(cache / "apt.conf"), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=within_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(_unreachable(f"{' '.join(command)} took more than {within_s:.0f} s")) from None
    if ran.returncode:
        raise PeerUnavailable(_unreachable(f"{' '.join(command)} failed:\n{ran.stderr.strip()[-1500:]}\n"))
    return ran.stdout


def _unreachable(what: str) -> str:
    return (
        f"{what}\nIs there a network, and a proxy in apt's settings if one is needed? Set {MIRROR_VARIABLE} to use "
        f"another mirror that has the suite, {_WITHOUT}"
    )


def _unpack(archives: Iterable[Path], folder: Path, wanted: str) -> None:
    """Unpack into a new folder, and put it in place when it is complete."""
    work = folder.with_name(folder.name + ".new")
    shutil.rmtree(work, ignore_errors=True)
    for archive in archives:
        if not _UNUSED.match(archive.name):
            try:
                subprocess.run(["dpkg-deb", "-x", archive, work], check=True, timeout=_UNPACK_S)
            except subprocess.SubprocessError as error:
                said = f"{error}: is there room for 300 MB in {folder.parent}? Free some, {_WITHOUT}"
                raise PeerUnavailable(said) from None
    for name in _UNUSED_FOLDERS:
        shutil.rmtree(work / "usr" / "share" / name, ignore_errors=True)
    if not (Unpacked(work).libraries / "ld-linux-x86-64.so.2").exists():
        raise PeerUnavailable(f"no dynamic loader in the packages of {folder.name}: their layout changed, {_WITHOUT}")
    (work / _STAMP).write_text(wanted)
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)
