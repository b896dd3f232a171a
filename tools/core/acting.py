"""Carries out what the wedge policy asks for, beside the polls: capture, canary, stacks, restart; one at a time.

Each end is a Done that the next poll hears of, unless the action was cancelled: by `stop`, or by the next action, which
is only asked while an older one runs when that one's process was replaced or its class went away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from inferops.core import capturing, process, unit
from inferops.core.budget import Budget
from inferops.core.lock import Lock, holder
from inferops.core.lookout import boottime
from inferops.core.poll import Done
from inferops.core.probe import Prober
from inferops.core.settings import Resolved
from inferops.core.state import run_dir
from inferops.core.turn import Action, State
from inferops.core.verdict import InferopsError

RESTART_SLACK_S = 30.0  # over what the unit's own stop and start may take, before we say that the job hangs
KILL_S = 5.0  # for systemctl to take a signal
LET_GO_S = 5.0  # for a systemctl that is asked to end; its job goes on in systemd
OLDER_MAX_S = 2 * capturing.END_GRACE_S + LET_GO_S  # a cancelled action that takes longer hangs in the kernel


@dataclass
class Incident:
    """One armed class of one process; its capture, once there is one."""

    capture: Path | None = None


# --- edge


class Acting:
    """The actions of one sentinel. Once `stop` is set nothing more is noted in the budget."""

    def __init__(self, resolved: Resolved, prober: Prober, tape: Path, budget: Budget, stop: asyncio.Event) -> None:
        self.resolved, self.settings, self.unit = resolved, resolved.settings.sentinel, resolved.settings.live.unit
        self.budget = budget
        self._prober, self._tape, self._stop = prober, tape, stop
        self._incident = Incident()
        self._current: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: list[Done] = []

    @property
    def capture(self) -> Path | None:
        """The capture of the incident under way."""
        return self._incident.capture

    def ended(self) -> tuple[Done, ...]:
        """The actions that ended since this was last asked."""
        done, self._done = tuple(self._done), []
        return done

    def held(self) -> str | None:
        """What forbids a restart right now: the setting, the machine lock or the budget."""
        if self.settings.action != "restart":
            return "action is alert"
        try:
            held_by = holder(run_dir() / "machine.lock")
        except Exception as e:  # noqa: BLE001 - a lock file that cannot be understood holds
            return f"the machine lock cannot be read: {e}"
        return f"the machine lock is held by {held_by}" if held_by is not None else self.budget.held()

    def begin(self, action: Action, state: State) -> None:
        """Starts `action`, about the process that `state` is of now, once an older one has ended or was cancelled."""
        if action == "capture":
            self._incident = Incident()
        self._done = []  # an end of an older action is nobody's any more
        self._current = self._run(self._act(action, state, self._incident, self._current))

    def resumed(self, text: str) -> None:
        """Writes into the capture, once the action under way has ended, that its engine was healthy after all."""
        self._run(self._note_resumed(self._current, self._incident, text))

    async def stop(self) -> None:
        """Cancels everything and waits until it has ended: no child is left, no server left standing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _act(self, action: Action, state: State, incident: Incident, older: asyncio.Task[None] | None) -> None:
        if older is not None and not older.done():
            older.cancel()
            await asyncio.wait({older}, timeout=OLDER_MAX_S)
        try:
            done = await self._carry_out(action, state, incident)
        except (InferopsError, OSError) as e:
            done = Done(kind=action, result="failed", t=boottime(), why=str(e))
        except Exception as e:  # noqa: BLE001 - whatever it was, the policy hears that the action failed
            done = Done(kind=action, result="failed", t=boottime(), why=f"{type(e).__name__}: {e}"[:300])
        if self._current is asyncio.current_task():
            self._done.append(msgspec.structs.replace(done, pid=state.pid))

    async def _carry_out(self, action: Action, state: State, incident: Incident) -> Done:
        if action == "canary":
            return await self._prober.canary(self.settings.canary_deadline_s or self.resolved.profile.canary.deadline_s)
        if action == "restart":
            return await self.restart(state)
        if action == "capture":
            ok, why, incident.capture = await capturing.passive(
                self.resolved, f"class {state.wclass}", self._tape, self.settings.capture_gap_s
            )
        else:
            ok, why = await capturing.stacks(self.resolved, incident.capture, self.settings.stacks_deadline_s)
        return Done(kind=action, result="ok" if ok else "failed", t=boottime(), why=why)

    async def restart(self, judged: State) -> Done:
        """Restarts the unit once: lock, budget written, one more look at the pid, systemctl, the new pid.

        `judged` is of the moment when it was asked: polls go on meanwhile and may see another process.
        """

        def failed(why: str) -> Done:
            return Done(kind="restart", result="failed", t=boottime(), why=why)

        with Lock(run_dir() / "machine.lock", f"sentinel restart of {self.unit}"):
            if (reason := self.budget.held()) is not None:
                return failed(reason)
            before = await asyncio.to_thread(unit.show, self.unit)
            if judged.key is None or (before.main_pid, before.start_t) != judged.key[:2]:
                return failed(f"main pid is {before.main_pid} now, not the one that was judged: not restarted")
            self.budget.spend(before.main_pid, time.time())
            deadline = (before.timeout_stop_s or 3600.0) + self.settings.load_max_s + RESTART_SLACK_S
            killer = self._run(self._kill_late(before.main_pid))
            try:
                await self._systemctl(deadline)
                after = await asyncio.to_thread(unit.show, self.unit)
            except InferopsError as e:
                self._settle("failed")
                return failed(str(e))
            finally:
                killer.cancel()
            if after.main_pid in (0, before.main_pid):
                self._settle("failed")
                return failed(f"main pid is {after.main_pid} after it")
            self._settle("ok")
            return Done(kind="restart", result="ok", t=boottime(), why=self.budget.held() or "")

    async def _kill_late(self, pid: int) -> None:
        """Where asked for: SIGKILL to a unit that still stops after `kill_after_s`, unless a thread of it is in D
        state: no signal reaches that, and a killed process would leave its driver holding the memory."""
        if self.settings.kill_after_s is None:
            return
        await asyncio.sleep(self.settings.kill_after_s)
        with contextlib.suppress(InferopsError):  # then its TimeoutStopSec stands
            now = await asyncio.to_thread(unit.show, self.unit)
            threads = [t for p in unit.pids(now.control_group) for t in process.threads(p, False)]
            if now.main_pid == pid and now.active == "deactivating" and not any(t.state == "D" for t in threads):
                await asyncio.to_thread(unit.kill, self.unit, KILL_S)

    def _settle(self, result: str) -> None:
        """Not where the end is our own: a systemctl that was stopped with us says nothing about the restart."""
        if not self._stop.is_set():
            self.budget.settle(result)

    async def _systemctl(self, deadline_s: float) -> None:
        """`unit.restart`; where we are cancelled its systemctl is asked to end, and the job goes on in systemd."""
        job = asyncio.ensure_future(asyncio.to_thread(unit.restart, self.unit, deadline_s))
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            end = time.monotonic() + LET_GO_S
            while not job.done() and time.monotonic() < end:
                _end_systemctl(self.unit)
                await asyncio.wait({job}, timeout=0.1)
            job.cancel()
            with contextlib.suppress(asyncio.CancelledError, InferopsError):
                await job
            raise

    async def _note_resumed(self, action: asyncio.Task[None] | None, incident: Incident, text: str) -> None:
        if action is not None:
            await asyncio.wait({action})
        if incident.capture is not None:
            await capturing.resumed(self.resolved, incident.capture, text)


def _end_systemctl(name: str) -> None:
    """Asks our own child that restarts the unit to end; it runs in a thread's blocking call, so it is looked up."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if {"restart", name} <= set(child.cmdline()):
                child.terminate()
