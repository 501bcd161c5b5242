"""The file of experiments (`experiments.file`): YAML, read strictly. It is read again when it changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from telephony_tts.experiments.arms import CONTROL, SPEECH, Arm, Experiment
from telephony_tts.experiments.sums import FEWEST_CALLS, StopRules
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.runtime.schema import Between, read_section, show
from telephony_tts.runtime.settings_tree import raise_problems, read_tree
from telephony_tts.session.settings import BargeInSettings, SpeechSettings

MAX_ARMS = 8
"""Of all experiments together, the arm `control` of each included: each arm is some 50 series of the metrics."""
_CHANGEABLE = {
    "speech": SPEECH,
    "barge_in": (
        "min_speech_ms", "hold_off_ms", "silence_ms", "action", "false_interruption_ms", "resume_after_ms",
        "step_back_ms",
    ),
}  # fmt: skip
"""The settings of these sections that an arm can change. The others belong to the peer, or need a model."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_Least = Annotated[float | None, Between(0, 1e6)]


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """One arm. `speech` and `barge_in` are here for the list of allowed keys; `_changed` reads them."""

    share: Annotated[float, Between(0, 100)] = 0.0
    voice: str | None = None
    voices: Mapping[str, str] = field(default_factory=dict)
    engine: str | None = None
    speech: object = None
    barge_in: object = None

    def conflicts(self) -> Iterator[str]:
        if not self.share:
            yield "share: missing; expected the percentage of the calls, such as 10"


@dataclass(frozen=True, slots=True)
class StopSettings:
    """The most per turn."""

    after_calls: Annotated[int, Between(FEWEST_CALLS, 1e6)] = 50
    first_audio_ms: _Least = None
    underruns: _Least = None
    interruptions: _Least = None
    errors: _Least = None

    def conflicts(self) -> Iterator[str]:
        if all(getattr(self, item.name) is None for item in fields(self) if item.name != "after_calls"):
            yield "expected at least one of first_audio_ms, underruns, interruptions and errors"


@dataclass(frozen=True, slots=True)
class ExperimentSettings:
    """One experiment. `arms` and `stop` are here for the list of allowed keys; they are read one by one."""

    arms: object = None
    keys: tuple[str, ...] | None = None
    numbers: tuple[str, ...] | None = None
    stop: object = None


@dataclass(frozen=True, slots=True)
class ExperimentFileLayout:
    """The one section of the file: experiments by name."""

    experiments: dict[str, Any]


