"""Prints the settings that a command would run under here, and where each value came from.

Prevents: a value that was edited in one file while another one counts; a flag that a config silently beats.
Answers: which settings are in force in this directory, with this environment and these flags?
Blind to: whether the unit, the server or the directories they name exist; what a service's own environment sets.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import msgspec

from inferops.core.schema import KEYS
from inferops.core.settings import Resolved, config_option, load, output_option, routed, routed_options
from inferops.core.verdict import Finding, Verdict, render


def verdict(resolved: Resolved) -> Verdict:
    """One finding a key, in the order of the tables: its value and its origin."""
    values = msgspec.to_builtins(resolved.settings)
    findings = []
    for key in KEYS:
        table, name = key.split(".")
        value, origin = values[table][name], resolved.origin[key]
        evidence = {"key": key, "value": value, "origin": origin}
        findings.append(Finding("ok", key, f"{_shown(value)}  ({origin})", evidence))
    profile = resolved.profile
    findings.append(
        Finding("note", "profile", f"{profile.name}: stall at least {profile.stall_min_s:g} s, {profile.stall_why}")
    )
    return Verdict("settings", str(resolved.path or "no file"), tuple(findings))


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


# --- edge


@click.command(name="settings", short_help="the resolved settings, and where each value came from")
@config_option
@routed_options(*KEYS)
@output_option
def main(config: Path | None, output: str, **given: Any) -> int:
    """Print the resolved settings: each key, its value, and the file and line, variable or flag that it came from."""
    resolved = load(config=config, flags=routed(**given), environ=os.environ, cwd=Path.cwd())
    result = verdict(resolved)
    click.echo(render(result, "json" if output == "json" else "text"))
    return result.exit
