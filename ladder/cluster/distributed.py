"""Joining the processes of a gang into one JAX runtime: every one then sees the devices of all."""

import contextlib
import socket
from dataclasses import dataclass

JOIN_S = 120  # for all members to arrive, once their processes are up
SILENT_S = 60  # a member that is not heard of for so long is taken for dead, and jax ends the others


@dataclass(frozen=True)
class Place:
    """One member's place in a gang of `hosts` processes; the first one's host has the coordinator."""

    rank: int
    hosts: int
    coordinator: str  # HOST:PORT


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with contextlib.closing(socket.socket()) as found:
        found.bind(("", 0))
        return found.getsockname()[1]


def check_loopback() -> None:
    """Raises ConnectionError when this machine does not reach itself: Ray would wait for ever."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        raise ConnectionError(
            f"127.0.0.1 does not answer ({error}): bring the loopback network up (ip link set lo up)"
        ) from error


def _listen(port: int) -> socket.socket:
    """Listen on every address of this host, as the coordinator will."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def join(place: Place, devices: int, within_s: int = JOIN_S) -> None:
    """Wait until all members are here; `devices` of them all are then seen. Before any other use of jax.

    Members that are not here in time end the process: jax leaves no choice. Raises ConnectionError when the
    port was taken meanwhile, or when they bring another number of devices.
    """
    who = f"rank {place.rank} of {place.hosts} at {place.coordinator}"
    if place.rank == 0:
        try:
            _listen(int(place.coordinator.rpartition(":")[2])).close()  # jax may crash where it cannot
        except OSError as error:
            raise ConnectionError(
                f"{who}: the port was taken meanwhile ({error.strerror}): the next attempt takes another"
            ) from error
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.hosts,
            place.rank,
            cluster_detection_method="deactivate",
            initialization_timeout=within_s,
            heartbeat_timeout_seconds=SILENT_S,
        )
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(f"{who}: the gang did not come together: {error}") from error
    if (found := jax.device_count()) != devices:
        raise ConnectionError(f"{who}: the gang has {found} devices, the run needs {devices}")
