"""Watches the live server, tells a wedge from slow work, captures it, and (only where asked to) restarts it once.

Prevents: a wedged engine that answers /health for hours; a watchdog that restarts a healthy engine in a long prefill.
Answers: does this server make progress while work is outstanding, and if not, what was it doing?
Blind to: work that no source shows (no gauges, no client connection); wrong answers; a wedge that keeps two compute
    threads busy on a CPU engine (for cpu_only_max_s); a server in a network namespace of its own; user units.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click
import msgspec

from inferops.core import announce, armed, capturing, unit
from inferops.core.budget import Budget
from inferops.core.evidence import Patience
from inferops.core.lock import Lock, holder
from inferops.core.lookout import Lookout, boottime
from inferops.core.poll import Done, Gate, Poll
from inferops.core.schema import KEYS
from inferops.core.settings import Resolved, config_option, load, local_option, output_option, routed, routed_options
from inferops.core.state import private_dir, run_dir, state_dir
from inferops.core.tape import Header, Writer
from inferops.core.turn import Action, Event, State
from inferops.core.verdict import InferopsError
from inferops.core.wedge import step

TROUBLES_MAX = 200  # each is told once; past this many different ones, anew
DUE_MARGIN_S = 0.01  # past the bound for certain: a timer may fire a little early by another clock
RESTART_SLACK_S = 30.0  # over what the unit's own stop and start may take, before we say that the job hangs


def patience_of(resolved: Resolved) -> Patience:
    """The policy's settings from the operator's and the profile's."""
    s, profile = resolved.settings.sentinel, resolved.profile
    return Patience(
        poll_s=s.poll_s,
        stall_s=s.stall_s,
        load_max_s=s.load_max_s,
        cpu_only_max_s=s.cpu_only_max_s,
        look_polls=s.look_polls,
        slowest_cadence_s=profile.slowest_cadence_s,
        action=s.action,
        canary=s.canary and profile.canary.allowed,
        canary_moves_at_most=profile.canary.moves_at_most,
        stacks=s.stacks,
        cpu_is_evidence=profile.cpu_is_evidence,
        stats_wait_for_engine=any(source.waits_for_engine for source in profile.stats),
    )


def next_poll_at(started: float, now: float, poll_s: float, due_t: float, look_s: float) -> float:
    """When the next poll begins, BOOTTIME s: on the first one's grid (a late poll skips points, never catches up), or
    when a running timer reaches its bound, if that is sooner or falls into the `look_s` that a look may take."""
    grid = started + (int((now - started) / poll_s) + 1) * poll_s
    return due_t if now < due_t < grid + look_s else grid


# --- edge


