"""Saves what a wedged server can still tell, before it is restarted: threads twice, stats, journal, sockets, stacks.

Prevents: a wedge that is restarted away at night, and in the morning nobody can say what the engine was waiting for.
Answers: what did every thread of the unit do for a few seconds, and how is that to be read?
Blind to: what the GPU did; Python frames; a process that left the unit's cgroup; what the journal had dropped.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from inferops import __version__
from inferops.core import captures, looks, process, readers, stacks, unit
from inferops.core.captures import Folder, Manifest, NoRoom, Part
from inferops.core.readers import Job, Read
from inferops.core.settings import Resolved, config_option, load, local_option, output_option, routed, routed_options
from inferops.core.state import private_dir, stamp, state_dir
from inferops.core.verdict import BlindError, Finding, InferopsError, Refused, UsageError, Verdict, render

LOOK_MAX_S = 10.0  # all of /proc of 1,000 threads takes some 0.1 s; more is a hang
PARTS_SLACK_S = 10.0  # over the gap and the probes, for the journal, sockets and files together
REASON_MAX = 1000
KEYS = (
    "live.unit", "live.engine", "live.url", "live.stats_url", "live.api_key_file", "sentinel.probe_deadline_s",
    "sentinel.capture_gap_s", "sentinel.stacks", "sentinel.stacks_deadline_s", "captures.dir", "captures.max_count",
    "captures.max_bytes", "captures.max_days",
)  # fmt: skip


def steps(*, passive: bool, stacks_flag: bool | None, stacks_set: bool, exists: bool) -> tuple[str, ...]:
    """What one call does: --into an earlier capture with --stacks adds the stacks, else a look comes first."""
    if stacks_flag and exists and not passive:
        return ("stacks",)
    both = bool(stacks_flag) if passive else stacks_set
    return ("passive", "stacks") if both else ("passive",)


def state_of(parts: Iterable[Part]) -> captures.State:
    """How far a capture is that nobody writes any more."""
    parts = tuple(parts)
    if any(part.level == "blind" for part in parts):
        return "partial"
    return "whole" if any(part.id == "stacks" for part in parts) else "passive"


def stacks_part(taken: Sequence[stacks.Stacks]) -> Part:
    """One part for all processes; a target that was left stopped is said first."""
    bad = [f"pid {one.pid} IS LEFT STOPPED: kill -CONT {one.pid}" for one in taken if one.left_stopped]
    bad += [one.why for one in taken if one.why]
    again = "".join(f"; pid {one.pid} had to be continued" for one in taken if one.continued and not one.left_stopped)
    if bad or not taken:
        return Part("stacks", "blind", ("; ".join(dict.fromkeys(bad)) or "no process to look at") + again)
    frames, threads, took = (sum(getattr(one, key) for one in taken) for key in ("frames", "threads", "took_s"))
    return Part("stacks", "ok", f"{frames} frames of {threads} threads in {took:.1f} s{again}")


# --- edge


class Capture:
    """One call's work on one directory."""

    def __init__(self, resolved: Resolved, folder: Folder, manifest: Manifest) -> None:
        self.resolved, self.folder, self.manifest = resolved, folder, manifest
        self.parts: list[Part] = []

    def note(self, **changes: Any) -> None:
        self.manifest = self.folder.note(msgspec.structs.replace(self.manifest, **changes))

    def run(self, step: str, work: Any) -> None:
        """One step; the manifest says when it began, and who is at it, before it does anything."""
        self.note(
            state="in progress", by=captures.me(), times=self.manifest.times | {f"{step}_begin": readers.boottime()}
        )
        work()
        self.note(times=self.manifest.times | {f"{step}_end": readers.boottime()})

    def close(self) -> None:
        """No more is written by this call."""
        parts = (*self.manifest.parts, *self.parts)
        self.note(state=state_of(parts), parts=parts)

    def passive(self, pids: tuple[int, ...], control_group: str, tape: Path | None) -> None:
        """Two looks at the threads, and between them everything else. Stops nothing."""
        settings = self.resolved.settings
        gap, port = settings.sentinel.capture_gap_s, urlsplit(settings.live.url).port or 80
        until = time.monotonic() + LOOK_MAX_S + gap + settings.sentinel.probe_deadline_s + PARTS_SLACK_S
        first = Job("threads", lambda: readers.look(pids)).result(LOOK_MAX_S)
        versions = Job("versions", readers.versions)
        jobs = [
            Job("stats", lambda: readers.stats(self.resolved)),
            Job("journal", lambda: readers.journal(settings.live.unit)),
            Job("sockets", lambda: readers.sockets(port, pids, control_group)),
            Job("processes", lambda: readers.processes(pids)),
        ]
        if tape is not None:
            jobs.append(Job("tape", lambda: readers.tape(tape)))
        time.sleep(max(0.0, first.t + gap - readers.boottime()))
        second = Job("threads", lambda: readers.look(pids)).result(LOOK_MAX_S)
        self.threads(first, second, self.take(jobs[0], until))
        for job in jobs[1:]:
            self.take(job, until)
        own = {"inferops": __version__, "python": platform.python_version(), "kernel": platform.release()}
        with suppress(BlindError):
            own |= versions.result(until - time.monotonic())
        self.note(pids=pids, exe=first.exe, versions=own)

    def take(self, job: Job[Read], until: float) -> Read | None:
        """One part; what can't be looked at is blind, only a disk that takes no more ends the whole."""
        try:
            read = job.result(until - time.monotonic())
        except InferopsError as e:
            self.parts.append(Part(job.name, "blind", str(e)))
            return None
        for name, data in read.files.items():
            self.folder.write(name, data)
        self.parts.append(read.part)
        return read

    def threads(self, first: readers.Look, second: readers.Look, stats: Read | None) -> None:
        """Writes both looks, side by side, and the sentence."""
        wall, pairs = second.t - first.t, looks.pair(first.threads, second.threads)
        both = sum(one.before is not None and one.after is not None for one in pairs)
        outstanding, silent = (stats.outstanding, stats.silent) if stats else (None, False)
        sentence = looks.reading(pairs, wall_s=wall, gpu=second.gpu, outstanding=outstanding, silent=silent)
        rows = {
            "schema": "inferops.threads/1", "t": [first.t, second.t], "gpu": second.gpu, "reading": sentence,
            "threads": looks.rows(pairs, wall), "kernel_stacks": second.kernel_stacks,
        }  # fmt: skip
        self.folder.write("threads.json", msgspec.json.encode(rows))
        self.folder.write("threads.txt", looks.report(pairs, wall, sentence, second.kernel_stacks).encode())
        of = readers.plural(len({one.thread.pid for one in pairs}), "process")
        said = f"{readers.plural(both, 'thread')} of {of}, two looks {wall:.2f} s apart"
        self.parts.insert(0, Part("passive", "ok" if both else "blind", said))
        self.note(reading=sentence)

    def stacks(self, pids: Sequence[int]) -> None:
        """gdb on each process, the main one first, all within one deadline; the server stands still meanwhile."""
        until = time.monotonic() + self.resolved.settings.sentinel.stacks_deadline_s
        taken = []
        for pid in sorted(pids, key=lambda one: one != self.manifest.pid):
            left = until - time.monotonic()
            taken.append(stacks.take(pid, left) if left > 0 else stacks.Stacks(pid=pid, why=f"pid {pid}: no time left"))
        self.parts.append(stacks_part(taken))
        text = "".join(f"== pid {one.pid}: {one.why or 'every thread'}\n{one.text}\n" for one in taken)
        self.folder.write("stacks.txt", text.encode())


