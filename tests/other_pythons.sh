#!/bin/bash
# The quick tests on every supported interpreter other than $VENV's, each in a venv of its own (.venv-3.12, …).
set -euo pipefail
cd "$(dirname "$0")/.."
supported=(3.11 3.12)
first=$("${VENV:-.venv}/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

find_python() { # on PATH, and running (an inactive pyenv shim does not); else the newest of pyenv's own
  for python in "python$1" $(ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1" 2>/dev/null | sort -rV); do
    if "$python" -c '' 2>/dev/null; then echo "$python"; return; fi
  done
}

ran=() absent=()
for version in "${supported[@]}"; do
  [ "$version" != "$first" ] || continue
  python=$(find_python "$version")
  if [ -z "$python" ]; then absent+=("$version"); continue; fi
  echo "test-other: $version ($python)"
  PYTHON=$python VENV=.venv-$version tools/setup.sh dev sim
  ".venv-$version/bin/python" -m pytest tests -m 'not box and not engine' -q
  ran+=("$version")
done
echo "test-other: the quick tests passed on: ${ran[*]:-no other}; not found here: ${absent[*]:-none};" \
  "${VENV:-.venv} is $first"