class Sentinel:
    """The loop: look, judge, tell, act. One action at a time; a poll never waits for one."""

    def __init__(self, resolved: Resolved, output: str) -> None:
        self.resolved, self.output = resolved, output
        self.settings, self.unit = resolved.settings.sentinel, resolved.settings.live.unit
        self.patience = patience_of(resolved)
        self.lookout = Lookout(resolved)
        home = private_dir(state_dir("sentinel") / self.unit)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.budget = Budget(home / "budget.json", boot, boottime)
        settings = {name: getattr(self.patience, name) for name in Patience.__dataclass_fields__}
        self.tape = Writer(home, Header(subject=self.unit, engine=resolved.profile.name, patience=settings))
        self.state = State()
        self.capture: Path | None = None
        self.levels: set[str] = set()
        self._done: list[Done] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()
        self._to_stdout = not announce.stdout_is_journal()

    async def run(self, stop: asyncio.Event, polls: int | None) -> None:
        """Polls until `stop` or `polls` are done; leaves nothing running. Raises InferopsError: no such unit."""
        await asyncio.to_thread(unit.show, self.unit)
        self.tell(Event("CONFIG", "note", boottime(), self.summary()))
        started, count = boottime(), 0
        try:
            while not stop.is_set() and (polls is None or count < polls):
                await self.once()
                count += 1
                notify(f"WATCHDOG=1\nSTATUS={self.status()}" + ("\nREADY=1" if count == 1 else ""))
                due_t = armed.due_t(self.state, self.patience) + DUE_MARGIN_S
                look_s = self.settings.probe_deadline_s
                wait = next_poll_at(started, boottime(), self.settings.poll_s, due_t, look_s) - boottime()
                try:
                    await asyncio.wait_for(stop.wait(), timeout=max(0.0, wait))
                except TimeoutError:
                    continue
        finally:
            notify("STOPPING=1")
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.tape.close()
            await self.lookout.close()

    async def once(self) -> None:
        """One poll through the policy."""
        try:
            poll = await self.lookout.poll()
        except Exception as e:  # noqa: BLE001 - the checker's own fault is a finding, never the end of the watch
            poll = Poll(t=boottime(), wall=time.time(), checker=f"{type(e).__name__}: {e}"[:300])
        done, self._done = tuple(self._done), []
        poll = msgspec.structs.replace(poll, done=done, gate=Gate(held=self.held()))
        self.record(poll)
        for trouble in self.lookout.troubles:
            if trouble not in self._told:
                self._told = {*self._told, trouble} if len(self._told) < TROUBLES_MAX else {trouble}
                self.tell(Event("GAP", "warn", poll.t, trouble))
        result = step(self.state, poll, self.patience)
        self.state = result.state
        for event in result.events:
            self.tell(event)
        if result.action is not None:
            self.begin(self.act(result.action))

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` beside the polls; `run` ends what is left of it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def held(self) -> str | None:
        """What forbids a restart right now: the machine lock or the budget."""
        if self.settings.action != "restart":
            return "action is alert"
        try:
            held_by = holder(run_dir() / "machine.lock")
        except InferopsError as e:
            return str(e)
        return f"the machine lock is held by {held_by}" if held_by is not None else self.budget.held()

    async def act(self, action: Action) -> None:
        """Carries out what the policy asked for; however it ends, the next poll hears of it."""
        try:
            if action == "capture":
                done = await self.take_capture()
            elif action == "canary":
                deadline = self.settings.canary_deadline_s or self.resolved.profile.canary.deadline_s
                done = await self.lookout.prober.canary(deadline)
            elif action == "stacks":
                ok, why = await capturing.stacks(self.resolved, self.capture, self.settings.stacks_deadline_s)
                done = Done(kind="stacks", result="ok" if ok else "failed", t=boottime(), why=why)
            else:
                done = await self.restart()
        except (InferopsError, OSError) as e:
            done = Done(kind=action, result="failed", t=boottime(), why=str(e))
        except Exception as e:  # noqa: BLE001 - whatever it was, the policy hears that the action failed
            done = Done(kind=action, result="failed", t=boottime(), why=f"{type(e).__name__}: {e}"[:300])
        self._done.append(done)

    async def take_capture(self) -> Done:
        reason, self.capture = f"class {self.state.wclass}", None
        ok, why, self.capture = await capturing.passive(
            self.resolved, reason, self.tape.path, self.settings.capture_gap_s
        )
        return Done(kind="capture", result="ok" if ok else "failed", t=boottime(), why=why)

    async def restart(self) -> Done:
        """Restarts the unit once: lock, budget written, one more look at the pid, systemctl, the new pid."""

        judged = self.state.key  # polls go on meanwhile and may bind the state to another process

        def failed(why: str) -> Done:
            return Done(kind="restart", result="failed", t=boottime(), why=why)

        with Lock(run_dir() / "machine.lock", f"sentinel restart of {self.unit}"):
            if (reason := self.budget.held()) is not None:
                return failed(reason)
            before = await asyncio.to_thread(unit.show, self.unit)
            if judged is None or (before.main_pid, before.start_t) != judged[:2]:
                return failed(f"main pid is {before.main_pid} now, not the one that was judged: not restarted")
            self.budget.spend(before.main_pid, time.time())
            deadline = (before.timeout_stop_s or 3600.0) + self.settings.load_max_s + RESTART_SLACK_S
            try:
                await asyncio.to_thread(unit.restart, self.unit, deadline)
                after = await asyncio.to_thread(unit.show, self.unit)
            except InferopsError as e:
                self.budget.settle("failed")
                return failed(str(e))
            if after.main_pid in (0, before.main_pid):
                self.budget.settle("failed")
                return failed(f"main pid is {after.main_pid} after it")
            self.budget.settle("ok")
            return Done(kind="restart", result="ok", t=boottime())

    def tell(self, event: Event) -> None:
        """One event to the journal, and to stdout where that is not the journal already."""
        self.levels.add(event.level if event.kind != "BLIND" else "blind")
        extra = {"capture": str(self.capture)} if self.capture is not None and event.wclass else {}
        try:
            announce.to_journal(event, self.unit, extra)
        except OSError as e:
            click.echo(f"inferops sentinel: the journal takes no entry: {e}", err=True)
        if self._to_stdout:
            text = announce.line(event, self.unit)
            stamp = time.strftime("%H:%M:%S", time.localtime(time.time() - (boottime() - event.t)))
            click.echo(announce.record(event, self.unit, time.time()) if self.output == "json" else f"{stamp} {text}")
        if event.kind == "WEDGE" and self.settings.action == "restart":
            try:
                self.budget.latch()
            except Exception as e:  # noqa: BLE001 - an open latch still counts the restarts
                click.echo(f"inferops sentinel: the budget cannot be latched: {e}", err=True)
        if event.kind == "RESUMED":
            self.begin(self.note_resumed(tuple(self._tasks), event.text))

    async def note_resumed(self, under_way: tuple[asyncio.Task[None], ...], text: str) -> None:
        """Lets the action under way end, then says in the capture that its engine was healthy after all."""
        await asyncio.gather(*under_way, return_exceptions=True)
        if self.capture is not None:
            await capturing.resumed(self.resolved, self.capture, text)

    def record(self, poll: Poll) -> None:
        try:
            self.tape.write(poll)
        except OSError as e:
            if "tape" not in self._told:
                self._told.add("tape")
                self.tell(Event("GAP", "warn", poll.t, f"the tape cannot be written: {e}"))

    def summary(self) -> str:
        s, live, onoff = self.settings, self.resolved.settings.live, {True: "on", False: "off"}
        return (
            f"pid {os.getpid()} watches {live.url} as {self.resolved.profile.name}: poll {s.poll_s:g} s, stall "
            f"{s.stall_s:g} s, action {s.action}, canary {onoff[self.patience.canary]}, stacks {onoff[s.stacks]}"
        )

    def status(self) -> str:
        s = self.state
        if s.ready_t is None:
            return f"pid {s.pid} not proven ready yet"
        return f"pid {s.pid} {s.stage}" + (f" class {s.wclass}" if s.wclass else "")


def notify(message: str) -> None:
    """sd_notify; nothing happens outside a systemd unit."""
    from systemd import daemon

    daemon.notify(message)


@click.command(name="run", short_help="watch the live server")
@config_option
@routed_options(*KEYS)
@local_option(
    "--polls", type=click.IntRange(min=1), help="stop after this many polls [until stopped]", why="one call's length"
)
@output_option
def main(config: Path | None, polls: int | None, output: str, **given: Any) -> int:
    """Watch the live server until stopped."""
    resolved = load(config=config, flags=routed(**given), environ=os.environ, cwd=Path.cwd())
    lock = Lock(
        run_dir() / f"sentinel-{resolved.settings.live.unit}.lock", f"sentinel of {resolved.settings.live.unit}"
    )
    with lock:
        return asyncio.run(_main(Sentinel(resolved, output), polls))


async def _main(sentinel: Sentinel, polls: int | None) -> int:
    stop = asyncio.Event()
    got: list[int] = []

    def stopped(number: int) -> None:
        got.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped, number)
    await sentinel.run(stop, polls)
    if got:
        return 128 + got[0]
    return 1 if "alert" in sentinel.levels else 3 if "blind" in sentinel.levels else 0


if __name__ == "__main__":
    sys.exit(main())
