"""jq: the same answers from both builds (run under Python 3.11 and 3.12), and nothing let in that hurts."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from inferops.core import jq
from inferops.core.jq_words import FUNCTIONS
from inferops.core.verdict import BlindError, UsageError

DOCUMENT = {
    "a": 1, "b": [3, 1, 2], "s": "x y", "n": None, "t": True, "o": {"k": 2},
    "rows": [{"id": 0, "v": 5}, {"id": 1, "v": None}], "llamacpp:n": 7, "env": "field", "input": 9,
}  # fmt: skip

# program -> every output on DOCUMENT
SAME: dict[str, list[Any]] = {
    '.["llamacpp:n"]': [7],
    ".a / 4, .a - 3, -(.a)": [0.25, -2, -1],
    ".n.x, .nope": [None, None],
    ".b[0], .b[-1], .b[1:]": [3, 2, [1, 2]],
    ".s[]?": [],
    ".n // 5": [5],
    ".a == 1.0 and .t": [True],
    "if .a > 1 then 1 elif .t then 2 else 3 end": [2],
    '"slot\\(.rows[1].id).\\(.s)"': ["slot1.x y"],
    '[.rows[] | {key: "s\\(.id)", value: .v}] | from_entries': [{"s0": 5, "s1": None}],
    ".a as $x | {$x, y: (.b | length)}": [{"x": 1, "y": 3}],
    ". as {a: $q, o: {k: $r}} | [$q, $r]": [[1, 2]],
    "[.rows[] | select(.v == null) | .id]": [[1]],
    "# a comment about input\n.a": [1],
    # what is dangerous as a word is harmless as a name or a text
    '.env, .input, ."env", .["input"], "env"': ["field", 9, "field", 9, "env"],
    "{env}, {input: 1}, {env: .input}": [{"env": "field"}, {"input": 1}, {"env": 9}],
    '"\\(.env) \\("input")"': ["field input"],
    '{"\\(.s)": 1}': [{"x y": 1}],
    '[.a.x?], [.["a"]?], [.a[]?], [."s"?], [.rows[0].id[0]?], [.o as $x | $x["k"]?]': [[], [1], [], ["x y"], [], [2]],
    '{"while": 1} | .while': [1],
}

# each function of the allow-list -> a program and its outputs on DOCUMENT
EACH: dict[str, tuple[str, list[Any]]] = {
    "add": (".b | add", [6]),
    "all": ("(.b | all(. > 0)), ([true, false] | all), all(.b[]; . < 3)", [True, False, False]),
    "any": ("(.b | any(. > 2)), ([false] | any), any(.b[]; . > 3)", [True, False, False]),
    "arrays": ("[.[] | arrays] | length", [2]),
    "ascii_downcase": ('"AbC" | ascii_downcase', ["abc"]),
    "ascii_upcase": (".s | ascii_upcase", ["X Y"]),
    "booleans": ("[.[] | booleans]", [[True]]),
    "contains": ('.s | contains("x")', [True]),
    "empty": ("1, empty, 2", [1, 2]),
    "endswith": ('.s | endswith("y")', [True]),
    "false": ("false", [False]),
    "flatten": ("[[1], [[2]]] | flatten", [[1, 2]]),
    "floor": ("1.7, -1.2 | floor", [1, -2]),
    "from_entries": ('[{key: "a", value: 1}] | from_entries', [{"a": 1}]),
    "group_by": (".rows | group_by(.id) | length", [2]),
    "has": ('has("a"), has("z")', [True, False]),
    "iterables": ("[.[] | iterables] | length", [3]),
    "keys": (".o | keys", [["k"]]),
    "length": (".b, .s, .o, .n | length", [3, 3, 1, 0]),
    "map": (".b | map(. + 1)", [[4, 2, 3]]),
    "max": (".b | max", [3]),
    "max_by": (".rows | max_by(.id).id", [1]),
    "min": (".b | min", [1]),
    "min_by": (".rows | min_by(.id).id", [0]),
    "not": (".t | not", [False]),
    "null": ("null", [None]),
    "nulls": ("[.[] | nulls]", [[None]]),
    "numbers": ("[.[] | numbers] | add", [17]),
    "objects": (".[] | objects", [{"k": 2}]),
    "scalars": ("[.o[] | scalars]", [[2]]),
    "select": (".b[] | select(. > 1)", [3, 2]),
    "sort": (".b | sort", [[1, 2, 3]]),
    "sort_by": (".b | sort_by(-.)", [[3, 2, 1]]),
    "startswith": ('.s | startswith("x")', [True]),
    "strings": ("[.[] | strings] | length", [2]),
    "to_entries": (".o | to_entries", [[{"key": "k", "value": 2}]]),
    "tonumber": ('"12.5", "3" | tonumber', [12.5, 3]),
    "tostring": (".a, .s | tostring", ["1", "x y"]),
    "true": ("true", [True]),
    "type": (".a, .b, .n | type", ["number", "array", "null"]),
    "unique": ("[2, 1, 2] | unique", [[1, 2]]),
    "unique_by": (".rows | unique_by(.id) | length", [2]),
    "values": ("[.[] | values] | length", [9]),
    "with_entries": (".o | with_entries({key, value: (.value + 1)})", [{"k": 3}]),
}

REFUSED = [
    ("input", "input"), ("[inputs]", "inputs"), ("debug", "debug"), (".a | debug", "debug"), ("env", "env"),
    ("env.HOME", "env"), ("$ENV", "$ENV"), ("$ENV.HOME", "$ENV"), ("[.a, (env | .HOME)]", "env"),
    ('"\\(env.HOME)"', "env"), ('"a\\("b\\(input)")c"', "input"), ('{"\\(env)": 1}', "env"), ("{a: env}", "env"),
    ("{a: 1 | env}", "env"), (".b[env]", "env"), (".a as $x | input", "input"),
    ("# comment\ninput", "input"), ('"text" | input', "input"), ("input_filename", "input_filename"),
    ("input_line_number", "input_line_number"), ("halt", "halt"), ("halt_error(1)", "halt_error"), ("stderr", "stderr"),
    ("range(infinite)", "range"), ("repeat(1)", "repeat"), ("recurse(.+1)", "recurse"), ("while(true; .)", "while"),
    ("until(false; .)", "until"), ("def f: f; f", "def"), ("limit(3; repeat(1))", "limit"), ("infinite", "infinite"),
    ("reduce .b[] as $x (0; . + $x)", "reduce"), ("foreach .b[] as $x (0; .)", "foreach"), ("label $f | .", "label"),
    ('import "a" as a; .', "import"), ('include "a"; .', "include"), ("now", "now"), ('.s | test("(a+)+$")', "test"),
    ("try error catch .", "try"), ("@base64", "@"), ('@text "a"', "@"), (".a * 3", "*"), (".a % 2", "%"),
    (".a = 1", "="), (".a |= 1", "|="), (".a += 1", "+="), (".a //= 1", "//="), (".a?//1", "?//"), ("[..]", ".."),
    ("{(.s): 1}", "{(…): …}"), ("{a: 1, (1): 2}", "{(…): …}"),
    ("(.a)? | .b.c", "…?"), ("[1]?", "…?"), ('"a"?', "…?"), (".a??", "…?"), ("{a: 1}?", "…?"), ("length?", "…?"),
    ('.s | ltrimstr("x")', "ltrimstr"), ("nan", "nan"),
    ("1e999", "1e999"), (".e0", ".e0"), ("if .a then 1 end", "if"), (".b.[0]", ".[ after a path"),
    ("add(.b[])", "add/1"), ("flatten(1)", "flatten/1"), ("map", "map/0"), ("$__loc__", "$__loc__"),
    ("lenght", "lenght"), ("a::b", "a::b"), ("", "an empty program"), (" # nothing\n", "an empty program"),
    ("getpath([])", "getpath"),
]  # fmt: skip


@pytest.mark.parametrize("program", SAME)
def test_both_builds_give_these_outputs(program: str) -> None:
    assert jq.compile(program, "here").all(DOCUMENT) == SAME[program]


def test_every_function_of_the_allow_list_is_tried() -> None:
    assert set(EACH) == set(FUNCTIONS)


@pytest.mark.parametrize("name", EACH)
def test_function(name: str) -> None:
    program, outputs = EACH[name]
    assert name in program
    assert jq.compile(program, "here").all(DOCUMENT) == outputs


@pytest.mark.parametrize(("program", "word"), REFUSED)
def test_refused_at_compile_by_name(program: str, word: str) -> None:
    with pytest.raises(UsageError) as error:
        jq.compile(program, "p.toml:3: stats[0].jq")
    assert str(error.value).startswith("p.toml:3: stats[0].jq: jq program uses what is not allowed: ")
    assert f"`{word}` (" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_near_word_is_named() -> None:
    with pytest.raises(UsageError, match=r"`lenght` \(.*near: length"):
        jq.compile(".b | lenght", "here")


@pytest.mark.parametrize(
    "program", [".a |", "(.a", ".a)", '"open', "'a'", ".a ]", "{a: }", "$nope", ". as [$x] | $y", "1 2", "\0"]
)
def test_what_is_no_jq_is_one_line(program: str) -> None:
    with pytest.raises(UsageError) as error:
        jq.compile(program, "here")
    assert str(error.value).startswith("here: ")
    assert "\n" not in str(error.value)


def test_a_program_that_fails_on_the_document_is_blind() -> None:
    with pytest.raises(BlindError, match=r"^here: jq failed on the document: .*[Cc]annot iterate over") as error:
        jq.compile(".a[]", "here").all({"a": 3})
    assert "\n" not in str(error.value)
    assert jq.compile(".a[]", "here").all({"a": [3]}) == [3], "usable after its error"


def test_first_and_its_default() -> None:
    assert jq.compile(".[]", "here").first([4, 5]) == 4
    assert jq.compile(".[]", "here").first([]) is None
    assert jq.compile(".[]", "here").first([], "none") == "none"
    assert jq.compile(".[]", "here").first([None], "none") is None


@pytest.mark.parametrize(
    ("given_value", "out"),
    [
        (2**53, 2**53),
        (2**60 + 1, 2**60),  # beyond 2**53 a double: the same on both builds
        (1.0, 1),
        (1.5, 1.5),
        (-0.0, 0),
        ("x\0y", "x\N{REPLACEMENT CHARACTER}y"),
        ("\ud800", "?"),
        ((1, 2), [1, 2]),
        (True, True),
    ],
)
def test_values_cross_alike(given_value: object, out: object) -> None:
    got = jq.compile(".", "here").first(given_value)
    assert got == out
    assert type(got) is type(out)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_no_number_that_is_not_finite_crosses(value: float) -> None:
    with pytest.raises(BlindError, match="here: jq input"):
        jq.compile(".", "here").all({"deep": [{"er": value}]})


def test_nothing_infinite_comes_out() -> None:
    with pytest.raises(BlindError, match="here: jq"):
        jq.compile(".a / .b", "here").all({"a": 1e308, "b": 0})
    big = jq.compile(".a / .b", "here")
    try:
        assert math.isfinite(big.first({"a": 1e308, "b": 1e-308}))
    except BlindError:
        pass  # jq 1.5 overflows to infinity, jq 1.8 clamps: either way no infinity gets out


@pytest.mark.parametrize("value", [{"a": {1, 2}}, {1: 2}, b"x", object()])
def test_what_is_no_json_is_blind(value: object) -> None:
    with pytest.raises(BlindError):
        jq.compile(".", "here").all(value)


def test_deep_nesting_is_blind_not_a_crash() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(BlindError, match="nested deeper"):
        jq.compile(".", "here").all(value)


def test_one_program_in_four_threads() -> None:
    program = jq.compile("[.[] | {id, v: (.v + 1)}] | map(.v) | add", "here")
    wrong: list[list[object]] = []

    def work(n: int) -> None:
        got = [program.first([{"id": i, "v": n} for i in range(10)]) for _ in range(300)]
        wrong.append([one for one in got if one != 10 * (n + 1)])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [[], [], [], []]


PIECES = [
    *FUNCTIONS, *"if then else elif end and or as . .a .b .s .o .k .env 1 2.5 $x".split(),
    *"[ ] ( ) { } , : | ; ? // + - / < > == !=".split(),
    '"t"', '"\\(', ")", '"', " ", "# c\n", "as $x |", ".[0]", ".b[]", "map(", "select(",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=14))
def test_whatever_is_let_in_ends_and_gives_json(pieces: list[str]) -> None:
    program = " ".join(pieces)
    try:
        outputs = jq.compile(program, "here").all(DOCUMENT)
    except (UsageError, BlindError) as refused:
        outputs = [str(refused).replace("\n", "a second line")]
        event("refused")
    assert "a second line" not in str(outputs)
    assert jq.plain(outputs, "out") == outputs  # finite, and JSON all the way down
