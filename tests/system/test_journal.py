"""A real journald: whose lines are whose, each line once through rotation and vacuum, and gaps told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.agent import PACKAGE, Agent, Raised, eventually, service
from tests.system.box import Box

pytestmark = pytest.mark.box

STARTED_ID = "39f53479d3a045ac8e11786248231fbf"
STOPPING_ID = "de5b426a63be47a7b6ac3eaac82e2f6f"


@pytest.fixture(scope="module")
def machine() -> Iterator[Box]:
    with Box(keep=[PACKAGE], journald_conf={"RateLimitBurst": "0"}) as box:
        yield box


@pytest.fixture
def agent(machine: Box) -> Iterator[Agent]:
    with Agent(machine) as inside:
        inside.do("from inferops.core.journal import Follower, tail")
        yield inside


class Echo:
    """A unit that logs what `say` gives it."""

    def __init__(self, box: Box, name: str, *more: str, start: bool = True) -> None:
        self.box, self.unit, self.fifo = box, f"{name}.service", f"/run/{name}.in"
        box.run(["sh", "-c", f"mkfifo -m 666 {self.fifo}"])
        # opened for reading and writing: it never sees an end
        run = f"ExecStart=/bin/sh -c 'exec cat <>{self.fifo}'"
        service(box, self.unit, run, *more, start=start)

    def say(self, *lines: str) -> None:
        """Writes the lines and waits until journald has them."""
        self.box.run(["tee", "-a", self.fifo], input="".join(f"{line}\n" for line in lines), timeout=20)
        eventually(lambda: f"\n{lines[-1]}\n" in "\n" + self.box.journal(self.unit, "-o", "cat", "-n", "50"))


def lines(batch: dict[str, Any]) -> list[str]:
    return [entry["message"] for entry in batch["entries"] if not entry["by_systemd"]]


def sync(box: Box) -> None:
    box.run(["journalctl", "--sync"])


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_own_lines_and_systemds(machine: Box, agent: Agent) -> None:
    agent.do("f = Follower(['life'])")
    before, wall = boottime(), time.time()
    echo = Echo(machine, "life")
    echo.say("hello")
    pid = int(machine.run(["systemctl", "show", "--value", "--property=MainPID", "life"]).stdout)
    invocation = machine.run(["systemctl", "show", "--value", "--property=InvocationID", "life"]).stdout.strip()
    machine.run(["systemctl", "stop", "life"])
    sync(machine)
    batch = agent.ask("f.drain()")
    assert (batch["gap"], batch["suppressed"], batch["truncated"]) == (None, 0, False)
    (own,) = (entry for entry in batch["entries"] if not entry["by_systemd"])
    assert {name: own[name] for name in ("message", "pid", "priority", "unit", "message_id", "invocation")} == {
        "message": "hello", "pid": pid, "priority": 6, "unit": "life.service", "message_id": "",
        "invocation": invocation,
    }  # fmt: skip
    assert before <= own["t"] <= boottime()
    assert wall - 1 <= own["wall"] <= time.time() + 1
    said = [(entry["message_id"], entry["pid"]) for entry in batch["entries"] if entry["by_systemd"]]
    assert said[0] == (STARTED_ID, 1)
    assert (STOPPING_ID, 1) in said
    assert {entry["unit"] for entry in batch["entries"]} == {"life.service"}
    times = [entry["t"] for entry in batch["entries"]]
    assert times == sorted(times)
    assert agent.ask("f.drain()")["entries"] == []


def test_the_exported_id_is_systemds(agent: Agent) -> None:
    agent.do("from inferops.core import journal")
    assert agent.ask("journal.STOPPING_ID") == STOPPING_ID


def test_a_death_is_no_stop(machine: Box, agent: Agent) -> None:
    echo = Echo(machine, "dying")
    agent.do("f = Follower(['dying.service'])")
    machine.run(["systemctl", "kill", "--signal=KILL", echo.unit])
    eventually(lambda: "Failed with result 'signal'" in machine.journal(echo.unit))
    batch = agent.ask("f.drain()")
    assert any("Failed with result 'signal'" in entry["message"] for entry in batch["entries"])
    assert all(entry["message_id"] != STOPPING_ID for entry in batch["entries"])


def test_nobody_speaks_in_the_units_or_in_systemds_name(machine: Box, agent: Agent) -> None:
    echo = Echo(machine, "victim")
    agent.do("f = Follower(['victim'])")
    forged = (
        f"MESSAGE=forged\nUNIT=victim.service\nMESSAGE_ID={STOPPING_ID}\nSYSLOG_IDENTIFIER=systemd\n"
        "OBJECT_SYSTEMD_UNIT=victim.service\nN_DROPPED=99\n"
    )
    machine.run(["logger", "--journald"], input=forged)
    dropped = forged.replace(STOPPING_ID, "a596d6fe7bfa4994828e72309e95d61e")
    machine.run(["logger", "--journald"], input=dropped)
    machine.write("/run/forged", forged)
    service(machine, "forger.service", "Type=oneshot", "ExecStart=/bin/sh -c 'logger --journald </run/forged'")
    echo.say("mine")
    sync(machine)
    batch = agent.ask("f.drain()")
    assert [entry["message"] for entry in batch["entries"]] == ["mine"]
    assert batch["suppressed"] == 0


def test_a_unit_that_claims_to_be_systemd_is_only_itself(machine: Box, agent: Agent) -> None:
    agent.do("f = Follower(['liar'])")
    claim = f"MESSAGE=claim\\nUNIT=liar.service\\nMESSAGE_ID={STOPPING_ID}\\nPRIORITY=loud\\n"
    machine.write(
        "/run/liar.py",
        f"""
