"""python tests/system/box up [NAME] | exec NAME COMMAND… | down NAME | list: a box by hand. It stays until `down`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.system.box import Box, BoxError, names


def main(argv: list[str]) -> int:
    try:
        match argv:
            case ["up"] | ["up", _]:
                box = Box(argv[1] if len(argv) > 1 else None, stay=True).up()
                print(f"{box.name} {box.pid}")
            case ["exec", name, *command] if command and command != ["--"]:
                inside = Box.attach(name).command(command[1:] if command[0] == "--" else command)
                os.execve(inside[0], inside, Box.environment({"TERM": os.environ.get("TERM", "dumb")}))
            case ["down", name]:
                Box.attach(name).down()
            case ["list"]:
                print("\n".join(names()) or "no box is up", file=sys.stdout if names() else sys.stderr)
            case _:
                print(f"usage: {__doc__}", file=sys.stderr)
                return 2
    except BoxError as e:
        print(f"box: {e}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
