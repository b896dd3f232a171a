"""Watches the live server, tells a wedge from slow work, captures it, and (only where asked to) restarts it once.

Prevents: a wedged engine that answers /health for hours; a watchdog that restarts a healthy engine in a long prefill.
Answers: does this server make progress while work is outstanding, and if not, what was it doing?
Blind to: work that no source shows (gauges, client connections, request log); wrong answers; a wedge that keeps two
    compute threads busy on a CPU engine (for cpu_only_max_s); a server in a network namespace of its own; user units.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from inferops.core import announce, armed, unit
from inferops.core.acting import Acting
from inferops.core.budget import Budget
from inferops.core.evidence import Patience
from inferops.core.lock import Lock
from inferops.core.lookout import Lookout, Troubles, boottime
from inferops.core.poll import Gate, Poll
from inferops.core.schema import KEYS
from inferops.core.settings import Resolved, config_option, load, local_option, output_option, routed, routed_options
from inferops.core.state import private_dir, run_dir, state_dir
from inferops.core.tape import Header, Writer
from inferops.core.turn import Event, State
from inferops.core.wedge import step

DUE_MARGIN_S = 0.01  # past the bound for certain: a timer may fire a little early by another clock


def patience_of(resolved: Resolved) -> Patience:
    """The policy's settings from the operator's and the profile's."""
    s, profile = resolved.settings.sentinel, resolved.profile
    return Patience(
        poll_s=s.poll_s,
        stall_s=s.stall_s,
        load_max_s=s.load_max_s,
        cpu_only_max_s=s.cpu_only_max_s,
        relief_max_s=s.relief_max_s,
        request_max_s=s.request_max_s,
        idle_canary_s=s.idle_canary_s or 0.0,
        look_polls=s.look_polls,
        slowest_cadence_s=profile.slowest_cadence_s,
        action=s.action,
        canary=s.canary and profile.canary.allowed,
        canary_moves_at_most=profile.canary.moves_at_most,
        stacks=s.stacks,
        cpu_is_evidence=profile.cpu_is_evidence,
        counters_move_in_prefill=profile.counters_move_in_prefill,
        busy_counter=profile.busy_counter,
        counter_digits=profile.counter_digits,
        stats_wait_for_engine=any(source.waits_for_engine for source in profile.stats),
    )


def next_poll_at(started: float, now: float, poll_s: float, due_t: float, look_s: float) -> float:
    """When the next poll begins, BOOTTIME s: on the first one's grid (a late poll skips points, never catches up), or
    when a running timer reaches its bound, if that is sooner or falls into the `look_s` that a look may take."""
    grid = started + (int((now - started) / poll_s) + 1) * poll_s
    return due_t if now < due_t < grid + look_s else grid


# --- edge


