"""Every option of every command either changes the resolved settings or is registered as local, with its reason."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from inferops import cli
from inferops.core import settings
from inferops.core.flags import ROUTES, LocalOption, RoutedOption, local_option, option, routed, routed_options
from inferops.core.schema import KEYS

# What a config beside the flag says; every flag of FLAGS says something else.
CONFIG = """
[live]
unit = "config.service"
engine = "ninfer"
url = "http://127.0.0.1:1"
stats_url = "http://127.0.0.1:2"
request_log = "/config/requests.jsonl"
api_key_file = "/config/key"
[sentinel]
action = "alert"
poll_s = 11.0
probe_deadline_s = 4.0
stall_s = 160.0
load_max_s = 901.0
cpu_only_max_s = 3601.0
relief_max_s = 601.0
request_max_s = 901.0
idle_canary_s = 61.0
kill_after_s = 33.0
look_polls = 3
canary = true
canary_deadline_s = 21.0
stacks = true
stacks_deadline_s = 19.0
capture_gap_s = 6.0
[captures]
dir = "/config/captures"
max_count = 21
max_bytes = 2000000001
max_days = 31
"""
FLAGS: dict[str, tuple[list[str], object]] = {
    "live.unit": (["flag.service"], "flag.service"),
    "live.engine": ([str(Path(__file__).parent / "data" / "ninfer" / "impatient.toml")], None),
    "live.url": (["http://127.0.0.1:3"], "http://127.0.0.1:3"),
    "live.stats_url": (["http://127.0.0.1:4"], "http://127.0.0.1:4"),
    "live.request_log": (["/flag/requests.jsonl"], "/flag/requests.jsonl"),
    "live.api_key_file": (["/flag/key"], "/flag/key"),
    "sentinel.action": (["restart"], "restart"),
    "sentinel.poll_s": (["12.5"], 12.5),
    "sentinel.probe_deadline_s": (["3.5"], 3.5),
    "sentinel.stall_s": (["170"], 170.0),
    "sentinel.load_max_s": (["902"], 902.0),
    "sentinel.cpu_only_max_s": (["3602"], 3602.0),
    "sentinel.relief_max_s": (["602"], 602.0),
    "sentinel.request_max_s": (["902"], 902.0),
    "sentinel.idle_canary_s": (["62"], 62.0),
    "sentinel.kill_after_s": (["62"], 62.0),
    "sentinel.look_polls": (["4"], 4),
    "sentinel.canary": ([], False),
    "sentinel.canary_deadline_s": (["22"], 22.0),
    "sentinel.stacks": ([], False),
    "sentinel.stacks_deadline_s": (["18"], 18.0),
    "sentinel.capture_gap_s": (["7"], 7.0),
    "captures.dir": (["/flag/captures"], "/flag/captures"),
    "captures.max_count": (["22"], 22),
    "captures.max_bytes": (["2000000002"], 2_000_000_002),
    "captures.max_days": (["32"], 32),
}


def commands(group: cli.Table, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command of the table, the ones below other groups too."""
    context = click.Context(group)
    for name in group.table:
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, cli.Table):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


ALL = dict(commands(cli.INFEROPS))
OPTIONS = [(name, opt) for name, command in ALL.items() for opt in command.params if isinstance(opt, click.Option)]
ROUTED = [(name, opt) for name, opt in OPTIONS if isinstance(opt, RoutedOption)]


def test_there_are_commands_and_options_to_walk() -> None:
    assert {"settings", "sentinel run", "sentinel replay", "sentinel rearm", "capture", "load"} <= set(ALL)
    assert {"settings", "sentinel run"} <= {name for name, _ in ROUTED}


@pytest.mark.parametrize(
    ("name", "opt"), OPTIONS, ids=lambda value: value if isinstance(value, str) else value.opts[-1]
)
def test_an_option_is_routed_or_local_with_its_reason(name: str, opt: click.Option) -> None:
    assert isinstance(opt, RoutedOption | LocalOption), (
        f"{name} {opt.opts}: declare it with routed_options or local_option"
    )
    if isinstance(opt, LocalOption):
        assert len(opt.why.split()) >= 2, f"{name} {opt.opts}: the reason says nothing"
        configured = any("--config" in p.opts for p in ALL[name].params)
        assert not (configured and set(opt.opts) & set(ROUTES)), f"{name} {opt.opts}: a setting's flag, and not routed"
    else:
        assert ROUTES[opt.opts[-1]] == opt.key.dotted
        assert opt.default is None, "a default of the flag's own would beat the file"
    assert opt.help or opt.hidden, f"{name} {opt.opts}: says nothing about itself"


