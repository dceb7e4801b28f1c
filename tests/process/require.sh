#!/usr/bin/env bash
# Give this machine what the tests of the mpi channel start their jobs with: Open MPI's mpiexec, on Debian installed if it is
# missing (25 MB). Where it cannot be had, those tests are skipped and say why; the others of that channel need none.
set -euo pipefail

note() {
	echo "note: the tests with MPI jobs will be skipped: $1" >&2
	exit 0
}

install() {
	export DEBIAN_FRONTEND=noninteractive
	local quiet=(-qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=2)
	timeout 120 apt-get "${quiet[@]}" install --no-install-recommends -y "$@" >/dev/null 2>&1 && return
	timeout 60 apt-get "${quiet[@]}" update >/dev/null 2>&1 || return
	timeout 120 apt-get "${quiet[@]}" install --no-install-recommends -y "$@" >/dev/null 2>&1
}

command -v mpiexec >/dev/null 2>&1 && exit 0
[[ "$(id -u)" == 0 ]] || note "install openmpi-bin"
command -v apt-get >/dev/null 2>&1 || note "install Open MPI"
install openmpi-bin || note "apt-get cannot install openmpi-bin"
