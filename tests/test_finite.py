"""What is not a finite number, and what is not JSON, is refused with its name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferops.core.finite import check, finite, loads
from inferops.core.verdict import BlindError


@pytest.mark.parametrize(("x", "number"), [(0, 0.0), (-3, -3.0), (2.5, 2.5), (2**60 + 1, float(2**60))])
def test_numbers_pass(x: object, number: float) -> None:
    assert finite(x, "active") == number
    assert isinstance(finite(x, "active"), float)


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (math.nan, "got nan"),
        (math.inf, "got inf"),
        (-math.inf, "got -inf"),
        (True, "got True (bool)"),
        ("1", "got '1'"),
        (None, "got None (NoneType)"),
        (10**400, "an integer too large"),
        ([1], "got [1] (list)"),
    ],
)
def test_what_is_no_number_is_named(x: object, got: str) -> None:
    with pytest.raises(BlindError) as caught:
        finite(x, "/metrics: active")
    assert str(caught.value).startswith("/metrics: active: expected a")
    assert got in str(caught.value)


@given(st.floats() | st.integers())
def test_what_comes_back_is_finite(x: float) -> None:
    try:
        assert math.isfinite(finite(x, "x"))
    except BlindError:
        assert not isinstance(x, int) or abs(x) > 1e300
        assert isinstance(x, int) or not math.isfinite(x)


@pytest.mark.parametrize("data", [b'{"a": [1, 2.5, null]}', '{"a": [1, 2.5, null]}'])
def test_json_is_read(data: bytes | str) -> None:
    assert loads(data, "/slots") == {"a": [1, 2.5, None]}


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (b"", "got nothing"),
        (b"<html>\x1b[2J busy </html>", "got '<html>\\x1b[2J busy </html>'"),
        (b'{"active": 1', "got '{\"active\": 1'"),
        (b'{"active": NaN}', "NaN"),
        (b'{"active": Infinity}', "Infinity"),
        (b'{"active": 1e999}', "1e999"),
        (b"\xff\xfe", "�"),
        ("[" * 100_000, "…"),
    ],
)
def test_what_is_no_json_is_shown_in_one_short_line(data: bytes | str, got: str) -> None:
    with pytest.raises(BlindError) as caught:
        loads(data, "/slots")
    assert str(caught.value).startswith("/slots: expected JSON, got ")
    assert got in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("value", "path"),
    [({"a": [0, {"b": math.nan}]}, "$.a[1].b"), ([math.inf], "$[0]"), (-math.inf, "$"), ((1, math.nan), "$[1]")],
)
def test_check_names_the_path(value: Any, path: str) -> None:
    with pytest.raises(BlindError, match=r"tape: ") as caught:
        check(value, "tape")
    assert f": {path}: expected a finite number" in str(caught.value)


def test_deep_json_is_no_recursion_error() -> None:
    deep: Any = 1.0
    for _ in range(50_000):
        deep = [deep]
    check(deep, "x")
    while isinstance(deep, list):  # freed by hand: the interpreter's own way is recursive on some versions
        deep = deep.pop()
