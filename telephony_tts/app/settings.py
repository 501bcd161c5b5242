"""What the transport gets at the start, made from the configuration: settings, keys, lexicons, experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from telephony_tts.app.config import Config, doors, lexicon_names
from telephony_tts.app.engines import voice_records
from telephony_tts.app.plugins import PLUGINS
from telephony_tts.app.tls import tls_context
from telephony_tts.engines.api import language_prefix
from telephony_tts.engines.catalog import Catalog
from telephony_tts.experiments.arms import Experiment
from telephony_tts.experiments.experiment_file import ExperimentReader
from telephony_tts.experiments.running import voices_of
from telephony_tts.ops.keys.key import Key, KeyRing
from telephony_tts.ops.keys.key_file import read_keys
from telephony_tts.ops.lexicon_files import LexiconFiles
from telephony_tts.ops.watched_file import WatchedFile
from telephony_tts.recording.live import Recordings
from telephony_tts.runtime.clock import unix_s
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.runtime.settings_tree import raise_problems
from telephony_tts.session.lexicons import CallLexicon
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.door import Doors
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.transport.sound_store import SoundStore

_SOUND_WAIT_SHARE = 0.8
"""A sound that is late is left out. The wait must end before `engines.timeout_s`, which would end the turn."""


def open_lexicons(config: Config) -> LexiconFiles | None:
    """The lexicons of the configuration, None without any. Raises ConfigError."""
    return LexiconFiles(config.lexicons.files) if config.lexicons.files else None


def session_settings(config: Config, lexicons: LexiconFiles | None = None) -> SessionSettings:
    """The settings with which a call starts."""
    names = config.lexicons
    return SessionSettings.of(
        config.speech,
        control_tokens=tuple(
            token for plugin in PLUGINS for token in plugin.control_tokens(plugin.own(config.engines))
        ),
        engine_timeout_ms=round(config.engines.timeout_s * 1000),
        barge_in=config.barge_in,
        caller=config.caller,
        dtmf=config.dtmf,
        limits=config.limits,
        lexicon=None if lexicons is None else CallLexicon(
            lexicons.shelf,
            {language_prefix(lang): lexicon_names(listed) for lang, listed in names.languages.items()},
            {voice: lexicon_names(listed) for voice, listed in names.voices.items()},
        ),
    )


def open_keys(config: Config) -> WatchedFile[tuple[Key, ...]] | None:
    """The named keys of the configuration, None without a file. Raises ConfigError."""
    if config.keys.file is None:
        return None
    return WatchedFile("keys", Path(config.keys.file), partial(read_keys, tokens=config.server.tokens))


def open_experiments(
    config: Config, catalog: Catalog, has_started: Callable[[], bool]
) -> WatchedFile[tuple[Experiment, ...]] | None:
    """The experiments of the configuration, None without a file. Raises ConfigError, also for an engine that the
    catalog lacks. The voices are known when the engines have started: until then `check_voices` is left to the
    caller."""
    if config.experiments.file is None:
        return None
    reader = ExperimentReader([engine.name for engine in catalog.engines], config.speech, config.barge_in)

    def read(path: Path) -> tuple[Experiment, ...]:
        experiments = reader.read(path)
        if has_started():
            check_voices(experiments, catalog, str(path))
        return experiments

    return WatchedFile("experiments", Path(config.experiments.file), read)


def check_voices(experiments: Sequence[Experiment], catalog: Catalog, source: str) -> None:
    """Raises ConfigError if an arm names a voice that no engine has."""
    known = {name for voice in catalog.voices for name in (voice.name, f"{voice.engine}/{voice.name}")}
    missing = [(where, voice) for where, voice in voices_of(experiments) if voice not in known]
    raise_problems(source, [f"{where}: no engine of this server has a voice {voice!r}" for where, voice in missing])


def transport_settings(
    config: Config, lexicons: LexiconFiles | None = None, keys: WatchedFile[tuple[Key, ...]] | None = None
) -> TransportSettings:
    """The settings of the transport. `keys`: the named keys.

    Raises ConfigError for a public server without a token that `server.open` does not allow, and for a certificate
    that cannot be used.
    """
    server = config.server
    why = why_tokens_are_needed(config)
    if why is not None and not server.open:
        raise ConfigError(
            f"{why}, and no token is set, so anyone could connect as a bot. Make a token (openssl rand -hex 32) and "
            "put it into TELEPHONY_TTS_TOKENS or into a file named in server.tokens_file, or name a file of keys in "
            "keys.file. To let everyone in, set "
            "server.open: true (--set server.open=true)"
        )
    return TransportSettings(
        speech=session_settings(config, lexicons),
        server=server,
        limits=config.limits,
        bot=config.bot,
        vendors=config.vendors,
        doors=Doors(doors()),
        sections=config.door_sections,
        find_sound=SoundStore(config.sounds, _SOUND_WAIT_SHARE * config.engines.timeout_s).find,
        token_lexicons={token: lexicon_names(listed) for token, listed in config.lexicons.tokens.items()},
        key_lexicons={name: lexicon_names(listed) for name, listed in config.lexicons.named_keys.items()},
        keys=KeyRing(server.tokens, () if keys is None else keys.content, unix_s, server.supervisor_tokens),
        owners=voice_records(config),
        tls=None if server.tls.cert is None else tls_context(server.tls),
    )


def why_tokens_are_needed(config: Config) -> str | None:
    """What makes the server public, if it is public and has no tokens. Otherwise None."""
    server = config.server
    if config.needs_token:
        return None
    if not server.is_on_loopback:
        return f"server.host is {server.host}, which other machines can reach"
    if server.is_public_elsewhere:
        return f"server.public_url is {server.public_url}, so other machines can reach this server"
    for door in doors():
        if door.secret and getattr(config.door_sections[door.name], door.secret) is not None:
            # The carrier connects from outside: a proxy or a tunnel leads to the loopback address.
            return f"{door.name}.{door.secret} is set, which is for a server on the internet"
    return None


def open_recordings(config: Config) -> Recordings | None:
    """The folder of recordings, None without one. It removes old ones, also if no call is recorded any more. Raises
    ConfigError if the folder cannot be written."""
    if config.recordings.folder is None:
        return None
    recordings = Recordings(config.recordings)
    recordings.open()
    return recordings
