"""Profiles that are wrong: refused at load with file, line and key, and the sample that is read otherwise."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from inferops.core import profile
from inferops.core.verdict import UsageError

DATA = Path(__file__).parent / "data" / "llama-cpp"
TEXT = resources.files("inferops").joinpath("profiles", "llama-cpp.toml").read_text(encoding="utf-8")

PROGRESS = '"0.17.658.845 I slot print_timing: id  0 | task 6 | n_gen =    100, tg =  23.28 t/s, tg_3s =  23.52 t/s",'

# what is replaced by what -> the key, and a piece of the complaint
WRONG = [
    ('name = "llama-cpp"', 'nmae = "llama-cpp"', "nmae", "unknown key; did you mean `name`?"),
    ('name = "llama-cpp"\n', "", "name", "required, but not set"),
    ("stall_min_s = 150.0", "stall_min_s = nan", "stall_min_s", "expected a finite number, got nan"),
    ("stall_min_s = 150.0", "stall_min_s = -1", "stall_min_s", r"expected a number > 0"),
    ("cpu_is_evidence = true", "cpu_is_evidence = 1", "cpu_is_evidence", "expected true or false, got 1"),
    ('means = "busy"', 'means = "bussy"', "health.rules[2].means",
     "expected one of busy, loading, odd, ready, unavailable"),
    ('means = "busy"', 'mean = "busy"', "health.rules[2].mean", "unknown key; did you mean `means`"),
    ("{ class = 5, means", "{ class = 5, code = 500, means", "health.rules[3]",
     "expected exactly one of `code` and `class`"),
    ('{ code = 503, contains = "no slot', '{ class = 5, means = "odd" }, { code = 503, contains = "no slot',
     "health.rules[3]", "never reached: rules[2] takes all of it"),
    ('format = "json"', 'format = "yaml"', "stats[1].format", "expected one of json, prometheus"),
    ('queued: .["llamacpp:requests_deferred"]', "queued: env", "stats[0].jq", "`env` (it reads the environment"),
    ("  active: ([.[]", "  active: ([.[", "stats[1].jq", "not a jq program"),
    ("queued = 2\n", "queued = 3\n", "stats[0].samples[0]", "expected {'active': 1, 'queued': 3"),
    ('"slot0.decoded" = 41', '"slot0.decoded" = 42', "stats[1].samples[2]", "expected {"),
    (r"n_(?:decoded|gen) =", "n_decoded =", "journal.progress[2].hits[1]", "the pattern does not find it"),
    (PROGRESS, '"0.06.469.532 W srv          stop: cancel task, id_task = 15",', "journal.progress[2].hits[1]",
     "does not find"),
    ('"terminated"]', '"terminate called recursively"]', "journal.fatal[2].misses[1]", "the pattern finds it"),
    ("pattern = '^terminate", "pattern = 'terminate", "journal.fatal[2].pattern", "expected it to begin with ^"),
    ("pattern = '^terminate", "pattern = '^(a+)+terminate", "journal.fatal[2].pattern", "repeats what already repeats"),
    ("pattern = '^terminate", "pattern = '^.*.*terminate", "journal.fatal[2].pattern", "repeats what already repeats"),
    ("pattern = '^terminate", "pattern = '^(terminate", "journal.fatal[2].pattern", "no regex: "),
    ('hits = ["terminate called', 'hots = ["terminate called', "journal.fatal[2].hots",
     "unknown key; did you mean `hits`"),
    ('"tokens_predicted":0}\',', '"tokens_predicted":3}\',', "canary.token_misses[2]",
     "canary.token says True, expected False"),
    ("token = '.error == null and", "token = 'input and", "canary.token", "`input` (it crashes"),
    ("deadline_s = 20.0", "deadline_s = 0", "canary.deadline_s", "expected a number > 0"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "said"), WRONG)
def test_refused_with_file_line_and_key(old: str, new: str, key: str, said: str) -> None:
    assert TEXT.count(old) >= 1
    text = TEXT.replace(old, new, 1)
    with pytest.raises(UsageError) as error:
        profile.loads(text, "p.toml")
    message = str(error.value)
    found = re.match(r"p\.toml:(\d+): ([^ ]+): ", message)
    assert found, message
    assert found[2] == key
    assert said in message
    assert "\n" not in message
    at = text[: text.index(new)].count("\n") + 1 if new else 1
    behind = {
        "stats[0].jq": 3,
        "stats[1].jq": 2,
        "stats[0].samples[0]": 20,
        "stats[1].samples[2]": 5,
    }  # of the key's line
    assert at - behind.get(key, 0) <= int(found[1]) <= at + 3, f"{message}\nchanged at line {at}"


@pytest.mark.parametrize("field", ["hits", "misses"])
def test_a_pattern_without_samples_is_refused(field: str) -> None:
    text = re.sub(rf"{field} = \[[^\]]*?\"terminate[^\]]*\]\n|{field} = \[\"it said[^\]]*\]\n", f"{field} = []\n", TEXT)
    assert text != TEXT
    with pytest.raises(UsageError, match=rf"journal\.fatal\[2\]\.{field}: expected an array of length >= 1"):
        profile.loads(text, "p.toml")


def test_two_kinds_that_claim_one_line_are_refused() -> None:
    text = TEXT + (
        "[[journal.own]]\nwhy = 'x'\npattern = '^(?:[\\d.]{8,20} [DIWE] )?slot'\nhits = ['slot x']\nmisses = ['y']\n"
    )
    with pytest.raises(UsageError, match=r"journal\.progress\[0\]\.hits\[0\]: is read as own, not as progress"):
        profile.loads(text, "p.toml")


def test_by_name_by_path_and_by_a_wrong_name(tmp_path: Path) -> None:
    assert profile.builtin() == ("llama-cpp", "ninfer")
    with pytest.raises(UsageError, match=r"'lama-cpp': no such built-in profile; did you mean `llama-cpp`\?"):
        profile.load("lama-cpp")
    with pytest.raises(UsageError, match=r"missing\.toml: the engine profile cannot be read: No such file"):
        profile.load(str(tmp_path / "missing.toml"))
    with pytest.raises(UsageError, match="the engine profile cannot be read: Is a directory"):
        profile.load(f"{tmp_path}/")
    mine = tmp_path / "mine.toml"
    mine.write_text(TEXT)
    assert profile.load(str(mine)) == profile.load("llama-cpp")


def test_extends_takes_the_rest_from_a_built_in(tmp_path: Path) -> None:
    llama = profile.load("llama-cpp")
    fast = profile.load(str(DATA / "impatient.toml"))
    assert (fast.name, fast.stall_min_s, fast.slowest_cadence_s) == ("llama-cpp-impatient", 2.0, 1.0)
    assert (fast.health, fast.stats, fast.journal, fast.canary) == (
        llama.health,
        llama.stats,
        llama.journal,
        llama.canary,
    )
    wrong = tmp_path / "x.toml"
    wrong.write_text('extends = "llama"\n')
    with pytest.raises(UsageError, match=r"x.toml:1: extends: no built-in profile 'llama'; did you mean `llama-cpp`"):
        profile.load(str(wrong))
    wrong.write_text('\nextends = "llama-cpp"\nstal_min_s = 3\n')
    with pytest.raises(UsageError, match=r"x.toml:3: stal_min_s: unknown key; did you mean `stall_min_s`"):
        profile.load(str(wrong))
