"""A box: a real systemd as PID 1 with journald, D-Bus and cgroup2, in private pid, mount, ipc, uts, cgroup and net
namespaces, on a machine whose own PID 1 may be anything.

Private inside: /tmp, /var/tmp, /run, /dev, /etc, /var/lib, /var/log (in /etc and /var/lib the machine's own files show
through and every write is the box's), and a network of loopback alone. Everything else is the machine's, under the same
path and writable: the checkout and the venv also where they lie under a private directory. GPU devices are not inside.

Linux 5.14, root or CAP_SYS_ADMIN, systemd 250 or newer installed (not running), bash, util-linux.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from . import host, ns
from .host import BoxError, names

__all__ = ["CHECKOUT", "Box", "BoxError", "names"]

CHECKOUT = Path(__file__).resolve().parents[3]
_BOOT_S = 30.0  # a boot takes about 0.5 s; twelve at once on two loaded cores took under 10 s
_END_S = 15.0


class Box:
    """One box: `with Box() as box: box.run(["systemctl", "start", "x.service"])`.

    It ends with `down()`, with the `with` block, or with its owner process however that dies (SIGKILL too), unless
    `stay`: then only `down()` ends it. `keep` are paths to leave visible under a private directory (a test's tmp_path).
    `journald_conf` are settings of [Journal], e.g. {"RateLimitBurst": "0"}.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        keep: Sequence[Path] = (),
        journald_conf: Mapping[str, str] | None = None,
        stay: bool = False,
    ) -> None:
        self.name = name or secrets.token_hex(6)
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", self.name):
            raise BoxError(f"box name {self.name!r}: expected 1 to 40 of a-z, 0-9 and -")
        self.keep, self.journald_conf, self.stay = tuple(keep), dict(journald_conf or {}), stay
        self.cgroup: Path = host.cgroup_of(self.name)
        self.pid = 0  # the host's pid of the box's PID 1; 0 when it is not up
        self._keeper: subprocess.Popen[bytes] | None = None
        self._console: IO[bytes] | None = None
        self._printed = ""

    @staticmethod
    def missing() -> str | None:
        """Why no box can be had on this machine by this process, and what to run; None if it can."""
        return host.missing()

    @classmethod
    def attach(cls, name: str) -> Box:
        """A box that another process made. Raises BoxError: none of that name is up."""
        box = cls(name)
        box.pid = host.init_of(box.cgroup)
        if not box.pid:
            raise BoxError(f"no box named {name!r} is up (up: {', '.join(names()) or 'none'})")
        return box

    def up(self) -> Box:
        """Boots it and waits until systemd says that it runs. Raises BoxError with the console's last lines."""
        for cgroup in host.cgroups():
            ns.reclaim(cgroup)  # of a keeper that was killed together with its owner
        if self.cgroup.exists():
            raise BoxError(f"a box named {self.name!r} is up already")
        self._console = os.fdopen(os.memfd_create(self.cgroup.name), "rb", buffering=0)
        visible = [CHECKOUT, Path.cwd(), Path(sys.prefix), Path(sys.base_prefix), *self.keep]
        env = {
            "PATH": host.PATH,
            "BOX_NAME": self.name,
            "BOX_KEEP": "\n".join(host.hidden(visible)),
            "BOX_JOURNALD": "".join(["[Journal]\n", *(f"{k}={v}\n" for k, v in self.journald_conf.items())]),
            "BOX_SYSTEMD": next(filter(os.path.exists, host.SYSTEMD), host.SYSTEMD[0]),
        }
        boot = str(Path(__file__).with_name("boot.sh"))
        self._keeper = subprocess.Popen(
            host.script("keep", cgroup=str(self.cgroup), boot=boot, env=env, stay=self.stay),
            stdin=subprocess.DEVNULL if self.stay else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._console,
            cwd="/",
            start_new_session=True,
        )
        try:
            end = time.monotonic() + _BOOT_S
            self.pid = self._told(end)
            self._wait_ready(end)
        except BaseException:
            self._end()
            raise
        return self

    def down(self) -> None:
        """Ends it: every process in it killed, its cgroup removed. Raises BoxError if that can't be brought about."""
        if not self._end():
            raise BoxError(f"box {self.name}: {self.cgroup} is still there; look into its cgroup.procs")

    def run(
        self,
        argv: Sequence[str | Path],
        timeout: float = 60.0,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs one command inside as root and waits for it, at most `timeout` seconds.

        Its environment is a plain one (PATH, HOME, LANG) with `env` on top. Raises subprocess.TimeoutExpired (the
        command is killed), BoxError with the command's last words if `check` and it fails.
        """
        with self.popen(argv, env=env, stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL) as process:
            try:
                out, err = process.communicate(input, timeout=timeout)
            except BaseException:
                process.send_signal(ns.KILL)
                raise
        if check and process.returncode != 0:
            raise BoxError(
                f"in box {self.name}: {' '.join(map(str, argv))} ended with {process.returncode}: "
                f"{(err.strip() or out.strip())[-2000:]}"
            )
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def popen(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Starts one command inside; `options` as for subprocess.Popen (stdout and stderr are pipes unless given).

        Its returncode, and signals sent to it, are the command's; SIGKILL ends the command too, not its descendants.
        """
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(
            self.command(argv), env=self.environment(env), text=True, start_new_session=True, **options
        )

    def command(self, argv: Sequence[str | Path]) -> list[str]:
        """The host's command line that runs argv inside. Raises BoxError: the box is not up."""
        if not self.pid:
            raise BoxError(f"box {self.name} is not up")
        return host.script("enter", pid=self.pid, cgroup=str(self.cgroup), cwd=os.getcwd(), argv=[str(a) for a in argv])

    @staticmethod
    def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a command inside gets: nothing of the caller's but PATH, with `env` on top."""
        return {"PATH": os.environ.get("PATH", host.PATH), "HOME": "/root", "LANG": "C.UTF-8"} | dict(env or {})

    def write(self, path: str | Path, text: str, mode: int = 0o644) -> None:
        """Writes a file inside, with the directories above it; a unit file needs `systemctl daemon-reload` after."""
        script = 'mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"'
        self.run(["sh", "-c", script, "sh", path, f"{mode:o}"], input=text)

    def read(self, path: str | Path) -> str:
        """The text of a file inside. Raises BoxError: it can't be read."""
        return self.run(["cat", path]).stdout

    def journal(self, unit: str | None = None, *options: str) -> str:
        """What journald has, of one unit or all, everything sent so far included; `options` are journalctl's."""
        self.run(["journalctl", "--sync"])
        return self.run(["journalctl", "--no-pager", *(["-u", unit] if unit else []), *options]).stdout

    def console(self) -> str:
        """What the boot printed, at most 1 MiB; also after its end."""
        if self._console is not None:
            size = os.fstat(self._console.fileno()).st_size
            self._printed = os.pread(self._console.fileno(), size, 0).decode(errors="replace")
        return self._printed

    def connect(self, port: int, timeout: float = 10.0) -> socket.socket:
        """A TCP connection from this process to 127.0.0.1:port of the box. Raises OSError as socket.connect does."""
        made: list[socket.socket | OSError] = []

        def work() -> None:  # a thread of its own: only it changes its network namespace, and it ends right after
            try:
                with open(f"/proc/{self.pid}/ns/net") as net:
                    ns.setns(net.fileno(), ns.NEWNET)
                made.append(socket.create_connection(("127.0.0.1", port), timeout))
            except OSError as e:
                made.append(e)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def __enter__(self) -> Box:
        return self if self.pid else self.up()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.down()

    def _told(self, end: float) -> int:
        """The keeper's one line: `init PID`."""
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        ready, _, _ = select.select([self._keeper.stdout], [], [], max(0.0, end - time.monotonic()))
        line = self._keeper.stdout.readline().split() if ready else []
        if len(line) != 2:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(1.0)
            raise BoxError(f"box {self.name}: {self.missing() or self._last_words()}")
        return int(line[1])

    def _wait_ready(self, end: float) -> None:
        state = ""
        while time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                left = max(1.0, end - time.monotonic())
                done = self.run(["systemctl", "is-system-running", "--wait"], timeout=left, check=False)
                state = done.stdout.strip()
                if state in ("running", "degraded"):
                    return
                if done.returncode == 125 and not Path(f"/proc/{self.pid}").exists():
                    break  # PID 1 is gone; while it still makes its namespaces, they can't be entered either
            time.sleep(0.02)  # systemd does not listen yet
        raise BoxError(f"box {self.name} did not boot (state: {state or 'none'}): {self._last_words()}")

    def _last_words(self) -> str:
        words = "the console's last lines:\n" + "\n".join(self.console().splitlines()[-15:])
        with contextlib.suppress(OSError):
            for pid in (self.cgroup / "cgroup.procs").read_text().split()[:10]:
                comm = Path(f"/proc/{pid}/comm").read_text().strip()
                words += f"\npid {pid} ({comm}) waits in {Path(f'/proc/{pid}/wchan').read_text()}"
        return words

    def _end(self) -> bool:
        pid, self.pid = self.pid, 0
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            if keeper.stdin is not None:
                keeper.stdin.close()
            else:
                keeper.terminate()
            try:
                keeper.wait(_END_S)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
            if keeper.stdout is not None:
                keeper.stdout.close()
        elif pid and host.init_of(self.cgroup) == pid:
            os.kill(pid, signal.SIGKILL)
        if self._console is not None:
            self.console()
            self._console.close()
            self._console = None
        end = time.monotonic() + _END_S
        while not ns.reclaim(self.cgroup) and time.monotonic() < end:
            time.sleep(0.01)  # its keeper is cleaning up
        return not self.cgroup.exists()
