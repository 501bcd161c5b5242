"""A Ray cluster of several nodes on this machine, as a process that obeys lines on its standard input.

    add CPUS       add a node; answers with its number
    remove N       remove node N as if its machine died: its processes are killed
    kill-head      the same for the head
    start-head     start a new head at the old address; it knows nothing of the one before, and has neither a dashboard
                   nor a server for Ray's client
    quit

The arguments are settings of the head, NAME=NUMBER, as `ray._private.parameter.RayParams` has them. The first line that
it prints is the cluster's address. It runs in the Python that has Ray.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

SMALL = {
    "object_store_memory": 80_000_000,
    "include_dashboard": False,
    # Ray's autoscaler of machines, and the process that copies the workers' logs to drivers.
    "no_monitor": True,
    "include_log_monitor": False,
}


def main() -> None:
    settings = {name: int(value) for name, value in (each.split("=") for each in sys.argv[1:])}
    head = {"num_cpus": 1, **SMALL, **settings}
    if "dashboard_port" in settings:
        head["include_dashboard"] = True
    cluster = Cluster(initialize_head=True, head_node_args=head)
    next_head = {"num_cpus": head["num_cpus"], **SMALL, "gcs_server_port": int(cluster.address.rpartition(":")[2])}
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
        elif verb == "kill-head":
            cluster.remove_node(cluster.head_node, allow_graceful=False)
            print("killed", flush=True)
        elif verb == "start-head":
            cluster.add_node(**next_head)
            print(cluster.address, flush=True)
        else:
            break
    cluster.shutdown()


if __name__ == "__main__":
    main()
