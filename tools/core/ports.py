"""Who listens on a TCP port, whose it is, and who is connected to it, from /proc/net/tcp and tcp6.

Blind to: a port in another network namespace (PrivateNetwork=, a container), UDP and unix sockets, and a client that
waits while the listen queue is full: the kernel keeps no connection for it (only its own side shows SYN_SENT).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from inferops.core.poll import PortOwner
from inferops.core.process import open_files
from inferops.core.verdict import BlindError, escape

PROC = Path("/proc")
# include/net/tcp_states.h: the numbers in column `st`
ESTABLISHED, LISTEN = 0x01, 0x0A
Family = Literal["ipv4", "ipv6"]
LOOKS = 3  # a listener can close between the table and its holder: a server that stops is no stranger


class Row(msgspec.Struct, frozen=True):
    """One socket of the kernel's table. Inode 0: nobody holds it (not accepted yet, or already closed)."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    state: int
    inode: int


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """One listening socket. `pids` are those found to hold it among the processes that were looked at."""

    addr: str
    port: int
    family: Family
    inode: int
    pids: tuple[int, ...] = ()


def parse(table: bytes, port: int) -> tuple[Row, ...]:
    """The rows of a /proc/net/tcp{,6} text in which `port` is the local or the remote port. The table has one row a
    socket of the whole machine, so lines without these four hex digits are not taken apart."""
    needle = b":%04X " % port
    rows: dict[Row, None] = {}  # the kernel may give a row twice when the table changes while it is read
    for line in table.splitlines():
        if needle in line and (row := _row(line)) is not None and port in (row.local_port, row.remote_port):
            rows[row] = None
    return tuple(rows)


def _row(line: bytes) -> Row | None:
    fields = line.split()
    try:
        local, local_port = _address(fields[1])
        remote, remote_port = _address(fields[2])
        return Row(local, local_port, remote, remote_port, int(fields[3], 16), int(fields[9]))
    except (IndexError, ValueError):
        return None  # the heading


def _address(field: bytes) -> tuple[str, int]:
    """(address, port) of `0100007F:1F90`: 32-bit words in the machine's own byte order. ::ffff:1.2.3.4 is 1.2.3.4."""
    words, colon, port = field.partition(b":")
    if not colon or len(words) not in (8, 32):
        raise ValueError(field)
    raw = b"".join(struct.pack("=I", int(words[i : i + 8], 16)) for i in range(0, len(words), 8))
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def peer(row: Row) -> str:
    """`1.2.3.4:5678`, or `[::1]:5678`."""
    return f"[{row.remote}]:{row.remote_port}" if ":" in row.remote else f"{row.remote}:{row.remote_port}"


def peers(rows: Iterable[Row], port: int, own: frozenset[int]) -> tuple[str, ...]:
    """The peers of ESTABLISHED sockets with local port `port`, without those whose other end is a socket in `own`
    (inodes). A connection that waits to be accepted counts: its client has sent its request already."""
    rows = tuple(row for row in rows if row.state == ESTABLISHED)
    ours = {
        (row.local, row.local_port, row.remote)
        for row in rows
        if row.remote_port == port and row.inode and row.inode in own
    }
    theirs = (row for row in rows if row.local_port == port and (row.remote, row.remote_port, row.local) not in ours)
    return tuple(sorted({peer(row) for row in theirs}))


def judge(found: Iterable[Listener], unit_pids: frozenset[int]) -> PortOwner:
    """`unit` only if each listener is held by one of the unit's processes; a single stranger makes it `other`."""
    held = [bool(unit_pids.intersection(listener.pids)) for listener in found]
    if not held:
        return "nobody"
    return "unit" if all(held) else "other"


# --- edge


def listeners(port: int, pids: Iterable[int] | None = None) -> tuple[Listener, ...]:
    """The listening sockets on `port` (with SO_REUSEPORT several), each with its holders among `pids`; None looks at
    every process, which costs some 10 ms. Raises BlindError: the tables cannot be read."""
    found = [
        Listener(addr=row.local, port=port, family=family, inode=row.inode)
        for family, rows in _rows(port)
        for row in rows
        if row.state == LISTEN and row.local_port == port
    ]
    if not found:
        return ()
    held, _ = _holders({listener.inode for listener in found}, psutil.pids() if pids is None else pids)
    return tuple(msgspec.structs.replace(one, pids=tuple(held.get(one.inode, ()))) for one in found)


