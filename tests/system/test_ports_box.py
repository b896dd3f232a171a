"""Whose port it is among units of a real systemd, and who is connected to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.agent import PACKAGE, Agent, eventually, service
from tests.system.box import Box

pytestmark = pytest.mark.box

# The box has a network of its own, so a fixed port is nobody else's.
LISTEN = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
one = socket.socket(family)
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
one.bind((sys.argv[1], int(sys.argv[2])))
one.listen(8)
time.sleep(1000)
"""

CONNECT = """
import socket, sys
one = socket.create_connection((sys.argv[1], 8150))
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Box]:
    with Box(keep=[PACKAGE]) as box:
        box.write("/run/listen.py", LISTEN)
        yield box


@pytest.fixture(scope="module")
def eyes(machine: Box) -> Iterator[Agent]:
    with Agent(machine) as agent:
        agent.do("import os, socket, subprocess, sys; from inferops.core import ports, process, unit")
        agent.do("def pids(name): return unit.pids(unit.show(name).control_group)")
        yield agent


def server(box: Box, eyes: Agent, name: str, address: str, port: int) -> int:
    """A unit that listens and never accepts; its main pid."""
    service(box, f"{name}.service", f"ExecStart=/usr/bin/python3 /run/listen.py {address} {port}")
    pid = eyes.ask(f"unit.show({name!r}).main_pid")
    eventually(lambda: any(pid in one["pids"] for one in eyes.ask(f"ports.listeners({port})")))
    assert isinstance(pid, int)
    return pid


@pytest.mark.parametrize(("address", "port"), [("127.0.0.1", 8101), ("0.0.0.0", 8102), ("::", 8103)])  # noqa: S104
def test_the_units_own_port(machine: Box, eyes: Agent, address: str, port: int) -> None:
    pid = server(machine, eyes, f"own{port}", address, port)
    assert eyes.ask(f"ports.owner({port}, pids('own{port}'))") == ["unit", ""]
    assert eyes.ask(f"ports.cgroup_of({pid})") == f"/system.slice/own{port}.service"
    assert [one["addr"] for one in eyes.ask(f"ports.listeners({port}, [{pid}])")] == [address]
    machine.run(["systemctl", "stop", f"own{port}"])
    assert eyes.ask(f"ports.owner({port}, [])") == ["nobody", ""]


def test_a_stranger_is_named_with_its_unit(machine: Box, eyes: Agent) -> None:
    service(machine, "mine.service", "ExecStart=/bin/sleep 1000")
    pid = server(machine, eyes, "stranger", "127.0.0.1", 8110)
    named = f"pid {pid} (python3) of root in /system.slice/stranger.service"
    assert eyes.ask("ports.owner(8110, pids('mine'))") == ["other", named]


def test_a_second_server_on_the_same_port_is_seen(machine: Box, eyes: Agent) -> None:
    server(machine, eyes, "first", "127.0.0.1", 8120)
    pid = server(machine, eyes, "second", "127.0.0.1", 8120)
    assert len(eyes.ask("ports.listeners(8120)")) == 2
    named = f"pid {pid} (python3) of root in /system.slice/second.service"
    assert eyes.ask("ports.owner(8120, pids('first'))") == ["other", named]
    machine.run(["systemctl", "stop", "second"])
    assert eyes.ask("ports.owner(8120, pids('first'))") == ["unit", ""]


def test_a_process_that_just_started_is_the_units_by_its_cgroup(machine: Box, eyes: Agent) -> None:
    server(machine, eyes, "fresh", "127.0.0.1", 8130)
    assert eyes.ask("ports.owner(8130, [], '/system.slice/fresh.service')") == ["unit", ""]
    assert eyes.ask("ports.owner(8130, [], '/system.slice/fresh')")[0] == "other"  # a prefix is no parent
    assert eyes.ask("ports.owner(8130, [])")[0] == "other"


def test_a_socket_that_systemd_holds_for_the_unit(machine: Box, eyes: Agent) -> None:
    machine.write("/etc/systemd/system/activated.socket", "[Socket]\nListenStream=127.0.0.1:8140\n")
    service(machine, "activated.service", "ExecStart=/bin/sleep 1000", start=False)
    machine.run(["systemctl", "start", "activated.socket"])
    assert eyes.ask("ports.owner(8140, [])") == ["other", "pid 1 (systemd) of root in /init.scope"]
    machine.run(["systemctl", "start", "activated.service"])
    assert eyes.ask("ports.owner(8140, pids('activated'))") == ["unit", ""]


def test_clients_of_a_server_that_accepts_nothing(machine: Box, eyes: Agent) -> None:
    server(machine, eyes, "deaf", "::", 8150)
    for address in ("127.0.0.1", "::1"):
        with machine.popen(["python3", "-c", CONNECT, address], stdin=-1) as client:
            assert client.stdout is not None
            port = client.stdout.readline().strip()
            peer = f"[::1]:{port}" if ":" in address else f"{address}:{port}"
            assert eyes.ask("ports.established(8150)") == [peer]
            client.kill()
    eyes.do("mine = [socket.create_connection((host, 8150)) for host in ('127.0.0.1', '::1')]")
    assert eyes.ask("ports.established(8150)") == []
    assert eyes.ask("len(ports.peers([row for _, rows in ports._rows(8150) for row in rows], 8150, frozenset()))") == 2
    eyes.do("[one.close() for one in mine]")