def work(resolved: Resolved, into: Path | None, reason: str, tape: Path | None, do: tuple[str, ...]) -> Capture:
    """The steps `do` in a new or an earlier directory; what comes of them is noted there."""
    name = resolved.settings.live.unit
    state = unit.show(name)
    if not state.main_pid:
        raise BlindError(f"{name}: nothing runs ({state.active}, {state.sub})", f"systemctl status {name}")
    pids = unit.pids(state.control_group) or (state.main_pid,)
    ticks = process.start_ticks(state.main_pid)
    if into is not None and os.path.lexists(into):
        job = earlier(resolved, into)
        if "passive" in do:
            job.folder.close()
            raise Refused(f"{into}: a capture is in it already", "name a new directory, or add --stacks alone")
    else:
        place = into or root(resolved) / captures.name(stamp(), name, state.main_pid)
        wall = time.time()
        manifest = Manifest(
            unit=name, pid=state.main_pid, start_t=state.start_t, start_ticks=ticks, reason=reason[:REASON_MAX],
            made=datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds"), wall=wall, by=captures.me(),
        )  # fmt: skip
        job = Capture(resolved, Folder.make(place, manifest), manifest)
    same = (job.manifest.pid, job.manifest.start_ticks) == (state.main_pid, ticks)
    gone = Part("stacks", "blind", f"pid {job.manifest.pid} is gone, the unit's is {state.main_pid} now")
    try:
        for step in do:
            if step == "passive":
                job.run(step, lambda: job.passive(pids, state.control_group, tape))
            else:
                job.run(step, lambda: job.stacks(pids) if same else job.parts.append(gone))
        job.close()
    except (InferopsError, SystemExit, KeyboardInterrupt) as e:
        why = str(e) if isinstance(e, InferopsError) else "told to end"
        job.parts.append(Part("disk" if isinstance(e, NoRoom) else "broken off", "blind", why))
        with suppress(InferopsError):  # no room for that either: it stays "in progress", its writer gone
            job.close()
        if not isinstance(e, InferopsError):
            raise
    return job