class Sentinel:
    """The loop: look, judge, tell, act. A poll never waits for an action. Once `stop` is set nothing is judged any
    more: what ends then may have been ended with us."""

    def __init__(self, resolved: Resolved, output: str) -> None:
        self.resolved, self.output = resolved, output
        self.settings, self.unit = resolved.settings.sentinel, resolved.settings.live.unit
        self.patience = patience_of(resolved)
        self.lookout = Lookout(resolved)
        home = private_dir(state_dir("sentinel") / self.unit)
        self.budget = Budget.here(home / "budget.json")
        settings = {name: getattr(self.patience, name) for name in Patience.__dataclass_fields__}
        self.tape = Writer(home, Header(subject=self.unit, engine=resolved.profile.name, patience=settings))
        self.stop = asyncio.Event()
        self.acting = Acting(resolved, self.lookout.prober, self.tape.path, self.budget, self.stop)
        self.state = State()
        self.levels: set[str] = set()
        self._troubles = Troubles()
        self._to_stdout = not announce.stdout_is_journal()

    async def run(self, polls: int | None) -> None:
        """Polls until `stop` is set or `polls` are done; leaves nothing running."""
        self.tell(Event("CONFIG", "note", boottime(), self.summary()))
        started, count = boottime(), 0
        try:
            while not self.stop.is_set() and (polls is None or count < polls):
                poll = await self.look()
                if poll is None:
                    break
                self.judge(poll)
                count += 1
                notify(f"WATCHDOG=1\nSTATUS={self.status()}" + ("\nREADY=1" if count == 1 else ""))
                due_t = armed.due_t(self.state, self.patience) + DUE_MARGIN_S
                look_s = self.settings.probe_deadline_s
                wait = next_poll_at(started, boottime(), self.settings.poll_s, due_t, look_s) - boottime()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), timeout=max(0.0, wait))
        finally:
            notify("STOPPING=1")
            await self.acting.stop()
            self.tape.close()
            await self.lookout.close()

    async def look(self) -> Poll | None:
        """One poll; None where `stop` was set meanwhile."""
        look, stopped = asyncio.create_task(self.lookout.poll()), asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait({look, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not look.done():
                look.cancel()
        try:
            poll = await look
        except asyncio.CancelledError:
            return None
        except Exception as e:  # noqa: BLE001 - the checker's own fault is a finding, never the end of the watch
            poll = Poll(t=boottime(), wall=time.time(), checker=f"{type(e).__name__}: {e}"[:300])
        return None if self.stop.is_set() else poll

    def judge(self, poll: Poll) -> None:
        """One poll, with what ended meanwhile, through the policy; what it says is told, what it wants is begun."""
        poll = msgspec.structs.replace(poll, done=self.acting.ended(), gate=Gate(held=self.acting.held()))
        troubles = list(self.lookout.troubles)
        try:
            self.tape.write(poll)
        except OSError as e:
            troubles.append(f"the tape cannot be written: {e}")
        for trouble in self._troubles.news(troubles, poll.t):
            self.tell(Event("GAP", "warn", poll.t, trouble))
        result = step(self.state, poll, self.patience)
        self.state = result.state
        for event in result.events:
            self.tell(event)
        if result.action is not None:
            self.acting.begin(result.action, self.state)

    def tell(self, event: Event) -> None:
        """One event to the journal, and to stdout where that is not the journal already."""
        self.levels.add(event.level if event.kind != "BLIND" else "blind")
        extra = {"capture": str(self.acting.capture)} if self.acting.capture is not None and event.wclass else {}
        try:
            announce.to_journal(event, self.unit, extra)
        except OSError as e:
            announce.to_stderr(f"inferops sentinel: the journal takes no entry: {e}")
        if self._to_stdout:
            self.show(event)
        if event.kind == "RESUMED" and event.text.endswith(armed.OF_A_HEALTHY_ENGINE):
            self.acting.resumed(event.text)

    def show(self, event: Event) -> None:
        """One event on stdout; one that takes no more is told once, and the watch goes on without it."""
        stamp = time.strftime("%H:%M:%S", time.localtime(time.time() - (boottime() - event.t)))
        text = f"{stamp} {announce.line(event, self.unit)}"
        why = announce.to_stdout(announce.record(event, self.unit, time.time()) if self.output == "json" else text)
        if why is not None:
            self._to_stdout = False
            why = f"stdout takes no more: {why}; the events go to the journal alone"
            announce.to_stderr(f"inferops sentinel: {why}")
            self.tell(Event("GAP", "warn", boottime(), why))

    def summary(self) -> str:
        s, live, onoff = self.settings, self.resolved.settings.live, {True: "on", False: "off"}
        return (
            f"pid {os.getpid()} watches {live.url} as {self.resolved.profile.name}: poll {s.poll_s:g} s, stall "
            f"{s.stall_s:g} s, action {s.action}, canary {onoff[self.patience.canary]}, stacks {onoff[s.stacks]}"
        )

    def status(self) -> str:
        s = self.state
        if not s.ready:
            return f"pid {s.pid} not proven ready yet"
        return f"pid {s.pid} {s.stage}" + (f" class {s.wclass}" if s.wclass else "")


def named(resolved: Resolved) -> Resolved:
    """The same settings with the unit by its own name: under an alias it would have a second lock, budget and tape.

    Raises as `unit.show`: UsageError: no such unit; BlindError: systemd does not answer.
    """
    name = unit.show(resolved.settings.live.unit).name
    live = msgspec.structs.replace(resolved.settings.live, unit=name)
    return msgspec.structs.replace(resolved, settings=msgspec.structs.replace(resolved.settings, live=live))


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
    resolved = named(load(config=config, flags=routed(**given), environ=os.environ, cwd=Path.cwd()))
    name = resolved.settings.live.unit
    with Lock(run_dir() / f"sentinel-{name}.lock", f"sentinel of {name}"):
        return asyncio.run(_main(resolved, output, polls))


async def _main(resolved: Resolved, output: str, polls: int | None) -> int:
    sentinel = Sentinel(resolved, output)
    got: list[int] = []

    def stopped(number: int) -> None:
        got.append(number)
        sentinel.stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped, number)
    await sentinel.run(polls)
    if got:
        return 128 + got[0]
    return 1 if "alert" in sentinel.levels else 3 if "blind" in sentinel.levels else 0


if __name__ == "__main__":
    sys.exit(main())
