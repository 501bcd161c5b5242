"""The commands `ray up`, `ray status` and `ray down`: replicas of an engine on a Ray cluster that runs already."""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from telephony_tts.engines.plugin import CommandLine
from telephony_tts.engines.ray import reach
from telephony_tts.engines.ray.plugin import PLUGIN, need_ray
from telephony_tts.engines.ray.settings import RaySettings
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable, shell_command

if TYPE_CHECKING:
    from telephony_tts.app.config import Config

EXAMPLES = """examples:
  ray start --head                                              a cluster on this machine
  telephony-tts ray up --config configs/server.yaml             start the replicas, or change them
  telephony-tts ray status --config configs/server.yaml
  telephony-tts ray down --config configs/server.yaml
  telephony-tts serve --config configs/server.yaml --set engines.default=ray

The section engines.ray says where the cluster is, which engine the replicas run and how many there are.
"""
ANSWER_S = 10.0
TELL_S = 15.0
"""While replicas start, a line says so often what they wait for."""


def add_ray(line: CommandLine) -> None:
    """The commands `ray up`, `ray status` and `ray down`."""
    parser = line.command("ray", "run replicas of an engine on Ray Serve", EXAMPLES, partial(_status, line))
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, help_text, run in (
        ("up", "start the replicas, or change them to the configuration", _up),
        ("status", "show the replicas; exit status 1 if none is ready", _status),
        ("down", "stop the replicas when they have spoken", _down),
    ):
        action = actions.add_parser(
            name, help=help_text, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        line.flags(action)
        if name == "up":
            action.add_argument(
                "--within-s", type=float, default=600.0, metavar="N",
                help="exit with status 1 if not all replicas run after so many seconds (default 600)",
            )  # fmt: skip
        action.set_defaults(run=partial(run, line))


def _up(line: CommandLine, arguments: argparse.Namespace) -> int:
    with _cluster(line, arguments) as (settings, _):
        from ray import serve

        from telephony_tts.engines.ray.app import build, directory

        chosen = PLUGIN.own(settings.engines)
        directory(chosen.app)
        target = serve.RunTarget(build({"settings": settings}), chosen.app, None)
        serve.run_many([target], wait_for_applications_running=False)
        _wait_until_running(chosen, arguments.within_s)
        return _print_status(chosen)


def _wait_until_running(chosen: RaySettings, within_s: float) -> None:
    """Wait for the replicas, and say now and then what is missing. Raises EngineUnavailable."""
    from ray import serve

    begun_ns, pause = monotonic_ns(), threading.Event()
    tell_s = TELL_S
    while True:
        waited_s = (monotonic_ns() - begun_ns) / NS_PER_S
        found = serve.status().applications[chosen.app]
        if found.status.value == "RUNNING":
            return
        if found.status.value == "DEPLOY_FAILED":
            raise EngineUnavailable(f"the replicas did not start: {reach.said(found.message)}")
        missing = _missing(chosen)
        if waited_s >= within_s:
            raise EngineUnavailable(
                f"not all replicas run after {within_s:g} s{missing}. They are started as soon as they can be; see "
                f"{shell_command('telephony-tts ray status')}, or stop them: {shell_command('telephony-tts ray down')}"
            )
        if waited_s >= tell_s:
            tell_s += TELL_S
            print(f"{chosen.app}: waiting for replicas{missing}", flush=True)
        pause.wait(0.5)


def _missing(chosen: RaySettings) -> str:
    """What the cluster lacks for one more replica, as the end of a sentence."""
    import ray

    free, whole = ray.available_resources(), ray.cluster_resources()
    lacks = [
        f"a replica needs {wanted:g} {name}, and {free.get(name, 0.0):g} of {whole.get(name, 0.0):g} are free"
        for name, wanted in (("GPU", chosen.gpus), ("CPU", chosen.cpus))
        if wanted > free.get(name, 0.0)
    ]
    return "".join(f": {each}" for each in lacks[:1])


def _status(line: CommandLine, arguments: argparse.Namespace) -> int:
    with _cluster(line, arguments) as (settings, _):
        return _print_status(PLUGIN.own(settings.engines))


def _down(line: CommandLine, arguments: argparse.Namespace) -> int:
    with _cluster(line, arguments) as (settings, ray):
        from ray import serve

        from telephony_tts.engines.ray.replicas import NAMESPACE, directory_name

        app = PLUGIN.own(settings.engines).app
        was_there = app in serve.status().applications
        if was_there:
            serve.delete(app)
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(directory_name(app), namespace=NAMESPACE))
        print(f"{app}: {'stopped' if was_there else 'was not running'}")
    return 0


@contextlib.contextmanager
def _cluster(line: CommandLine, arguments: argparse.Namespace) -> Iterator[tuple[Config, Any]]:
    """(the settings, the package ray connected to the cluster). Raises ConfigError and EngineUnavailable."""
    settings = line.load(arguments, {})
    address = PLUGIN.own(settings.engines).address
    if address is None:
        raise ConfigError("engines.ray.address is not set; set it to auto for a Ray cluster on this machine")
    need_ray()
    try:
        ray = reach.connect(address)
    except Exception as error:  # of many kinds: no cluster, another version, no permission
        raise EngineUnavailable(
            f"the Ray cluster at {address} cannot be used: {reach.said(error)}. "
            "To start one on this machine: ray start --head"
        ) from error
    from ray import serve

    try:
        serve.start(proxy_location="Disabled")
        yield settings, ray
    finally:
        ray.shutdown()


def _print_status(chosen: RaySettings) -> int:
    """The application's state and a line for each replica. 1 if no replica takes utterances."""
    import ray
    from ray import serve

    from telephony_tts.engines.ray.replicas import NAMESPACE, directory_name

    found = serve.status().applications.get(chosen.app)
    if found is None:
        print(f"{chosen.app}: not running; start it: {shell_command('telephony-tts ray up')}")
        return 1
    print(f"{chosen.app}: {found.status.value.lower()} {found.message}".rstrip())
    for name, deployment in found.deployments.items():
        states = ", ".join(f"{n} {state.lower()}" for state, n in deployment.replica_states.items() if n)
        print(f"  {name}: {deployment.status.value.lower()}; {states or 'no replica'} {deployment.message}".rstrip())
    replicas: list[dict[str, str]] = []
    with contextlib.suppress(ValueError, ray.exceptions.RayError):
        directory = ray.get_actor(directory_name(chosen.app), namespace=NAMESPACE)
        answer = ray.get(directory.changed_since.remote(None, ANSWER_S), timeout=2 * ANSWER_S)
        replicas = answer[1] if answer is not None else []
    for replica in replicas:
        print(f"  {replica['id']}  {replica['address']}  {replica['model']}")
    return 0 if replicas else 1
