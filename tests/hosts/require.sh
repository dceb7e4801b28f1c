#!/usr/bin/env bash
# Make this machine able to run the tests under tests/hosts: root, iproute2 and iptables. On Debian what is missing is
# installed. Where it cannot be had, those tests are skipped and say why; with CI set, that is an error here instead.
set -euo pipefail

fail() {
	if [[ -n "${CI:-}" && "${CI}" != false ]]; then
		echo "error: the tests under tests/hosts cannot run: $1" >&2
		exit 1
	fi
	echo "note: the tests under tests/hosts will be skipped: $1" >&2
	exit 0
}

has() { command -v "$1" >/dev/null 2>&1; }

install() {
	export DEBIAN_FRONTEND=noninteractive
	local quiet=(-qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=2)
	apt-get "${quiet[@]}" install --no-install-recommends -y "$@" >/dev/null 2>&1 && return
	apt-get "${quiet[@]}" update >/dev/null 2>&1 || return
	apt-get "${quiet[@]}" install --no-install-recommends -y "$@" >/dev/null 2>&1
}

# The tools may be there and the kernel, or the container, may still forbid them: try what the tests will do.
probe() {
	local name="mw-probe-$$"
	ip netns add "$name" || return
	trap 'ip netns del '"$name" EXIT
	ip -n "$name" link set lo up &&
		ip netns exec "$name" iptables -A OUTPUT -m statistic --mode random --probability 0.05 -j DROP
}

PATH="$PATH:/usr/sbin:/sbin"
[[ "$(id -u)" == 0 ]] || fail "they need root"

missing=()
has ip || missing+=(iproute2)
has iptables || missing+=(iptables)
if ((${#missing[@]})); then
	has apt-get || fail "install ${missing[*]} first"
	install "${missing[@]}" || fail "apt-get cannot install ${missing[*]}"
fi
reason="$(probe 2>&1)" || fail "network namespaces do not work here: ${reason:-unknown reason}"
