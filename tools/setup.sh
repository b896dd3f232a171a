#!/bin/bash
# Sets up a checkout: `setup.sh dev sim [engine]`, with PYTHON and VENV. Installs what is missing, starts and enables
# nothing. `setup.sh rights GOAL…` only says whether a systemd of one's own can be had. Exit 3: something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3} VENV=${VENV:-.venv}

say() { echo "setup: $*" >&2; }
die() { say "$1  -> $2"; exit 3; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

if [ "${1:-}" = rights ]; then
  as_root true 2>/dev/null ||
    die "no root: a systemd of one's own (tests/system/box) takes it" "run: sudo make ${*:2}"
  exit 0
fi

# --- the interpreter: behind a pyenv shim or a link, the real one

interpreter=$("$PYTHON" -c 'import os, sys; print(os.path.realpath(sys.executable), *sys.version_info[:3])' 2>/dev/null) ||
  die "$PYTHON does not run" "install Python 3.11 or later, or name one: make setup PYTHON=/path/to/python3.12"
read -r python major minor micro <<<"$interpreter"
[ "$major" = 3 ] && [ "$minor" -ge 11 ] ||
  die "$PYTHON is Python $major.$minor, 3.11 or later is needed" "make setup PYTHON=python3.11"

# --- system packages: need PACKAGE COMMAND…: the package is missing where the command fails

missing=()
need() { "${@:2}" >/dev/null 2>&1 || missing+=("$1"); }
has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1"; }

need "python3.$minor-venv" "$python" -c 'import ensurepip, venv'
need "python3.$minor-dev" "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
need gcc has gcc
need libc6-dev test -e /usr/include/stdio.h
need pkg-config has pkg-config
need libsystemd-dev pkg-config --exists libsystemd # systemd-python is built against it
if [ "$minor" = 11 ]; then # pyjq builds its own jq
  need autoconf has autoconf
  need automake has automake
  need libtool has libtoolize
fi
need gdb has gdb # the stacks of a capture
need systemd has systemctl
need dbus has dbus-daemon
need iproute2 has ss
need mount has mount
need util-linux has unshare
need git has git

if [ ${#missing[@]} -gt 0 ]; then
  has apt-get >/dev/null || die "missing: ${missing[*]} (Debian's names)" "install them with this system's package manager"
  install="apt-get install -y --no-install-recommends ${missing[*]}"
  as_root true 2>/dev/null || die "missing system packages" "run: sudo apt-get update && sudo $install"
  say "installing system packages: ${missing[*]}"
  # needrestart would restart services that people are using
  quiet=(env LC_ALL=C DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1)
  log=$(mktemp)
  update() { # waits for another apt-get as install does, whose DPkg::Lock::Timeout update does not know
    for try in {1..60}; do
      as_root "${quiet[@]}" apt-get update >"$log" 2>&1 && return
      grep -q 'Could not get lock' "$log" || return
      [ "$try" != 1 ] || say "waiting for another apt-get, two minutes at most"
      sleep 2
    done
    return 1
  }
  { update && as_root "${quiet[@]}" ${install/apt-get/apt-get -o DPkg::Lock::Timeout=120} >>"$log" 2>&1; } </dev/null ||
    { tail -n 15 "$log" >&2; die "apt-get failed (all of it: $log)" "run: sudo apt-get update && sudo $install"; }
  rm -f "$log"
fi

# --- the venv: a stamp for each extra says what it was made from

exec 9>"$VENV.lock"
flock -n 9 || { say "waiting for another setup of $VENV"; flock 9; }
origin="$python $major.$minor.$micro"
if [ "$(cat "$VENV/made-by" 2>/dev/null)" != "$origin" ] || ! "$VENV/bin/python" -c '' 2>/dev/null; then
  if [ -e "$VENV" ]; then
    [ -e "$VENV/pyvenv.cfg" ] || die "$VENV exists and is no venv" "move it away, or: make setup VENV=another"
    rm -rf "$VENV"
  fi
  say "making $VENV with $origin"
  "$python" -m venv "$VENV"
  echo "$origin" >"$VENV/made-by"
fi

[ -z "${LLAMA_SERVER:-}" ] || [ -z "${MODEL:-}" ] || set -- dev sim # one's own server and model
inputs=$(cat pyproject.toml constraints.txt | sha256sum)
todo=()
for extra in "$@"; do
  [ "$(cat "$VENV/has-$extra" 2>/dev/null)" = "$inputs" ] || todo+=("$extra")
done
if [ ${#todo[@]} -gt 0 ]; then
  extras=$(IFS=,; echo "${todo[*]}")
  say "installing inferops[$extras] into $VENV (a minute the first time)"
  export PIP_CONSTRAINT=$PWD/constraints.txt PIP_BUILD_CONSTRAINT=$PWD/constraints.txt # builds too: by pip's age
  log=$VENV/setup.log
  "$VENV/bin/python" -m pip install --disable-pip-version-check -c constraints.txt -e ".[$extras]" 2>&1 </dev/null |
    tee "$log" |
    { grep --line-buffered -oE '^(Collecting|Building wheels for|Installing) [^ ]+' || true; } |
    sed -u 's/^/  /' >&2 ||
    { tail -n 15 "$log" >&2; die "pip failed (all of it: $log)" "put that right, then: make setup"; }
  for extra in "${todo[@]}"; do echo "$inputs" >"$VENV/has-$extra"; done
  say "done: $VENV/bin/inferops"
fi
