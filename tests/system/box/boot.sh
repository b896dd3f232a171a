#!/bin/bash
# What a box's PID 1 does before it becomes systemd: makes private everything that systemd, or a unit under test, would
# write to. ns.py runs it in namespaces of its own and gives it BOX_NAME, BOX_KEEP (paths to leave visible, one a line),
# BOX_CONSOLE (a pty), BOX_JOURNALD (journald.conf text), BOX_SYSTEMD. Nothing here reaches outside the mount namespace.
set -euo pipefail
trap 'echo "boot.sh: line $LINENO: failed ($?): $BASH_COMMAND" >&2' ERR
mount --make-rprivate /

# A checkout, a venv or a test's directory may lie under what becomes private: hold it open now, bind it back below.
declare -A held=()
while read -r path; do
  [ -z "$path" ] || { exec {fd}<"$path"; held[$path]=$fd; }
done <<<"$BOX_KEEP"

tmpfs() { mount -t tmpfs -o "mode=$2" inferops-box "$1"; }
overlay() { # writes go to the tmpfs on /run and end with it
  mkdir -p "/run/box$1/up" "/run/box$1/work"
  mount -t overlay -o "lowerdir=$1,upperdir=/run/box$1/up,workdir=/run/box$1/work" inferops-box "$1"
}
tmpfs /run 755
mkdir -p /run/box /run/lock

# /dev: with the host's, systemd would put its /dev/log link there.
mkdir /run/box/dev
tmpfs /run/box/dev 755
for node in null zero full random urandom tty; do
  : >"/run/box/dev/$node"
  mount --bind "/dev/$node" "/run/box/dev/$node"
done
: >/run/box/dev/console
mount --bind "$BOX_CONSOLE" /run/box/dev/console
mkdir /run/box/dev/pts /run/box/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /run/box/dev/pts
tmpfs /run/box/dev/shm 1777
ln -s pts/ptmx /run/box/dev/ptmx
ln -s /proc/self/fd /run/box/dev/fd
for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${n%:*}" "/run/box/dev/${n#*:}"; done
umount -l -R /dev 2>/dev/null || true
mount --move /run/box/dev /dev

# /proc and /sys: PID 1 raises fs.file-max and the like for the whole machine where it can write them.
mount -t proc proc /proc
for path in /proc/sys /proc/sysrq-trigger; do
  [ -e "$path" ] || continue
  mount --bind "$path" "$path"
  mount -o remount,bind,ro "$path"
done
umount -l -R /sys 2>/dev/null || true
mount -t sysfs -o ro sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup

overlay /etc
overlay /var/lib
tmpfs /etc/systemd 755
tmpfs /tmp 1777
tmpfs /var/tmp 1777
tmpfs /var/log 755
rm -rf /var/lib/inferops
mkdir -p /var/log/journal /etc/systemd/system /etc/systemd/system-generators /etc/systemd/journald.conf.d
tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
echo "box-$BOX_NAME" >/etc/hostname
: >/etc/fstab
printf '%s' "$BOX_JOURNALD" >/etc/systemd/journald.conf.d/box.conf

for path in "${!held[@]}"; do
  fd=${held[$path]}
  if [ -d "/proc/self/fd/$fd" ]; then mkdir -p "$path"; else mkdir -p "${path%/*}"; : >"$path"; fi
  mount --no-canonicalize --rbind "/proc/self/fd/$fd" "$path" # canonical, it would name the new, empty directory
  exec {fd}<&-
done

# Only journald and dbus: everything else that the distribution pulls into a boot is masked, whatever its version has.
for path in /usr/lib/systemd/system/{sysinit,basic,local-fs,sockets,timers,paths,multi-user}.target.wants/*; do
  case "${path##*/}" in
  systemd-journald-audit.socket) ;;
  systemd-journal* | dbus.socket | dbus.service | dbus-broker.service | '*') continue ;;
  esac
  ln -sf /dev/null "/etc/systemd/system/${path##*/}"
done
for path in /usr/lib/systemd/system-generators/* /usr/local/lib/systemd/system-generators/*; do
  [ ! -e "$path" ] || ln -sf /dev/null "/etc/systemd/system-generators/${path##*/}"
done
cat >/etc/systemd/system/box.target <<'UNIT'
[Unit]
Description=inferops box
Requires=basic.target dbus.socket
After=basic.target dbus.socket
AllowIsolate=yes
UNIT

cd /
exec env -i PATH="$PATH" TERM=dumb container=inferops-box "$BOX_SYSTEMD" --system --unit=box.target --show-status=yes
