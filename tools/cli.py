"""The command table: name -> module:attr and its help line. A command's module is imported when it is called.

Every script that asks for `--help` pays for what is imported here: click and the standard library, nothing else.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from inferops import __version__
from inferops.core.entry import BlindError, InferopsError, UsageError, guard

Row = tuple[str, str]

COMMANDS: dict[str, Row] = {
    "sentinel": ("inferops.cli:SENTINEL", "watch the live server, and undo a wedge"),
    "capture": ("inferops.ops.capture:main", "save what a wedged server can still tell, before it is restarted"),
    "settings": ("inferops.ops.settings:main", "the resolved settings, and where each value came from"),
    "sim": ("inferops.cli:SIM", "a simulated server to try all this on, broken on demand"),
    "load": ("inferops.load.drive:main", "drive requests at a server, and report what came back"),
}
SENTINEL_COMMANDS: dict[str, Row] = {
    "run": ("inferops.ops.sentinel:main", "watch the live server until told to stop"),
    "replay": ("inferops.ops.sentinel_replay:main", "replay a tape of recorded polls through the policy"),
    "rearm": ("inferops.ops.sentinel_rearm:main", "allow restarts again after the budget latched"),
}
SIM_COMMANDS: dict[str, Row] = {
    "serve": ("inferops.sim.serve:main", "serve as NInfer does, until told to stop"),
    "fault": ("inferops.sim.fault:main", "break a running simulator, or mend it"),
    "faults": ("inferops.sim.fault:faults", "what can be broken, and what each fault imitates"),
}
EXITS = "Exit: 0 holds, 1 found something wrong, 2 usage, 3 could not look, 4 refused, 130 or 143 interrupted."


class Table(click.Group):
    """A click group over a table of commands, each imported when it is called."""

    def __init__(self, name: str, table: Mapping[str, Row], **more: Any) -> None:
        super().__init__(name=name, no_args_is_help=False, **more)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order."""
        return list(self.table)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help lines, from the table: nothing is imported for them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now. Raises BlindError where its module or a dependency is missing."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            missing = BlindError(f"cannot import {module}: {error}", "run make setup, and use .venv/bin/inferops")
            missing.command = f"{ctx.command_path} {cmd_name}"
            raise missing from None
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an unknown name is an error that suggests the nearest one."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            import difflib  # 3 ms that only a wrong name pays for

            near = difflib.get_close_matches(args[0], self.table, n=1, cutoff=0.5)
            known = f"did you mean {near[0]}?" if near else f"one of: {', '.join(self.table)}"
            unknown = UsageError(f"no such command: {args[0]}", f"{known} ({ctx.command_path} --help)")
            unknown.command = ctx.command_path
            raise unknown
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; an error learns which command it came from."""
        try:
            return super().invoke(ctx)
        except InferopsError as error:
            error.command = error.command or " ".join(filter(None, (ctx.command_path, ctx.invoked_subcommand)))
            raise


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"inferops {__version__}")
        ctx.exit()


VERSION = click.Option(
    ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="The version."
)
SENTINEL = Table("sentinel", SENTINEL_COMMANDS, params=[VERSION], help=COMMANDS["sentinel"][1], epilog=EXITS)
SIM = Table("sim", SIM_COMMANDS, help=COMMANDS["sim"][1], epilog=EXITS)
INFEROPS = Table(
    "inferops",
    COMMANDS,
    params=[VERSION],
    help="Ops instruments for the person who runs a local LLM inference server under systemd.",
    epilog=EXITS,
)


# --- edge


@guard
def main(argv: Sequence[str] | None = None) -> int | None:
    """`inferops`. Returns the exit code."""
    return _run(INFEROPS, "inferops", argv)


@guard
def sentinel(argv: Sequence[str] | None = None) -> int | None:
    """`inferops-sentinel`: what `inferops sentinel` is, for a unit file. Returns the exit code."""
    return _run(SENTINEL, "inferops-sentinel", argv)


def _run(group: Table, name: str, argv: Sequence[str] | None) -> int | None:
    """Not click's own main(): that exits 1 when stdout's reader leaves, and prints two lines for a usage error."""
    try:
        with group.make_context(name, list(sys.argv[1:] if argv is None else argv)) as context:
            code: int | None = group.invoke(context)
            return code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as wrong:
        context_of = getattr(wrong, "ctx", None)
        path = context_of.command_path if context_of else name
        error = UsageError(" ".join(wrong.format_message().split()), f"{path} --help")
        error.command = path
        raise error from None
