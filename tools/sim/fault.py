"""Breaks a running simulator, and says what can be broken.

Prevents: a watchdog whose alarm has never been heard.
Answers: which faults are there, and did the server take this one?
Blind to: whether the instrument under trial noticed; ask that one.
"""

from __future__ import annotations

import textwrap

import click
import orjson

from inferops.core.flags import local_option, output_option
from inferops.core.verdict import Finding, UsageError, Verdict, escape, render
from inferops.sim import control
from inferops.sim.faults import FAULTS

WIDTH, INDENT = 99, 32


def numbers(given: tuple[str, ...]) -> dict[str, float]:
    """NAME=NUMBER arguments. Raises UsageError on anything else."""
    args = {}
    for one in given:
        name, eq, text = one.partition("=")
        try:
            args[name] = float(text)
        except ValueError:
            eq = ""
        if not eq:
            raise UsageError(f"argument {escape(one)!r}: expected NAME=NUMBER", "for example seconds=60")
    return args


def listing() -> list[str]:
    """Every fault with its class, its arguments and what it imitates; the last line counts them."""
    lines = [f"{'fault':<20} {'class':<10} imitates (arguments)"]
    for name, fault in FAULTS.items():
        takes = ", ".join(f"{arg}={value:g}" for arg, value in fault.args.items())
        when = "at its next start: " if fault.next_start else ""
        first, *rest = textwrap.wrap(f"{when}{fault.imitates}{f' ({takes})' if takes else ''}", WIDTH - INDENT)
        lines += [f"{name:<20} {fault.kind:<10} {first}", *(" " * INDENT + more for more in rest)]
    return [
        *lines,
        f"{len(FAULTS)} faults; healthy: scary, and to be left alone; -: no wedge, a line or an answer says it",
    ]


# --- edge


@click.command(name="faults", short_help="what can be broken, and what each fault imitates")
@output_option
def faults(output: str) -> int:
    """List the faults: their class, the arguments they take, what they imitate."""
    if output == "json":
        rows = [{"fault": name, "class": f.kind, "args": f.args, "imitates": f.imitates, "next_start": f.next_start}
                for name, f in FAULTS.items()]  # fmt: skip
        click.echo(orjson.dumps(rows))
    else:
        click.echo("\n".join(listing()))
    return 0


@click.command(name="fault", short_help="break a running simulator, or mend it")
@click.argument("name")
@click.argument("args", nargs=-1)
@local_option(
    "--port", type=click.IntRange(1, 65535), default=8080, why="which server is meant", help="its API port [8080]"
)
@output_option
def main(name: str, args: tuple[str, ...], port: int, output: str) -> int:
    """Break the simulator with the fault NAME (ARGS: NAME=NUMBER), or mend it: `inferops sim fault clear`."""
    given = numbers(args)
    if name == "clear":
        if given:
            raise UsageError("clear: it takes no argument, and mends all", "inferops sim fault clear")
        said = control.ask(port, {"clear": True})
        text = "mended: what stood goes on, what was lost stays lost"
    else:
        control.checked(name, given)
        said = control.ask(port, {"fault": name, "args": given})
        text = f"{FAULTS[name].imitates}" + ("; at its next start" if said.get("next_start") else "")
    finding = Finding("ok", name, f"taken by pid {said['pid']}: {text}", dict(said))
    click.echo(render(Verdict("sim fault", f"port {port}", (finding,)), "json" if output == "json" else "text"))
    return 0
