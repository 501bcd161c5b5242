"""A Ray cluster of several nodes on this machine, as a process that obeys lines on its standard input.

    add CPUS       add a node; answers with its number
    remove N       remove node N as if its machine died: its processes are killed
    quit

The first line that it prints is the cluster's address. It runs in the Python that has Ray.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 80_000_000, "include_dashboard": False}


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **SMALL})
    nodes = []
    print(cluster.address, flush=True)
    for line in sys.stdin:
        verb, *rest = line.split()
        if verb == "add":
            nodes.append(cluster.add_node(num_cpus=float(rest[0]), object_store_memory=80_000_000))
            print(len(nodes) - 1, flush=True)
        elif verb == "remove":
            cluster.remove_node(nodes[int(rest[0])], allow_graceful=False)
            print("removed", flush=True)
        else:
            break
    cluster.shutdown()


if __name__ == "__main__":
    main()
