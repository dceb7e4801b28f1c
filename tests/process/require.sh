#!/usr/bin/env bash
# Give this machine what some tests start beside our own processes, on Debian installed if it is missing: Open MPI's
# mpiexec for the jobs of the mpi channel (25 MB), etcd for agents that meet through one (50 MB), promtool, which
# checks what /metrics answers (100 MB), and sshd for trainings on several hosts (5 MB). Where they cannot be had, those tests are skipped and say why; all others need
# none of them.
set -euo pipefail
PATH="$PATH:/usr/sbin"

note() {
	echo "note: the tests with $1 will be skipped: $2" >&2
}

install() {
	export DEBIAN_FRONTEND=noninteractive
	local quiet=(-qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=2)
	timeout 120 apt-get "${quiet[@]}" install --no-install-recommends -y "$@" >/dev/null 2>&1 && return
	timeout 60 apt-get "${quiet[@]}" update >/dev/null 2>&1 || return
	timeout 120 apt-get "${quiet[@]}" install --no-install-recommends -y "$@" >/dev/null 2>&1
}

# What it is for, the program, and the packages that have it.
want() {
	local purpose="$1" program="$2"
	shift 2
	command -v "$program" >/dev/null 2>&1 && return
	if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null 2>&1; then
		note "$purpose" "install $program"
	elif [[ "$program" != mpiexec && -d /run/systemd/system ]]; then
		note "$purpose" "install $program; its package would start a service here"
	elif ! install "$@"; then
		note "$purpose" "apt-get cannot install $*"
	fi
}

want "MPI jobs" mpiexec openmpi-bin
want "a real etcd" etcd etcd-server etcd-client
want "promtool" promtool prometheus
want "a real ssh" sshd openssh-server openssh-client
