"""What operating a service costs, one part of `ops_parts` after the other: engines of others, watching, reloading."""

from __future__ import annotations

import importlib
import pkgutil

import ops_parts
from harness import report

_EXAMPLES = """examples:
  python benchmarks/ops.py                                  all parts
  python benchmarks/ops.py --parts engines_of_others        one part, about 5 minutes
  python benchmarks/ops.py --parts watching,reload          two parts, about 7 minutes
"""


def main() -> None:
    known = sorted(module.name for module in pkgutil.iter_modules(ops_parts.__path__))
    flags = report.parser("ops", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--parts", default=",".join(known), help="separated by commas (default %(default)s)")
    chosen = flags.parse_args()
    names = chosen.parts.split(",")
    if unknown := [name for name in names if name not in known]:
        flags.error(f"--parts: no part is named {', '.join(unknown)}; expected some of {', '.join(known)}")
    found = {}
    for name in names:
        part = importlib.import_module(f"ops_parts.{name}")
        print(f"\n{name}: {(part.__doc__ or '').splitlines()[0]}", flush=True)
        found[name] = part.measure(chosen)
        rows = found[name].get("rows", [])
        report.table(name, ("what", "reached", "to reach"), [tuple(row.values()) for row in rows])
    report.save(chosen, found)


if __name__ == "__main__":
    main()
