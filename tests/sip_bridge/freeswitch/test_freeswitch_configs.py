"""The files for FreeSWITCH match each other, the bridge and the server. tests/pbx has a FreeSWITCH read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sip_bridge.config import load
from sip_bridge.freeswitch.config import ESL_PASSWORD_VARIABLE, FreeSwitchConfig
from sip_bridge.freeswitch.ownership import _LAST_RESORT_S
from telephony_tts.app.config import doors
from telephony_tts.doors.freeswitch.codec import CALL_HEADER, CALLER_HEADERS
from telephony_tts.runtime.errors import ConfigError

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "configs" / "freeswitch"
UUID = "7dd5e34e-5db4-4edb-a166-757e5d29b941"


def variables() -> dict[str, str]:
    tree = ElementTree.parse(FOLDER / "telephony_tts_vars.xml")
    given = [element.attrib["data"] for element in tree.iter("X-PRE-PROCESS") if element.attrib["cmd"] == "set"]
    return dict(each.split("=", 1) for each in given)


def actions() -> list[tuple[str, str]]:
    """The actions of the dialplan, with the variables of a call filled in."""
    known = {f"$${{{name}}}": value for name, value in variables().items()}
    known |= {"${uuid}": UUID, "${tts_from}": "+4930123456", "${destination_number}": "700"}
    found = []
    for element in ElementTree.parse(FOLDER / "telephony_tts_dialplan.xml").iter("action"):
        data = element.attrib.get("data", "")
        for name, value in known.items():
            data = data.replace(name, value)
        found.append((element.attrib["application"], data))
    return found


def test_every_global_variable_that_is_used_is_set() -> None:
    text = "".join(path.read_text() for path in sorted(FOLDER.iterdir()))
    assert set(re.findall(r"\$\$\{(\w+)\}", text)) == set(variables())


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_freeswitchs_preprocessor_reads_every_line_as_intended(path: Path) -> None:
    """The preprocessor works line by line before the XML is parsed (switch_xml.c).

    So it also runs lines in comments, drops lines with an `include` tag, and copies the text after a variable unread.
    """
    text = path.read_text()
    comments = "".join(re.findall(r"<!--.*?-->", text, re.DOTALL))
    assert "x-pre-process" not in comments.lower()
    for line in map(str.strip, text.splitlines()):
        assert len(line) < 2000
        assert not re.search(r"</?include>", line) or re.fullmatch(r"</?include>", line)
        assert "pre-process" not in line.lower() or re.fullmatch(r'<X-PRE-PROCESS cmd="set" data="[^"]+"/>', line)
        assert not re.search(r"\$\$\{\w+\}\$", line)


def test_the_dialplan_names_the_call_and_starts_the_stream_last() -> None:
    done = actions()
    assert [name for name, _ in done if name != "set"] == ["answer", "park"]
    settings = dict(data.split("=", 1) for name, data in done if name == "set")
    headers = json.loads(settings["STREAM_EXTRA_HEADERS"])
    assert headers == {
        CALL_HEADER: UUID, "X-From": "+4930123456", "X-To": "700", "Authorization": "Bearer none",
    }  # fmt: skip
    assert set(CALLER_HEADERS) <= set(headers)
    assert settings["send_silence_when_idle"] == "-1", "else no packet goes to the caller while the bot is silent"
    assert done.index(("set", "send_silence_when_idle=-1")) < done.index(("park", "")), "park reads it once"
    assert settings["playback_terminators"] == "none" and settings["STREAM_SUPPRESS_LOG"] == "true"
    # The bridge's side of these is ownership.py. The entry is there before the server can say anything about the call.
    assert settings["tts_entry"] == f"${{hash(insert/telephony_tts/{UUID}/uuid_audio_stream)}}"
    assert settings["api_hangup_hook"] == f"hash delete/telephony_tts/{UUID}"
    assert settings["tts_last_resort"] == f"${{sched_api(+{_LAST_RESORT_S} telephony_tts_{UUID} uuid_kill {UUID})}}"
    names = [data.partition("=")[0] for _, data in done]
    assert names.index("tts_entry") < names.index("tts_stream")
    url = variables()["telephony_tts_url"]
    assert settings["tts_stream"] == f"${{uuid_audio_stream({UUID} start {url} mono 8k)}}"
    ways = {f"/media/{door.name}" for door in doors() if door.media is not None}
    assert url.endswith("/media/freeswitch") and "/media/freeswitch" in ways
    assert [name for name, data in done].index("answer") < [data[:10] for _, data in done].index("tts_stream")


@pytest.mark.parametrize("number", ['1","X-Call":"other', "a b", "", '"', "4930\n", "1" * 33])
def test_a_callers_number_with_other_characters_is_not_passed_on(number: str) -> None:
    condition = next(
        each for each in ElementTree.parse(FOLDER / "telephony_tts_dialplan.xml").iter("condition")
        if each.attrib.get("field") == "caller_id_number"
    )  # fmt: skip
    assert condition.attrib["break"] == "never"
    # Like PCRE, whose dollar also matches before a final line break; FreeSWITCH's headers have none.
    assert re.fullmatch(condition.attrib["expression"].strip("^$"), number) is None


def test_the_event_socket_has_the_bridges_default_address() -> None:
    tree = ElementTree.parse(FOLDER / "event_socket.conf.xml")
    given = {each.attrib["name"]: each.attrib["value"] for each in tree.iter("param")}
    assert (given["listen-ip"], int(given["listen-port"])) == (FreeSwitchConfig().host, FreeSwitchConfig().port)
    assert given["password"] == "$${telephony_tts_esl_password}" and given["apply-inbound-acl"] == "loopback.auto"


@pytest.mark.parametrize("page", ["docs/freeswitch.md", "docs/zh/freeswitch.md"])
def test_the_files_that_the_page_copies_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"configs/freeswitch/(\w[\w.]*)\s", text)) == {path.name for path in FOLDER.iterdir()}


# ------------------------------------------------------------------- the bridge's settings


def test_the_password_comes_from_the_environment_and_is_not_shown() -> None:
    config = load(None, {"freeswitch.enabled": True}, {ESL_PASSWORD_VARIABLE: "very-secret"})
    assert config.freeswitch.password == "very-secret" and "very-secret" not in repr(config)


@pytest.mark.parametrize("password", [None, "two words", "line\nend", "käse", ""])
def test_a_password_that_cannot_be_sent_is_refused(password: str | None) -> None:
    with pytest.raises(ConfigError, match=r"freeswitch\.password") as caught:
        load(None, {"freeswitch.enabled": True, "freeswitch.password": password}, {})
    assert password in (None, "") or password not in str(caught.value)
