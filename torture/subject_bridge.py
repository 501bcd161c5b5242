"""The bridge under test: its own command line, with `--defect` if one is to be found."""

from __future__ import annotations

import argparse
import sys

from sip_bridge import cli
from torture import defects


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--defect", action="append", default=[], choices=sorted(defects.DEFECTS))
    chosen, rest = flags.parse_known_args()
    for name in chosen.defect:
        defects.plant(name, into_bridge=True)
    return cli.main(rest)


if __name__ == "__main__":
    sys.exit(main())
