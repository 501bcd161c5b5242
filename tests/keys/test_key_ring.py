"""Keys: which token is whose, what a key may use, and the characters of a day."""

from __future__ import annotations

import pytest

from telephony_tts.ops.keys.key import NO_KEY, CharacterUse, Key, KeyRing, digest_of

ACME = Key("acme", digest_of(b"acme-token"), chars_per_day=100)


def test_a_token_leads_to_its_key() -> None:
    ring = KeyRing(("plain",), (ACME,))
    found = ring.find(b"plain")
    assert found is not None and found.name == "" and found.chars_per_day is None
    assert ring.find(b"acme-token") is ACME
    for wrong in (b"", b"acme", b"acme-token ", b"plain\0", b"PLAIN"):
        assert ring.find(wrong) is None


def test_only_the_tokens_of_supervisors_supervise() -> None:
    ring = KeyRing(("plain", "boss"), (ACME,), supervisor_tokens=("boss",))
    found = {token: ring.find(token) for token in (b"plain", b"boss", b"acme-token")}
    assert {token for token, key in found.items() if key is not None and key.supervises} == {b"boss"}


def test_without_keys_everyone_is_let_in_and_with_one_only_its_owner() -> None:
    ring = KeyRing()
    assert ring.is_open and ring.find(b"whatever") is NO_KEY
    ring.replace((ACME,))
    assert not ring.is_open and ring.find(b"whatever") is None


def test_keys_that_are_replaced_are_not_found_any_more() -> None:
    ring = KeyRing(("plain",), (ACME,))
    other = Key("other", digest_of(b"other-token"))
    ring.replace((other,))
    assert ring.find(b"acme-token") is None and ring.named("acme") is None
    assert ring.find(b"other-token") is other and ring.find(b"plain") is not None


def test_every_key_is_compared_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time taken must not tell which key was nearly right."""
    from telephony_tts.ops.keys import key as module

    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    ring = KeyRing(("a", "b"), (ACME,))
    for token in (b"a", b"acme-token", b"wrong"):
        compared.clear()
        ring.find(token)
        assert sorted(compared) == sorted([digest_of(b"a"), digest_of(b"b"), ACME.digest])


def test_no_secret_is_shown() -> None:
    assert "acme-token" not in repr(ACME) and ACME.digest.hex() not in repr(ACME)
    assert repr(ACME.digest) not in repr(ACME)


def test_what_a_key_may_use() -> None:
    key = Key("k", voices=("heart", "espeak/de"), lexicons=("brands",), experiments=())
    assert key.allows_voice("hibari", "heart") and key.allows_voice("espeak", "de")
    assert not key.allows_voice("cosyvoice2", "de") and not key.allows_voice("hibari", "michael")
    assert key.allows_lexicon("brands") and not key.allows_lexicon("cities")
    assert not key.allows_experiment("any")
    assert NO_KEY.allows_voice("x", "y") and NO_KEY.allows_lexicon("z") and NO_KEY.allows_experiment("w")


def test_the_characters_of_a_day_are_limited_and_begin_anew_at_midnight() -> None:
    now_s = 86_400.0 * 3 + 10
    use = CharacterUse(lambda: now_s)
    assert use.spend(ACME, 60) is None
    why = use.spend(ACME, 41)
    assert why is not None and "key acme may use 100 characters a day" in why and "has used 60" in why
    assert use.spend(ACME, 40) is None, "what was refused did not count"
    assert use.spend(ACME, 1) is not None
    now_s += 86_400
    assert use.spend(ACME, 100) is None


def test_characters_are_counted_without_a_limit_but_not_without_a_name() -> None:
    use = CharacterUse(lambda: 0.0)
    assert use.spend(Key("free"), 10**9) is None and use.spend(NO_KEY, 10**9) is None
    assert use.today() == {"free": 10**9}


def test_characters_of_other_processes_count_if_they_are_of_this_day() -> None:
    use = CharacterUse(lambda: 86_400.0 * 5)
    use.of_others = lambda: (
        {"day": {"day": 5}, "calls": {}, "chars": {"acme": 70}},
        {"day": {"day": 4}, "calls": {}, "chars": {"acme": 1000}},
        {"day": {"day": 5}, "calls": {}, "chars": {"other": 1000}},
    )
    assert use.spend(ACME, 31) is not None
    assert use.spend(ACME, 30) is None


def test_a_key_that_was_read_again_has_used_what_it_had_used() -> None:
    ring = KeyRing((), (ACME,), lambda: 0.0)
    assert ring.characters.spend(ACME, 90) is None
    ring.replace((Key("acme", ACME.digest, chars_per_day=95),))
    again = ring.find(b"acme-token")
    assert again is not None and ring.characters.spend(again, 6) is not None