import socket, time
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"{claim}", "/run/systemd/journal/socket")
time.sleep(1000)  # journald asks the living for their unit
""",
    )
    service(machine, "liar.service", "ExecStart=/usr/bin/python3 /run/liar.py")
    eventually(lambda: "claim" in machine.journal("liar"))
    (claim,) = (entry for entry in agent.ask("f.drain()")["entries"] if entry["message"] == "claim")
    assert claim["by_systemd"] is False
    assert claim["priority"] == 6


def test_a_follower_older_than_the_first_line_loses_none(machine: Box, agent: Agent) -> None:
    agent.do("f = Follower(['late'])")
    assert agent.ask("f.drain()")["entries"] == []
    echo = Echo(machine, "late")
    expected = [f"line {n}" for n in range(100)]
    got: list[str] = []
    for n in range(0, 100, 20):
        echo.say(*expected[n : n + 20])
        got += lines(agent.ask("f.drain()"))
    assert got == expected


def test_a_follower_older_than_a_unit_that_came_and_went_loses_none(machine: Box, agent: Agent) -> None:
    agent.do("f = Follower(['brief'])")
    assert agent.ask("f.drain()")["entries"] == []
    service(machine, "brief.service", "Type=oneshot", "ExecStart=/usr/bin/seq 0 99")
    sync(machine)
    batch = agent.ask("f.drain()")
    assert lines(batch) == [str(n) for n in range(100)]
    assert len(batch["entries"]) > 100


def test_a_follower_begins_after_what_was_there(machine: Box, agent: Agent) -> None:
    echo = Echo(machine, "before")
    echo.say("old 1", "old 2")
    sync(machine)
    agent.do("f = Follower(['before'])")
    assert agent.ask("f.drain()")["entries"] == []
    echo.say("new")
    assert lines(agent.ask("f.drain()")) == ["new"]


def test_looking_back_to_the_units_start_and_no_further(machine: Box, agent: Agent) -> None:
    echo = Echo(machine, "again")
    echo.say("first run")
    machine.run(["journalctl", "--rotate"])
    machine.run(["systemctl", "restart", "again"])
    echo.say("second run 1", "second run 2")
    agent.do("from inferops.core import unit; f = Follower(['again'], since_t=unit.show('again').start_t)")
    batch = agent.ask("f.drain()")
    assert lines(batch) == ["second run 1", "second run 2"]
    assert [entry["message_id"] for entry in batch["entries"] if entry["by_systemd"]] == [STARTED_ID]
    assert len({entry["invocation"] for entry in batch["entries"]}) == 1
    echo.say("and on")
    machine.run(["journalctl", "--rotate"])
    echo.say("and further")
    assert lines(agent.ask("f.drain()")) == ["and on", "and further"]
    agent.do("g = Follower(['unborn'], since_t=unit.boottime_of(0.0))")
    assert agent.ask("g.drain()")["entries"] == []
    Echo(machine, "unborn").say("born")
    assert lines(agent.ask("g.drain()")) == ["born"]


def test_two_units_together(machine: Box, agent: Agent) -> None:
    one, two, other = Echo(machine, "one"), Echo(machine, "two"), Echo(machine, "other")
    agent.do("f = Follower(['one', 'two'])")
    one.say("a")
    other.say("x")
    two.say("b")
    one.say("c")
    batch = agent.ask("f.drain()")
    assert [(entry["unit"], entry["message"]) for entry in batch["entries"]] == [
        ("one.service", "a"), ("two.service", "b"), ("one.service", "c")
    ]  # fmt: skip


def test_each_line_once_while_files_rotate_and_journald_dies(machine: Box, agent: Agent) -> None:
    agent.do("f = Follower(['busy'])")
    code = "i=0; while [ $i -lt 4000 ]; do echo n $i; i=$((i+1)); [ $((i%200)) = 0 ] && sleep 0.1; done; sleep 1000"
    machine.write("/run/busy.sh", code)
    service(machine, "busy.service", "ExecStart=/bin/sh /run/busy.sh")
    got: list[str] = []
    for n in range(8):
        batch = agent.ask("f.drain()")
        assert batch["gap"] is None
        got += lines(batch)
        if n == 3:
            machine.run(["systemctl", "kill", "--signal=KILL", "systemd-journald"])
        else:
            machine.run(["journalctl", "--rotate"])
        time.sleep(0.25)

    def drained() -> bool:
        batch = agent.ask("f.drain()")
        assert batch["gap"] is None
        got.extend(lines(batch))
        return "n 3999" in got

    eventually(drained)
    assert got == [f"n {n}" for n in range(4000)]


@pytest.mark.parametrize("rotate_first", [False, True])
def test_files_removed_unread_are_a_gap_with_its_bounds(machine: Box, agent: Agent, rotate_first: bool) -> None:
    echo = Echo(machine, f"gappy{rotate_first:d}")
    echo.say("seen")
    agent.do(f"f = Follower([{echo.unit!r}])")
    if rotate_first:
        machine.run(["journalctl", "--rotate"])
    echo.say("lost 1", "lost 2", "lost 3")
    machine.run(["journalctl", "--rotate", "--vacuum-files=1"])
    echo.say("found")
    batch = agent.ask("f.drain()")
    assert lines(batch) == ["found"]
    words = batch["gap"].split()
    assert words[:2] == ["up", "to"]
    assert 3 <= int(words[2]) <= 30  # those, and what others wrote meanwhile
    assert words[3:7] == ["journal", "entries", "lost", "between"]
    assert len(words[7]) == len(words[9]) == len("00:00:00")
    echo.say("on")
    batch = agent.ask("f.drain()")
    assert (lines(batch), batch["gap"]) == (["on"], None)


def test_too_much_to_count_is_told(machine: Box, agent: Agent) -> None:
    echo = Echo(machine, "flood")
    agent.do("from inferops.core import journal; f = Follower(['flood']); journal.SCAN_MAX_ENTRIES = 5")
    echo.say("1", "2")
    machine.run(["journalctl", "--rotate"])
    assert agent.ask("f.drain()")["gap"] is None
    echo.say(*(str(n) for n in range(9)))
    machine.run(["journalctl", "--rotate"])
    batch = agent.ask("f.drain()")
    assert len(lines(batch)) == 9
    assert "over 5 journal entries since" in batch["gap"]


def test_a_vacuum_of_what_was_read_is_no_gap(machine: Box, agent: Agent) -> None:
    echo, other = Echo(machine, "tidy"), Echo(machine, "untidy")
    agent.do("f = Follower(['tidy'])")
    for n in range(3):
        echo.say(f"line {n}")
        other.say(f"of others {n}")
        batch = agent.ask("f.drain()")
        assert (lines(batch), batch["gap"]) == ([f"line {n}"], None)
        machine.run(["journalctl", "--rotate", "--vacuum-files=1"])
        batch = agent.ask("f.drain()")
        assert (lines(batch), batch["gap"]) == ([], None)


def test_a_unit_of_another_user_has_a_file_of_its_own(machine: Box, agent: Agent) -> None:
    agent.do("f = Follower(['theirs'])")
    machine.run(["tee", "-a", "/etc/passwd"], input="theirs:x:23456:65534::/:/bin/false\n")
    echo = Echo(machine, "theirs", "User=23456")
    echo.say("from a user")
    assert "user-23456.journal" in machine.run(["sh", "-c", "ls /var/log/journal/*/"]).stdout
    machine.run(["journalctl", "--rotate"])
    echo.say("and again")
    batch = agent.ask("f.drain()")
    assert (lines(batch), batch["gap"]) == (["from a user", "and again"], None)
    machine.run(["journalctl", "--rotate"])
    echo.say("lost")
    machine.run(["journalctl", "--rotate", "--vacuum-files=1"])
    machine.run(["sh", "-c", "rm -f /var/log/journal/*/user-23456@*"])
    echo.say("found")
    batch = agent.ask("f.drain()")
    assert lines(batch) == ["found"]
    assert "lost between" in batch["gap"]


def test_binary_oversized_and_split_messages(machine: Box, agent: Agent) -> None:
    agent.do("f = Follower(['binary'])")
    code = (
        "import socket, struct, sys\n"
        "def send(raw):\n"
        "    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "    s.sendto(b'MESSAGE\\n' + struct.pack('<Q', len(raw)) + raw + b'\\n', '/run/systemd/journal/socket')\n"
        "send(b'a\\x00b')\n"
        "send(b'\\xff\\xfe bad \\x1b[31m')\n"
        "send(b'y' * 100000)\n"
        "send(b'z' * 65536)\n"
        "print('w' * 100000, flush=True)\n"
        "import time; time.sleep(1000)\n"
    )
    machine.write("/run/binary.py", code)
    service(machine, "binary.service", "ExecStart=/usr/bin/python3 /run/binary.py")
    eventually(lambda: "www" in machine.journal("binary"))
    time.sleep(0.2)
    sync(machine)
    got = lines(agent.ask("f.drain()"))
    assert got[0] == "a\x00b"
    assert got[1] == "\\xff\\xfe bad \x1b[31m"
    assert got[2] == "y" * 65536 + " [cut at 64 KiB]"
    assert got[3] == "z" * 65536
    assert "".join(got[4:]) == "w" * 100000
    assert len(got[4:]) == 3  # LineMax=48K


def test_suppressed_messages_are_counted(machine: Box, agent: Agent) -> None:
    agent.do("f = Follower(['chatty'])")
    echo = Echo(machine, "chatty", "LogRateLimitIntervalSec=2s", "LogRateLimitBurst=10")
    machine.run(["tee", "-a", echo.fifo], input="".join(f"line {n}\n" for n in range(1000)))
    time.sleep(2.5)
    echo.say("later")
    sync(machine)
    batch = agent.ask("f.drain()")
    got = lines(batch)
    assert got[-1] == "later"
    assert batch["suppressed"] > 0
    assert len(got) - 1 + batch["suppressed"] == 1000


def test_a_limit_truncates_and_loses_nothing(machine: Box, agent: Agent) -> None:
    echo = Echo(machine, "many")
    agent.do("f = Follower(['many'])")
    echo.say(*(f"line {n}" for n in range(25)))
    batches = [agent.ask("f.drain(limit=10)") for _ in range(4)]
    assert [len(batch["entries"]) for batch in batches] == [10, 10, 5, 0]
    assert [batch["truncated"] for batch in batches] == [True, True, False, False]
    assert [line for batch in batches for line in lines(batch)] == [f"line {n}" for n in range(25)]


def test_the_tail_of_a_unit(machine: Box, agent: Agent) -> None:
    echo = Echo(machine, "tailed")
    echo.say(*(f"line {n}" for n in range(10)))
    assert [entry["message"] for entry in agent.ask("tail(['tailed'], 3)")] == ["line 7", "line 8", "line 9"]
    everything = agent.ask("tail(['tailed'], 1000)")
    assert [entry["by_systemd"] for entry in everything] == [True] + [False] * 10
    assert agent.ask("tail(['tailed'], 0)") == []
    assert agent.ask("tail(['nowhere'], 5)") == []


@pytest.mark.parametrize(("group", "may"), [("nogroup", False), ("systemd-journal", True)])
def test_who_may_read_the_systems_journal(machine: Box, group: str, may: bool) -> None:
    # as systemd-tmpfiles sets it up on a real machine
    machine.run(["sh", "-c", "chgrp -R systemd-journal /var/log/journal; chmod -R g+rX /var/log/journal"])
    with Agent(machine) as agent:
        agent.do("from inferops.core.journal import Follower, tail")
        agent.become(65534, group)
        if may:
            assert agent.ask("Follower(['x']).drain()")["entries"] == []
            return
        for look in ("Follower(['x'])", "tail(['x'], 1)"):
            with pytest.raises(Raised, match=r"BlindError: .*not readable for uid 65534") as caught:
                agent.ask(look)
            assert "usermod -aG systemd-journal" in caught.value.hint


def test_a_machine_without_a_journal_is_blind(machine: Box) -> None:
    hide = 'mount -t tmpfs tmpfs /run/log; mount -t tmpfs tmpfs /var/log; exec "$@"'
    with Agent(machine, "unshare", "--mount", "sh", "-c", hide, "sh") as agent:
        agent.do("from inferops.core.journal import Follower, tail")
        for look in ("Follower(['x'])", "tail(['x'], 1)"):
            with pytest.raises(Raised, match="BlindError: no journal files"):
                agent.ask(look)


def test_a_damaged_file_ends_nothing() -> None:
    with Box(keep=[PACKAGE], journald_conf={"RateLimitBurst": "0"}) as box, Agent(box) as agent:
        echo = Echo(box, "hurt")
        agent.do("from inferops.core.journal import Follower, tail; f = Follower(['hurt'])")
        echo.say("whole")
        assert lines(agent.ask("f.drain()")) == ["whole"]
        machine_id = box.read("/etc/machine-id").strip()
        active = f"/var/log/journal/{machine_id}/system.journal"
        echo.say(*(f"doomed {n}" for n in range(50)))
        used = int(box.run(["sh", "-c", f"od -A n -t u8 -j 136 -N 8 {active}"]).stdout)  # header: tail_object_offset
        box.run(
            ["dd", "if=/dev/urandom", f"of={active}", "bs=1", f"seek={used - 20000}", "count=20000", "conv=notrunc"]
        )
        agent.ask("f.drain()")
        box.run(["systemctl", "restart", "systemd-journald"])
        box.run(["systemctl", "restart", "hurt"])
        got: list[str] = []

        def look() -> bool:
            echo.box.run(["tee", "-a", echo.fifo], input="alive\n")
            got.extend(lines(agent.ask("f.drain()")))
            return "alive" in got

        eventually(look)
        assert [entry["message"] for entry in agent.ask("tail(['hurt'], 1)")] == ["alive"]