class ExperimentReader:
    """Reads the file for a server with these `engines` and these settings, which an arm changes."""

    def __init__(self, engines: Iterable[str], speech: SpeechSettings, barge_in: BargeInSettings) -> None:
        self._engines = tuple(engines)
        self._base = {"speech": _values(SpeechSettings, speech), "barge_in": _values(BargeInSettings, barge_in)}

    def read(self, path: Path) -> tuple[Experiment, ...]:
        """The experiments of a file. Raises ConfigError, which lists all problems."""
        problems: list[str] = []
        tree = read_tree(str(path), ExperimentFileLayout, problems)
        problems += [f"{show(name)}: unknown key. Allowed here: experiments" for name in tree if name != "experiments"]
        entries = tree.get("experiments") or {}
        if not isinstance(entries, dict):
            expected = "expected names of experiments with their arms"
            raise ConfigError(f"{path}: experiments: {expected}, found {show(entries)}")
        experiments = [
            found for name, raw in entries.items() if (found := self._experiment(name, raw, problems)) is not None
        ]
        n_arms = sum(len(each.arms) for each in experiments)
        if n_arms > MAX_ARMS:
            problems.append(f"experiments: {n_arms} arms together, control included; the limit is {MAX_ARMS}")
        raise_problems(str(path), problems)
        return tuple(experiments)

    def _experiment(self, name: object, raw: object, problems: list[str]) -> Experiment | None:
        where = f"experiments.{name}"
        if not _is_name(name, "experiments", problems) or not isinstance(raw, dict):
            if _is_text_name(name):
                problems.append(f"{where}: expected arms, and keys, numbers or stop; found {show(raw)}")
            return None
        raw = dict(raw)
        arms_given, stop_given = raw.pop("arms", None), raw.pop("stop", None)
        settings = read_section(ExperimentSettings, raw, problems, where)
        stop = None
        if stop_given is not None:
            stop = StopRules(**asdict(read_section(StopSettings, stop_given, problems, f"{where}.stop")))
        if not isinstance(arms_given, dict) or not arms_given:
            problems.append(f"{where}.arms: expected names of arms with their share, found {show(arms_given)}")
            return None
        arms = [
            arm for arm_name, given in arms_given.items()
            if (arm := self._arm(arm_name, given, f"{where}.arms", problems)) is not None
        ]  # fmt: skip
        total = sum(arm.share for arm in arms)
        if total > 100 + 1e-9:
            problems.append(f"{where}.arms: the shares are {total:g} % together; at most 100 % can be given away")
        elif total < 100 - 1e-9:
            arms.append(Arm(CONTROL, 100 - total))
        return Experiment(str(name), tuple(arms), settings.keys, settings.numbers, stop)

    def _arm(self, name: object, raw: object, where: str, problems: list[str]) -> Arm | None:
        if not _is_name(name, where, problems):
            return None
        where = f"{where}.{name}"
        if name == CONTROL:
            problems.append(f"{where}: this name is for the calls that no arm takes; give the arm another one")
            return None
        if not isinstance(raw, dict):
            problems.append(f"{where}: expected share, and what the arm changes; found {show(raw)}")
            return None
        raw = dict(raw)
        changed = {
            section: self._changed(section, raw.pop(section, None), f"{where}.{section}", problems)
            for section in ("speech", "barge_in")
        }
        settings = read_section(ArmSettings, raw, problems, where)
        if settings.engine is not None and settings.engine not in self._engines:
            problems.append(
                f"{where}.engine: this server has no engine {settings.engine!r}; it has {', '.join(self._engines)}"
            )
        if settings.engine is not None and settings.voice is not None:
            problems.append(f"{where}.engine: it does not go with voice; name the voice as {settings.engine}/VOICE")
        if settings.share and raw.keys() <= {"share"} and not any(changed.values()):
            problems.append(f"{where}: it changes nothing; expected voice, voices, engine, speech or barge_in")
        return Arm(
            str(name), settings.share, settings.voice, settings.voices, settings.engine, changed["speech"],
            changed["barge_in"],
        )  # fmt: skip

    def _changed(self, section: str, raw: object, where: str, problems: list[str]) -> dict[str, object]:
        """What an arm changes in a section. It is checked together with the server's own settings."""
        if raw is None:
            return {}
        if not isinstance(raw, dict):
            problems.append(f"{where}: {show(raw)} is not a section")
            return {}
        if fixed := [name for name in raw if name not in _CHANGEABLE[section]]:
            names = ", ".join(map(str, fixed))
            problems.append(f"{where}: an arm cannot change {names}; it can change {', '.join(_CHANGEABLE[section])}")
            return {}
        kind = SpeechSettings if section == "speech" else BargeInSettings
        whole = read_section(kind, {**self._base[section], **raw}, problems, where)
        return {name: getattr(whole, name) for name in raw if hasattr(whole, name)}


def _values(section: type[SpeechSettings] | type[BargeInSettings], settings: object) -> dict[str, object]:
    """The settings of a section as a file has them. `settings` may have more."""
    return {item.name: getattr(settings, item.name) for item in fields(section)}


def _is_text_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _is_name(name: object, where: str, problems: list[str]) -> bool:
    if _is_text_name(name):
        return True
    problems.append(f"{where}: {show(name)} is no name; expected up to 40 letters, digits, '_', '.' and '-'")
    return False