def root(resolved: Resolved) -> Path:
    """The directory of all captures."""
    place = resolved.settings.captures.dir
    return private_dir(Path(place)) if place else state_dir("captures")


def earlier(resolved: Resolved, into: Path) -> Capture:
    """A capture made by an earlier call, of the same unit."""
    folder, manifest = Folder.existing(into)
    if manifest.unit != resolved.settings.live.unit:
        folder.close()
        raise Refused(
            f"{into}: a capture of {manifest.unit}, expected {resolved.settings.live.unit}", "give its --unit"
        )
    return Capture(resolved, folder, manifest)


def prune(job: Capture) -> None:
    """Retention, where the new capture lies among the others."""
    bounds = job.resolved.settings.captures
    if job.folder.path.parent != root(job.resolved):
        return
    said = captures.prune(
        job.folder.path.parent, job.folder.path, max_count=bounds.max_count, max_bytes=bounds.max_bytes,
        max_days=bounds.max_days, now=time.time(),
    )  # fmt: skip
    job.parts += [Part("retention", "note", line) for line in said]


def tell(job: Capture, output: str) -> int:
    """Prints the report; the exit code."""
    where = str(job.folder.path)
    findings = [Finding(part.level, part.id, part.why, {"dir": where}) for part in job.parts]
    findings.append(Finding("note", "reading", job.manifest.reading, {"dir": where}))
    verdict = Verdict("capture", job.manifest.unit, tuple(findings))
    click.echo(render(verdict, "json" if output == "json" else "text"))
    if output != "json":
        click.echo(f"capture: {where}")
    return verdict.exit


@click.command(name="capture", short_help="save what a wedged server can still tell")
@config_option
@routed_options(*KEYS)
@local_option("--into", type=click.Path(path_type=Path), help="this directory [a new one]", why="one call's place")
@local_option("--reason", default="by hand", help="why it is taken [by hand]", why="of this one capture")
@local_option("--passive", is_flag=True, help="stop nothing: no stacks", why="one call's step")
@local_option("--resumed", help="note into --into that progress was seen after all", why="of this one capture")
@local_option("--tape", type=click.Path(path_type=Path), help="recorded polls to keep with it", why="one call's input")
@output_option
def main(
    config: Path | None, into: Path | None, reason: str, passive: bool, resumed: str | None, tape: Path | None,
    output: str, **given: Any,
) -> int:  # fmt: skip
    """Save threads (twice), stats, journal and sockets of the live server, then its stacks, into a private directory.

    Only gdb stops the server, and last: --passive leaves it out, --into DIR --stacks adds it to an earlier capture.
    """
    flags = routed(**given)
    resolved = load(config=config, flags=flags, environ=os.environ, cwd=Path.cwd())
    into = into and Path.cwd() / into
    if resumed is not None:
        if into is None:
            raise UsageError("--resumed: expected --into with it", "inferops capture --into DIR --resumed TEXT")
        job = earlier(resolved, into)
        text = resumed[:REASON_MAX]
        job.note(
            resumed=text, reading=f"of a healthy engine, progress was seen: {text}; before: {job.manifest.reading}"
        )
        job.parts.append(Part("resumed", "ok", "the manifest says so now"))
        return tell(job, output)
    exists = into is not None and os.path.lexists(into)
    flag: Any = flags["sentinel.stacks"]
    do = steps(passive=passive, stacks_flag=flag, stacks_set=resolved.settings.sentinel.stacks, exists=exists)
    job = work(resolved, into, reason, tape, do)
    if "passive" in do:
        prune(job)
    return tell(job, output)