class _Stop(BaseException):
    """Ends a command once it has its settings: this test is about no more than them."""


@pytest.mark.parametrize(("name", "opt"), ROUTED, ids=lambda value: value if isinstance(value, str) else value.opts[-1])
def test_a_flag_beside_a_config_changes_what_the_command_runs_under(
    name: str, opt: RoutedOption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = opt.key.dotted
    words, value = FLAGS[key]
    flag = opt.opts[-1] if opt.key.type is not bool else opt.secondary_opts[-1]
    config = tmp_path / "inferops.toml"
    config.write_text(CONFIG)
    got: list[settings.Resolved] = []
    real = settings.load

    def spy(**given: Any) -> settings.Resolved:
        got.append(real(**given))
        raise _Stop

    for module in list(sys.modules.values()):  # wherever a command has imported it to
        if getattr(module, "load", None) is real:
            monkeypatch.setattr(module, "load", spy)
    monkeypatch.chdir(tmp_path)
    for variable in [variable for variable in os.environ if variable.startswith("INFEROPS_LIVE")]:
        monkeypatch.delenv(variable)
    command = ALL[name]
    takes_config = any("--config" in p.opts for p in command.params)
    line = [flag, *words, *(["--config", str(config)] if takes_config else [])]
    line += [str(config) for p in command.params if isinstance(p, click.Argument) and p.required]
    with pytest.raises(_Stop):
        command.main(line, standalone_mode=False)
    [resolved] = got
    before = real(config=config, environ={}, cwd=tmp_path)
    assert resolved.origin[key] == flag
    assert before.origin[key].startswith(str(config))
    table, field = key.split(".")
    now, then = (msgspec.to_builtins(r.settings)[table][field] for r in (resolved, before))
    assert now == (words[0] if value is None else value)
    assert now != then
    changed = {k for k in KEYS if resolved.origin[k] != before.origin[k]}
    assert changed == {key}, "and nothing else"


def test_each_setting_has_a_sample_and_a_flag_of_its_own() -> None:
    assert set(FLAGS) == set(KEYS)
    assert sorted(ROUTES.values()) == sorted(KEYS)
    assert ROUTES["--stall"] == "sentinel.stall_s"
    assert ROUTES["--captures-dir"] == "captures.dir"


@pytest.mark.parametrize("key", KEYS)
def test_each_setting_says_what_it_is(key: str) -> None:
    assert len(KEYS[key].help.split()) >= 2
    if key.endswith("_s"):
        assert "seconds" in KEYS[key].help


def test_a_flag_is_declared_once_and_for_a_setting_that_is() -> None:
    with pytest.raises(ValueError, match=r"sentinel.stall is no setting; did you mean `sentinel.stall_s`"):
        routed_options("sentinel.stall")
    with pytest.raises(ValueError, match=r"live\.x is no setting"):
        option("--x", "live.x")
    with pytest.raises(ValueError, match=r"--stall is routed to sentinel\.stall_s already"):
        option("--stall", "sentinel.poll_s")
    with pytest.raises(ValueError, match="reason"):
        click.command()(local_option("--x", why="")(lambda: None))
    assert "--x" not in ROUTES


def test_routed_turns_parameters_into_keys() -> None:
    assert routed(sentinel__stall_s=3.0, live__unit=None) == {"sentinel.stall_s": 3.0, "live.unit": None}
    with pytest.raises(KeyError):
        routed(stall=3.0)


def test_the_help_has_the_unit_and_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert ALL["settings"].main(["--help"], standalone_mode=False) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--stall FLOAT seconds of work without progress before a wedge [150]" in text
    assert "--action [alert|restart] what a wedge leads to [alert]" in text
