"""The file of keys: what is read, what is refused and how it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from telephony_tts.ops.keys.key import digest_of
from telephony_tts.ops.keys.key_file import MAX_KEYS, read_keys
from telephony_tts.runtime.errors import ConfigError

SHA = digest_of(b"other-token").hex()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    return path


def refused(tmp_path: Path, text: str, tokens: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as raised:
        read_keys(write(tmp_path, text), tokens)
    return raised.value.message


def test_a_key_supervises_only_if_its_entry_says_so(tmp_path: Path) -> None:
    text = "keys: {boss: {token: one, supervisor: true}, bot: {token: two}, careful: {token: three, supervisor: false}}"
    assert [key.name for key in read_keys(write(tmp_path, text)) if key.supervises] == ["boss"]


def test_a_key_may_be_a_media_leg_unless_its_entry_says_no(tmp_path: Path) -> None:
    text = "keys: {pbx: {token: one}, bots: {token: two, media_legs: false}, both: {token: three, media_legs: true}}"
    refusals = [key.media_refusal for key in read_keys(write(tmp_path, text))]
    assert refusals == [None, "key bots may not be a media leg (media_legs in keys.file)", None]
    assert "keys.a.media_legs" in refused(tmp_path, "keys: {a: {token: one, media_legs: [bot]}}")


def test_keys_with_all_limits_and_with_none(tmp_path: Path) -> None:
    acme, other = read_keys(
        write(
            tmp_path,
            f"""
keys:
  acme:
    token: acme-token
    calls: 20
    chars_per_day: 1000000
    voices: [heart, "espeak/de"]
    lexicons: [brands]
    experiments: []
  other:
    sha256: {SHA}
""",
        )
    )
    assert acme.digest == digest_of(b"acme-token") and other.digest == digest_of(b"other-token")
    assert (acme.calls, acme.chars_per_day, acme.voices) == (20, 1_000_000, ("heart", "espeak/de"))
    assert (acme.lexicons, acme.experiments) == (("brands",), ())
    assert (other.calls, other.chars_per_day, other.voices, other.lexicons, other.experiments) == (None,) * 5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "keys: the file has no key"),
        ("keys: {}", "keys: the file has no key"),
        ("keys: [a]", "expected names of keys"),
        ("key: {}", "'key': unknown key"),
        ("keys: {a: {}}", "keys.a.token: expected either token or sha256"),
        (f"keys: {{a: {{token: x, sha256: {SHA}}}}}", "keys.a.token: expected either token or sha256"),
        ("keys: {a: {token: 'two words'}}", "keys.a.token: the value (not shown) is wrong; expected visible ASCII"),
        ("keys: {a: {sha256: abc}}", "keys.a.sha256: the value (not shown) is wrong; expected 64 hexadecimal"),
        ("keys: {a: {token: x, calls: -1}}", "keys.a.calls: -1 is wrong"),
        ("keys: {a: {token: x, calls: many}}", "keys.a.calls: 'many' is wrong"),
        ("keys: {a: {token: x, voices: heart}}", "keys.a.voices: 'heart' is wrong; expected a list of text"),
        ("keys: {a: {token: x, voice: heart}}", 'keys.a.voice: unknown key. Did you mean "voices"?'),
        ("keys: {'a b': {token: x}}", "keys: 'a b' is no name"),
        ("keys: {a: {token: x}, b: {token: x}}", "keys.b: it has the same token as keys.a"),
        ("keys: {a: {token: x}, a: {token: y}}", "a: given twice"),
        ("keys: {a: {token: x", "not YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    assert told in refused(tmp_path, text)


def test_all_problems_are_told_at_once_and_no_secret(tmp_path: Path) -> None:
    told = refused(tmp_path, "keys: {a: {token: 'my secret', calls: -1}, b: {sha256: mysecret}}")
    assert "3 problems" in told and "secret'" not in told and "mysecret" not in told


def test_a_token_of_the_server_cannot_be_that_of_a_key(tmp_path: Path) -> None:
    told = refused(tmp_path, "keys: {a: {token: shared}}", ("shared",))
    assert "keys.a: it has the same token as server.tokens" in told and "shared" not in told


def test_there_is_a_most_of_keys(tmp_path: Path) -> None:
    text = "keys:\n" + "".join(f"  k{n}: {{token: t{n}}}\n" for n in range(MAX_KEYS + 1))
    assert f"the limit is {MAX_KEYS}" in refused(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "gone.yaml")