def owner(port: int, unit_pids: Iterable[int], control_group: str = "") -> tuple[PortOwner, str]:
    """Whose port it is, and who else holds it, for people. Looks through every process only if the unit's own don't
    account for each listener; one in `control_group` that is not among `unit_pids` (just started) is the unit's too.
    Raises BlindError: the tables, or the open files of the unit's processes, can't be read.
    """
    mine = frozenset(unit_pids)
    for _ in range(LOOKS):
        found = listeners(port, mine)
        whose = judge(found, mine)
        if whose != "other":
            return whose, ""
        lost = {listener.inode for listener in found if not listener.pids}
        held, hidden = _holders(lost, psutil.pids())
        if lost == held.keys() or hidden:
            break  # else it was closed between the two reads: look again
    if hidden & mine and lost != held.keys():
        raise BlindError(
            f"port {port}: the open files of pid {min(hidden & mine)} can't be read by uid {os.geteuid()}",
            "run as root or as the server's own user",
        )
    strangers = {pid for holders in held.values() if not any(_inside(pid, control_group) for pid in holders)
                 for pid in holders}  # fmt: skip
    if not strangers and lost == held.keys():
        return "unit", ""
    return "other", ", ".join(map(describe, sorted(strangers))) or "a process whose open files can't be read"


def _inside(pid: int, control_group: str) -> bool:
    """Never of the root: there everything would be the unit's."""
    return control_group not in ("", "/") and f"{cgroup_of(pid) or ''}/".startswith(f"{control_group}/")


def established(port: int) -> tuple[str, ...]:
    """The peers (`ip:port`, `[ip6]:port`) connected to local port `port`, without this process's own connections.
    Reads three files' worth and no other process. Raises BlindError: the tables can't be read."""
    before = _own_inodes()
    rows = tuple(row for _, rows in _rows(port) for row in rows)
    return peers(rows, port, before | _own_inodes())  # both: another thread may open or close one meanwhile


def cgroup_of(pid: int) -> str | None:
    """The cgroup that systemd put `pid` in, e.g. `/system.slice/x.service`; None if it is gone."""
    try:
        text = (PROC / str(pid) / "cgroup").read_text(errors="backslashreplace")
    except OSError:
        return None
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        paths[names] = path
    unified = paths.get("", "/")  # on a host with cgroup v1 alone this is "/", and systemd's own hierarchy says it
    return unified if unified != "/" else paths.get("name=systemd", unified)


def describe(pid: int) -> str:
    """`pid 123 (python3) of root in /system.slice/x.service`, for people."""
    try:
        process = psutil.Process(pid)
        who = f"({escape(process.name())}) of {escape(process.username())}"
    except psutil.Error:
        who = "(gone)"
    return f"pid {pid} {who} in {escape(cgroup_of(pid) or 'no cgroup')}"


def _rows(port: int) -> Iterator[tuple[Family, tuple[Row, ...]]]:
    tables: tuple[tuple[Family, str], ...] = (("ipv4", "tcp"), ("ipv6", "tcp6"))
    for family, name in tables:
        try:
            table = (PROC / "self/net" / name).read_bytes()
        except FileNotFoundError:
            if family == "ipv4":
                raise BlindError(f"{PROC}/self/net/{name}: no such table", "is /proc mounted?") from None
            continue  # a kernel without IPv6
        except OSError as e:
            raise BlindError(f"{PROC}/self/net/{name}: {e.strerror}", "run as root") from None
        yield family, parse(table, port)


def _holders(inodes: set[int], pids: Iterable[int]) -> tuple[dict[int, list[int]], frozenset[int]]:
    """(inode -> the pids that hold it, the pids whose open files can't be read)."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes if inode}
    held: dict[int, list[int]] = {}
    hidden: set[int] = set()
    for pid in pids if wanted else ():
        try:
            for inode in {wanted[target] for target in open_files(pid) if target in wanted}:
                held.setdefault(inode, []).append(pid)
        except PermissionError:
            hidden.add(pid)
    return held, frozenset(hidden)


def _own_inodes() -> frozenset[int]:
    return frozenset(int(target[8:-1]) for target in open_files("self") if target.startswith("socket:["))
