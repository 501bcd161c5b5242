"""How the tests fetch Debian packages: from which mirror, only once, and the errors. No network is needed."""

from __future__ import annotations

import platform
import threading
from pathlib import Path

import debian_packages
import pytest
from debian_packages import MIRROR_VARIABLE, PeerUnavailable, install, mirror

pytestmark = pytest.mark.slow

OS_RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_CODENAME=bookworm\n'


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)
    (tmp_path / "apt" / "sources.list.d").mkdir(parents=True)
    (tmp_path / "os-release").write_text(OS_RELEASE)
    return tmp_path


def found(etc: Path) -> str:
    return mirror(etc / "apt", etc / "os-release")


def test_the_mirror_is_the_machines_own_debian_mirror(etc: Path) -> None:
    folder = etc / "apt" / "sources.list.d"
    (folder / "a.sources").write_text("Types: deb\nURIs: http://vendor.example/x\nSuites: nodistro\nComponents: main\n")
    (folder / "debian.sources").write_text(
        "# deb http://no.example\nTypes: deb deb-src\n# a snapshot\nURIs: http://mirror.example/debian\n"
        "Suites: bookworm\n bookworm-updates\nComponents: main contrib\n\n"
        "Types: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\nComponents: main\n"
    )
    assert found(etc) == "http://mirror.example/debian"


def test_a_disabled_source_is_not_used(etc: Path) -> None:
    stanza = "Types: deb\nURIs: http://off.example\nSuites: bookworm\nComponents: main\nEnabled: no\n"
    (etc / "apt" / "sources.list.d" / "debian.sources").write_text(stanza)
    with pytest.raises(PeerUnavailable, match=MIRROR_VARIABLE):
        found(etc)


def test_the_one_line_format_is_read_too(etc: Path) -> None:
    (etc / "apt" / "sources.list").write_text(
        "# deb http://no.example bookworm main\ndeb-src http://no.example bookworm main\n"
        "deb http://no.example/security bookworm-security main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib\n"
    )
    assert found(etc) == "http://mirror.example/debian"


def test_a_mirror_can_be_configured(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR_VARIABLE, "http://named.example/debian")
    assert found(etc) == "http://named.example/debian"


def test_no_source_says_what_to_do(etc: Path) -> None:
    with pytest.raises(PeerUnavailable, match=f"set {MIRROR_VARIABLE}.*not peer"):
        found(etc)


def test_another_processor_or_no_apt_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(platform, "machine", lambda: "aarch64")
        with pytest.raises(PeerUnavailable, match=r"amd64.*aarch64.*not peer"):
            install(tmp_path / "asterisk", ["asterisk"], "forky")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerUnavailable, match=r"no apt-get and no dpkg-deb.*not peer"):
        install(tmp_path / "asterisk", ["asterisk"], "forky")


def test_no_network_is_reported_and_leaves_nothing_partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server listens on the port. apt's own retries are bounded and take a second each."""
    monkeypatch.setenv(MIRROR_VARIABLE, "http://127.0.0.1:1/debian")
    monkeypatch.setattr(debian_packages, "_SETTINGS", debian_packages._SETTINGS.replace('Retries "3"', 'Retries "0"'))
    with pytest.raises(PeerUnavailable, match=r"(?s)apt-get.*update failed.*127\.0\.0\.1.*Is there a network"):
        install(tmp_path / "asterisk", ["asterisk"], "forky")
    assert not (tmp_path / "asterisk").exists()


def test_two_at_once_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first and uses its result. A third call does not fetch at all."""
    in_the_middle, go_on = threading.Event(), threading.Event()
    n_downloads = 0

    def download(cache: Path, packages: object, suite: str) -> list[Path]:
        nonlocal n_downloads
        n_downloads += 1
        cache.mkdir()
        in_the_middle.set()
        assert go_on.wait(10)
        return []

    def unpack(archives: object, folder: Path, wanted: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / ".installed").write_text(wanted)

    monkeypatch.setattr(debian_packages, "_require_tools", lambda: None)
    monkeypatch.setattr(debian_packages, "_download", download)
    monkeypatch.setattr(debian_packages, "_unpack", unpack)
    waits = threading.Event()
    monkeypatch.setattr(debian_packages, "_tell", lambda line: waits.set() if "waiting" in line else None)
    folder = tmp_path / "asterisk"
    both = [threading.Thread(target=install, args=(folder, ["asterisk"], "forky")) for _ in range(2)]
    both[0].start()
    assert in_the_middle.wait(10)
    both[1].start()
    assert waits.wait(10), "the second tells that it waits"
    go_on.set()
    for thread in both:
        thread.join(10)
    install(folder, ["asterisk"], "forky")
    assert n_downloads == 1 and not folder.with_name("asterisk.cache").exists()
    install(folder, ["asterisk", "another"], "forky")
    assert n_downloads == 2, "other packages are another installation"


def test_a_package_that_cannot_be_unpacked_is_reported_and_the_old_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "asterisk"
    folder.mkdir()
    (folder / "before").touch()
    broken = tmp_path / "broken_1_amd64.deb"
    broken.write_bytes(b"this is no package")
    monkeypatch.setattr(debian_packages, "_require_tools", lambda: None)
    monkeypatch.setattr(debian_packages, "_download", lambda *_: [broken])
    with pytest.raises(PeerUnavailable, match=r"broken_1_amd64.*is there room"):
        install(folder, ["asterisk"], "forky")
    assert (folder / "before").exists()
