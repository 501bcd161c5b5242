"""The command telephony-sip-bridge."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

# Before numpy is imported anywhere: the bridge multiplies no matrices, and OpenBLAS would start a thread per core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from sip_bridge.ari.config import ORIGINATE_TOKEN_VARIABLE, PASSWORD_VARIABLE
from sip_bridge.config import TOKEN_VARIABLE, BridgeConfig, load
from telephony_tts.cli.settings import overrides
from telephony_tts.runtime.errors import TelephonyTTSError

_PROGRAM = "telephony-sip-bridge"

_EPILOG = f"""examples:
  {_PROGRAM} --config configs/sip_bridge.yaml --check      check the configuration
  {_PROGRAM} --config configs/sip_bridge.yaml
  {_PROGRAM} --set server.url=ws://10.1.0.5:8080/media/native --set audiosocket.host=0.0.0.0 \\
      --set 'audiosocket.allowed=["10.1.0.7"]'
  {TOKEN_VARIABLE}=secret {_PROGRAM} --config configs/sip_bridge.yaml

In Asterisk's extensions.conf, with a UUID for each call; the bot sees the UUID as the call's name:
  exten => 100,1,Answer()
   same => n,Set(CALL_UUID=${{UUID()}})
   same => n,AudioSocket(${{CALL_UUID}},127.0.0.1:9092)
   same => n,Hangup()

With ari.enabled (and the password in {PASSWORD_VARIABLE}) the dialplan needs one line:
  exten => 102,1,Stasis(telephony-tts)
and POST /originate on the HTTP port makes outgoing calls (token in {ORIGINATE_TOKEN_VARIABLE}).

Then a bot joins the call with ws://SERVER/v1/stream?call=UUID, or the server dials it (bot.url).
SIGTERM and Ctrl-C refuse new calls and let live calls go on for up to drain_s; a second signal ends them at once.
Exit status: 0 stopped, 1 failed, 2 wrong flag, configuration or port.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        config = load(arguments.config, overrides(arguments))
        if arguments.check:
            print(_summary(config))
            return 0
        from sip_bridge import app

        app.run(config, lambda listening: _announce(listening.audiosocket_port, listening.http_port, config))
    except TelephonyTTSError as error:
        print(f"{_PROGRAM}: {error.message}", file=sys.stderr)
        return 2 if error.code == "bad_config" else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Connects calls of Asterisk (AudioSocket, ARI) and FreeSWITCH to a telephony-tts server: the caller"
        " hears the bot, and the bot hears the caller.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML settings (see configs/sip_bridge.yaml)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a setting, e.g. audiosocket.port=9192"
    )
    parser.add_argument("--check", action="store_true", help="read the settings, print what they mean, and exit")
    return parser


def _summary(config: BridgeConfig) -> str:
    where, http = config.audiosocket, config.http
    rate = "the caller's rate" if where.rate_hz is None else f"{where.rate_hz} Hz"
    return (
        "the configuration is right:\n"
        f"  AudioSocket   {where.host}:{where.port}, for {', '.join(where.allowed)}, at most {where.max_calls} calls\n"
        f"{_ari(config)}"
        f"{_freeswitch(config)}"
        f"  server        {_without_secrets(config.server.url)}"
        f", {'with' if config.server.token else 'without'} a token, {rate}, {config.server.lead_ms} ms ahead\n"
        f"  health        http://{http.host}:{http.port}/readyz and /metrics"
    )


def _ari(config: BridgeConfig) -> str:
    """The line about ARI, empty if it is off."""
    ari = config.ari
    if not ari.enabled:
        return ""
    makes = "" if ari.originate.token is None else f", makes calls to {', '.join(ari.originate.endpoints)}"
    where = f"{_without_secrets(ari.url)} as {ari.user}"
    return f"  ARI           {where}, Stasis({ari.app}), media by {ari.media}{makes}\n"


def _freeswitch(config: BridgeConfig) -> str:
    """The line about FreeSWITCH, empty if it is off."""
    switch = config.freeswitch
    if not switch.enabled:
        return ""
    then = "hangs up" if switch.hang_up else "does not hang up"
    return f"  FreeSWITCH    event socket at {switch.host}:{switch.port}, {then} when the bot leaves\n"


def _announce(audiosocket_port: int, http_port: int, config: BridgeConfig) -> None:
    others = f"{_ari(config)}{_freeswitch(config)}"
    ready = f"Connected? http://{config.http.host}:{http_port}/readyz   " if others else ""
    print(
        f"\n{_PROGRAM} takes AudioSocket calls at {config.audiosocket.host}:{audiosocket_port}"
        f" for {_without_secrets(config.server.url)}\n"
        f"{others}{ready}Metrics: http://{config.http.host}:{http_port}/metrics   Ctrl-C stops.\n",
        flush=True,
    )


def _without_secrets(url: str) -> str:
    """The URL without user, password and query: each of them may hold a secret."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


if __name__ == "__main__":
    sys.exit(main())
