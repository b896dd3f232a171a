"""The line finder: every way in which TOML can say a key, and lines that only look like one."""

from __future__ import annotations

import pytest

from inferops.core.toml_lines import locate

TOML = '''# comment [not.a.table]
title = """
[fake]
a = 1
"""
[one]
plain = 1 # = x
"quo.ted" = 2
dotted.key.deep = 3
'single' = [
  1, # ]
  { x = 1, "y z" = [ 5,
     6 ] },
]
[two."three.four".five]
inline = { a = { b = 1 }, c = "}" }
lit = \'\'\'
[[no]]
\'\'\'
esc = "\\"] = "
[[many]]
v = 1
[[many]]
v = 2
[many.sub]
w = 3
[[many.list]]
z = 4
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2), (("one",), 6), (("one", "plain"), 7), (("one", "quo.ted"), 8),
        (("one", "dotted", "key", "deep"), 9),
        (("one", "single"), 10), (("one", "single", 0), 11), (("one", "single", 1, "y z"), 12),
        (("one", "single", 1, "y z", 1), 13), (("two", "three.four", "five"), 15),
        (("two", "three.four", "five", "inline", "a", "b"), 16), (("two", "three.four", "five", "esc"), 20),
        (("many", 0, "v"), 22), (("many", 1, "v"), 24), (("many", 1, "sub", "w"), 26),
        (("many", 1, "list", 0, "z"), 28),
        (("one", "absent"), 6), (("fake",), 1), (("many", 1, "absent", "deeper"), 23),
    ],
)  # fmt: skip
def test_where_a_key_stands(path: tuple[str | int, ...], line: int) -> None:
    assert locate(TOML, path) == line
