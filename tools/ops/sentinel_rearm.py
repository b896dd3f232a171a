"""Opens the latch that the restart budget closed, after a person has looked.

Prevents: a server restarted in a loop all night; a latch that opens by itself when the clock jumps.
Answers: which restarts were counted, and may the sentinel restart again?
Blind to: whether the reason of the restarts is gone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from inferops.core.budget import Budget, Ledger
from inferops.core.settings import config_option, load, output_option, routed, routed_options
from inferops.core.state import private_dir, state_dir
from inferops.core.verdict import BlindError, Finding, Verdict, escape, render


def verdict(unit: str, before: Ledger) -> Verdict:
    """What was counted, and that it no longer is."""
    findings = [
        Finding("note", "restart", f"{time.strftime('%F %T', time.localtime(e.wall))}  pid {e.pid}  {e.result}")
        for e in before.restarts
    ]
    was = f"was latched: {before.latched}" if before.latched else "was not latched"
    findings.append(Finding("ok", "rearmed", f"{was}; {len(before.restarts)} counted restarts forgotten"))
    return Verdict("sentinel rearm", unit, tuple(findings))


# --- edge


@click.command(name="rearm", short_help="open the latch of the restart budget")
@config_option
@routed_options("live.unit")
@output_option
def main(config: Path | None, output: str, **given: Any) -> int:
    """Open the latch: restarts are counted from zero again."""
    resolved = load(config=config, flags=routed(**given), environ=os.environ, cwd=Path.cwd())
    unit = resolved.settings.live.unit
    homes = state_dir("sentinel")
    path = homes / unit / "budget.json"
    if not os.path.lexists(path):
        have = ", ".join(escape(one.parent.name) for one in sorted(homes.glob("*/budget.json")))
        raise BlindError(
            f"no restart budget of {unit} at {escape(str(path))}", f"units that have one: {have or 'none'}; see --unit"
        )
    private_dir(path.parent)
    try:
        before = Budget.here(path).rearm()
    except (OSError, msgspec.MsgspecError) as e:
        raise BlindError(f"the restart budget {path} cannot be read: {e}", f"look at it, then remove {path}") from e
    click.echo(render(verdict(unit, before), "json" if output == "json" else "text"))
    return 0
