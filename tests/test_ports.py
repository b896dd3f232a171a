"""Real sockets on 127.0.0.1 and ::1, of this process and of others, and the kernel's table parsed."""

from __future__ import annotations

import getpass
import ipaddress
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferops.core import ports
from inferops.core.ports import ESTABLISHED, LISTEN, Listener, Row
from inferops.core.verdict import BlindError

HEADING = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(str).filter(lambda text: not text.startswith("::ffff:"))
MAPPED = "::ffff:127.0.0.1"  # an IPv6 socket whose clients are IPv4
PORT = st.integers(1, 65535)

CONNECT = """
import socket, sys
held = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(int(sys.argv[3]))]
names = [":".join(map(str, one.getsockname()[:2])) for one in held]
print(*names, flush=True)
sys.stdin.read()
"""
LISTENING = """
import socket, sys
one = socket.socket()
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
one.bind(("127.0.0.1", int(sys.argv[1])))
one.listen()
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""
Script = Callable[..., tuple[int, str]]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


@pytest.fixture
def script(stack: ExitStack) -> Script:
    """Runs a Python script until the test ends; gives its pid and its first line."""

    def run(code: str, *argv: object) -> tuple[int, str]:
        child = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", code, *map(str, argv)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(child.kill)
        assert child.stdout is not None
        return child.pid, child.stdout.readline().strip()

    return run


@pytest.fixture
def listen(stack: ExitStack) -> Callable[..., tuple[socket.socket, int]]:
    """A listening socket of this process on a free port, closed after the test."""

    def run(address: str = "127.0.0.1", port: int = 0, *, reuse: bool = False) -> tuple[socket.socket, int]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        one = stack.enter_context(socket.socket(family))
        if reuse:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.bind((address, port))
        one.listen(16)
        return one, one.getsockname()[1]

    return run


Listen = Callable[..., tuple[socket.socket, int]]


def hexed(address: str, port: int) -> str:
    raw = ipaddress.ip_address(address).packed
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(raw) // 4}I", raw)) + f":{port:04X}"


def line(local: str, local_port: int, remote: str, remote_port: int, state: int, inode: int) -> bytes:
    return (
        f"   0: {hexed(local, local_port)} {hexed(remote, remote_port)} {state:02X} 00000000:00000000 00:00000000"
        f" 00000000     0        0 {inode} 1 00000000696bc15c 20 4 0 10 -1\n"
    ).encode()


@given(st.one_of(st.tuples(V4, V4), st.tuples(V6, V6)), PORT, PORT, st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_any_row_comes_back(addresses: tuple[str, str], here: int, there: int, state: int, inode: int) -> None:
    table = HEADING + line(addresses[0], here, addresses[1], there, state, inode)
    row = Row(addresses[0], here, addresses[1], there, state, inode)
    assert ports.parse(table, here) == ports.parse(table, there) == (row,)
    assert ports.parse(table * 2, here) == (row,)  # a table that changed while it was read
    other = next(port for port in (1, 2, 3) if port not in (here, there))
    assert ports.parse(table, other) == ()


@given(V4, PORT)
def test_an_ipv4_client_of_an_ipv6_socket_is_an_ipv4_client(address: str, port: int) -> None:
    (row,) = ports.parse(line("::ffff:127.0.0.1", 8080, f"::ffff:{address}", port, ESTABLISHED, 1), 8080)
    assert (row.local, row.remote) == ("127.0.0.1", address)


@given(st.binary(max_size=300))
def test_no_table_breaks_the_parser(table: bytes) -> None:
    ports.parse(table, 8080)
    ports.parse(table.replace(b"\n", b":1F90 \n"), 8080)


def test_a_connection_of_our_own_is_known_by_both_ends() -> None:
    rows = [
        Row("127.0.0.1", 8080, "127.0.0.1", 5001, ESTABLISHED, 0),
        Row("127.0.0.1", 5001, "127.0.0.1", 8080, ESTABLISHED, 77),  # ours
        Row("127.0.0.1", 8080, "10.0.0.9", 5001, ESTABLISHED, 78),  # the same port elsewhere
        Row("127.0.0.1", 8080, "127.0.0.1", 5002, ESTABLISHED, 79),
        Row("127.0.0.1", 5002, "127.0.0.1", 8080, ESTABLISHED, 80),  # another process
        Row("127.0.0.1", 8080, "127.0.0.1", 5003, 0x08, 81),  # CLOSE_WAIT: its client has left
        Row("127.0.0.1", 8080, "127.0.0.1", 0, LISTEN, 82),
        Row("127.0.0.1", 8080, "::1", 5004, ESTABLISHED, 83),
    ]
    assert ports.peers(rows, 8080, frozenset({77})) == ("10.0.0.9:5001", "127.0.0.1:5002", "[::1]:5004")
    assert len(ports.peers(rows, 8080, frozenset())) == 4
    assert len(ports.peers(rows, 8080, frozenset({0}))) == 4  # inode 0 is nobody's


@pytest.mark.parametrize(
    ("held", "whose"),
    [([], "nobody"), ([(5,)], "unit"), ([(1, 5)], "unit"), ([(5,), (6,)], "unit"), ([(5,), (9,)], "other"),
     ([(5,), ()], "other"), ([(9,)], "other"), ([()], "other")],
)  # fmt: skip
def test_a_port_is_the_units_only_if_every_listener_is(held: list[tuple[int, ...]], whose: str) -> None:
    found = [Listener(addr="::1", port=1, family="ipv4", inode=n, pids=pids) for n, pids in enumerate(held)]
    assert ports.judge(found, frozenset({5, 6})) == whose


@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", "ipv4"), ("::1", "ipv6")])
def test_a_listener_of_this_process(listen: Listen, address: str, family: str) -> None:
    one, port = listen(address)
    (found,) = ports.listeners(port, [os.getpid()])
    assert (found.addr, found.port, found.family, found.pids) == (address, port, family, (os.getpid(),))
    assert os.readlink(f"/proc/self/fd/{one.fileno()}") == f"socket:[{found.inode}]"
    assert ports.listeners(port, [])[0].pids == ()
    assert os.getpid() in ports.listeners(port)[0].pids
    assert ports.owner(port, [os.getpid()]) == ("unit", "")
    one.close()
    assert ports.listeners(port) == ()
    assert ports.owner(port, [os.getpid()]) == ("nobody", "")


def test_a_stranger_is_named(script: Script) -> None:
    pid, port = script(LISTENING, 0)
    comm = Path(f"/proc/{pid}/comm").read_text().strip()
    whose, who = ports.owner(int(port), [os.getpid()])
    assert whose == "other"
    assert who == f"pid {pid} ({comm}) of {getpass.getuser()} in {ports.cgroup_of(pid)}"
    assert ports.owner(int(port), [pid]) == ("unit", "")
    assert ports.owner(int(port), [])[0] == "other"


@pytest.mark.parametrize("control_group", ["", "/", "/system.slice/nowhere.service"])
def test_no_cgroup_makes_a_stranger_the_units(script: Script, control_group: str) -> None:
    _, port = script(LISTENING, 0)
    assert ports.owner(int(port), [], control_group)[0] == "other"


def test_two_servers_share_a_port(listen: Listen, script: Script) -> None:
    _, port = listen(reuse=True)
    pid, _ = script(LISTENING, port)
    found = ports.listeners(port)
    assert len(found) == 2
    assert {pids for one in found for pids in one.pids} == {os.getpid(), pid}
    whose, who = ports.owner(port, [os.getpid()])
    assert whose == "other"
    assert f"pid {pid} " in who
    assert str(os.getpid()) not in who
    assert ports.owner(port, [os.getpid(), pid]) == ("unit", "")


@pytest.mark.parametrize(("address", "target"), [("127.0.0.1", "127.0.0.1"), (MAPPED, "127.0.0.1"), ("::1", "::1")])
def test_clients_count_before_they_are_accepted(listen: Listen, script: Script, address: str, target: str) -> None:
    _, port = listen(address)  # never accepts
    _, peers = script(CONNECT, target, port, 3)
    expected = sorted(f"[::1]:{peer.rpartition(':')[2]}" if target == "::1" else peer for peer in peers.split())
    assert len(expected) == 3
    assert list(ports.established(port)) == expected


def test_our_own_connections_are_not_clients(listen: Listen, script: Script, stack: ExitStack) -> None:
    server, port = listen(MAPPED)
    own = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2)]
    assert ports.established(port) == ()
    accepted = [stack.enter_context(server.accept()[0]) for _ in own]
    assert ports.established(port) == ()
    _, peer = script(CONNECT, "127.0.0.1", port, 1)
    assert ports.established(port) == (peer,)
    assert accepted


def test_a_client_that_left_a_server_that_never_reads_is_no_client(listen: Listen, script: Script) -> None:
    _, port = listen()
    _, peers = script(
        CONNECT.replace("print(*names", "[one.close() for one in held[1:]]; print(names[0]"), "127.0.0.1", port, 3
    )
    assert ports.established(port) == (peers,)


def test_a_connection_to_another_server_from_that_port_number_is_one_of_its_peers_only(
    listen: Listen, stack: ExitStack
) -> None:
    _, port = listen()
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    assert ports.established(client.getsockname()[1]) == (f"127.0.0.1:{port}",)


def test_a_unit_whose_files_are_shut_is_blind(script: Script) -> None:
    pid, port = script(LISTENING, 0)
    code = "import os; from inferops.core import ports\n"
    code += "if os.geteuid() == 0: os.setuid(65534)\n"
    code += "from inferops.core.verdict import BlindError\n"
    code += "try: print(ports.owner({}, [{}]))\nexcept BlindError as e: print('blind:', e)\n"
    if os.geteuid() != 0:
        pytest.fail("needs root: it looks at a process of another user's; run the tests as root")
    done = subprocess.run(
        [sys.executable, "-c", code.format(port, pid)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"blind: port {port}: the open files of pid {pid} can't be read by uid 65534")
    done = subprocess.run(
        [sys.executable, "-c", code.format(port, 2**22 + 1)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "('other', \"a process whose open files can't be read\")\n"


def test_no_table_is_blind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "PROC", tmp_path)
    with pytest.raises(BlindError, match="no such table"):
        ports.listeners(8080)


def test_without_ipv6_the_other_table_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "self/net").mkdir(parents=True)
    (tmp_path / "self/fd").mkdir()
    (tmp_path / "self/net/tcp").write_bytes(line("127.0.0.1", 8080, "10.0.0.1", 9, ESTABLISHED, 5))
    monkeypatch.setattr(ports, "PROC", tmp_path)
    assert ports.established(8080) == ("10.0.0.1:9",)


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        ("0::/system.slice/llama.service\n", "/system.slice/llama.service"),
        ("9:name=systemd:/system.slice/a.service\n8:pids:/x\n0::/\n", "/system.slice/a.service"),
        ("9:name=systemd:/\n0::/system.slice/b:c.service\n", "/system.slice/b:c.service"),
        ("4:memory:/x\n", "/"),
    ],
)
def test_whose_cgroup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, cgroup: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(text)
    monkeypatch.setattr(ports, "PROC", tmp_path)
    assert ports.cgroup_of(7) == cgroup
    assert ports.cgroup_of(8) is None
