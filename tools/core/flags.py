"""Flags of commands, each declared once: routed to a settings key, or local to the command with the reason why.

A flag that is neither would be one that a config silently beats; tests/test_flags.py walks every command for such.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from inferops.core.schema import KEYS, Key
from inferops.core.typed import near

F = TypeVar("F", bound=Callable[..., Any])

ROUTES: dict[str, str] = {key.flag: name for name, key in KEYS.items()}  # "--stall" -> "sentinel.stall_s"


class RoutedOption(click.Option):
    """An option whose value goes into the settings under `key`, over file, variable and default."""

    def __init__(self, declarations: list[str], key: Key, **more: Any) -> None:
        self.key = key
        super().__init__(declarations, **more)


class LocalOption(click.Option):
    """An option that is no setting; `why` says why it is not."""

    def __init__(self, *declarations: Any, why: str, **more: Any) -> None:
        if not why:
            raise ValueError("a local option needs its reason")
        self.why = why
        super().__init__(*declarations, **more)


def option(flag: str, key: str, **more: Any) -> Callable[[F], F]:
    """The click option `flag` for the settings key `key`, with type, unit and help from the settings themselves.
    Read its value by `routed`. Raises ValueError for an unknown key or a flag that is routed elsewhere."""
    if key not in KEYS:
        raise ValueError(f"{key} is no setting{near(key, tuple(KEYS))}")
    if ROUTES.setdefault(flag, key) != key:
        raise ValueError(f"{flag} is routed to {ROUTES[flag]} already")
    known = KEYS[key]
    default = "" if not isinstance(known.default, str | bool | int | float) else f" [{_shown(known.default)}]"
    kind: Any = click.Choice(known.choices) if known.choices else known.type
    if known.type is bool:
        declared, kind = f"{flag}/--no-{flag.removeprefix('--')}", None
    else:
        declared = flag
    given: dict[str, Any] = {"default": None, "help": f"{known.help}{default}", "show_default": False, **more}
    return click.option(declared, _parameter(key), cls=RoutedOption, key=known, type=kind, **given)


def routed_options(*keys: str) -> Callable[[F], F]:
    """The options of several settings, each under its usual flag ("sentinel.stall_s" -> --stall SECONDS)."""

    for key in keys:
        if key not in KEYS:
            raise ValueError(f"{key} is no setting{near(key, tuple(KEYS))}")

    def add(command: F) -> F:
        for key in reversed(keys):
            command = option(KEYS[key].flag, key)(command)
        return command

    return add


def routed(**parameters: Any) -> dict[str, Any]:
    """A command's parameters of routed options -> {dotted key: value}, for `load(flags=…)`; not given is None."""
    names = {_parameter(key): key for key in KEYS}
    return {names[name]: value for name, value in parameters.items()}


def local_option(*declarations: str, why: str, **more: Any) -> Callable[[F], F]:
    """click.option for what belongs to one call and is no setting; `why` is the reason."""
    return click.option(*declarations, cls=LocalOption, why=why, **more)


config_option = local_option(
    "--config",
    type=click.Path(path_type=Path),
    default=None,
    why="it names the settings themselves",
    help="settings file [inferops.toml from here upward, then /etc/inferops.toml]",
)
output_option = local_option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    why="the form of this one report",
    help="form of the report [text]",
)


def _parameter(key: str) -> str:
    return key.replace(".", "__")


def _shown(value: object) -> str:
    return {"True": "yes", "False": "no"}.get(str(value)) or (f"{value:g}" if isinstance(value, float) else str(value))
