"""Writes deploy/k8s from the Helm chart, for those without Helm. `make manifests` runs it.

It takes the helm of `.peers/deploy`, which the tests install, so that the files are equal to what the tests render.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS / "deploy"), str(TESTS / "peers")]

from deploy_tools import MACHINES, MANIFESTS, NAMESPACE, machine_flags, template  # noqa: E402

HEAD = """\
# Written by `make manifests` from deploy/helm/telephony-tts with values-{machine}.yaml. Change the image names, the
# bot's address and the labels of nodes, and make the Secret (docs/deploy.md). Then:
# kubectl -n {namespace} apply -f {machine}.yaml
"""


def main() -> int:
    for machine in MACHINES:
        ended = template(*machine_flags(machine), "--no-hooks")
        if ended.returncode != 0:
            print(ended.stderr, file=sys.stderr)
            return 1
        path = MANIFESTS / f"{machine}.yaml"
        path.write_text(HEAD.format(machine=machine, namespace=NAMESPACE) + ended.stdout, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
