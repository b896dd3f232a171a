"""Replays a tape of recorded polls through the wedge policy of this version.

Prevents: a changed bound that would have restarted last week's healthy prefill; an incident argued from memory.
Answers: what would the sentinel have said and done on this recording, under these settings?
Blind to: what the recording sentinel did not look at; how an action would have ended that it did not take (assumed
    ends are named); anything after a restart that did not happen.
"""

from __future__ import annotations

from pathlib import Path

import click

from inferops.core.replay import ASSUMED, Replay, patience_from, run
from inferops.core.settings import local_option, output_option
from inferops.core.tape import Header, read
from inferops.core.turn import Event
from inferops.core.verdict import Finding, Level, Verdict, render


def verdict(name: str, header: Header, replay: Replay, start_t: float) -> Verdict:
    """The events as findings (times from the tape's first poll), then the answer."""
    findings = [Finding(_level(e), e.kind, f"{e.t - start_t:8.1f} s  {e.text}") for e in replay.events]
    if replay.assumed:
        findings.append(Finding("note", "assumed", f"not on the tape, so assumed: {', '.join(replay.assumed)}"))
    span = f"{replay.polls} poll{'s' * (replay.polls != 1)} over {replay.span_s:.0f} s"
    if not replay.seen:
        findings.append(Finding("blind", "answer", f"nothing of the server was seen in {span}"))
    elif replay.restarts:
        findings.append(Finding("fail", "answer", f"a restart at {replay.restarts[0] - start_t:.1f} s; {span}"))
    elif not any(f.level == "fail" for f in findings):
        findings.append(
            Finding("ok", "answer", f"no restart in {span}; longest quiet with work {replay.longest_quiet_s:.1f} s")
        )
    else:
        findings.append(Finding("note", "answer", f"alerted, no restart, in {span}"))
    return Verdict("sentinel replay", f"{name} ({header.subject or 'unnamed'})", tuple(findings))


def _level(event: Event) -> Level:
    if event.kind == "BLIND":
        return "blind"
    return "fail" if event.level == "alert" else "note"


# --- edge


@click.command(name="replay", short_help="replay recorded polls through the policy")
@click.argument("tape", type=click.Path(path_type=Path))
@local_option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    why="a tape carries the settings it was recorded under",
    help="override one of the tape's settings, for example stall_s=30",
)
@local_option(
    "--canary-result",
    type=click.Choice(["token", "none", "inconclusive"]),
    default="none",
    why="only a replay has an end to assume",
    help="how a canary ends that is not on the tape [none]",
)
@output_option
def main(tape: Path, settings: tuple[str, ...], canary_result: str, output: str) -> int:
    """Replay TAPE: exit 0 no alert, 1 an alert or a restart, 3 blind."""
    header, polls = read(tape)
    replay = run(polls, patience_from(header, settings), {**ASSUMED, "canary": canary_result})
    result = verdict(tape.name, header, replay, polls[0].t)
    click.echo(render(result, "json" if output == "json" else "text"))
    return result.exit
