#!/bin/sh
# Makes this machine a lab: BMv2, a kernel that can do it, this project. May be run again; then it only repairs. As root.
#
#   provision.sh [PROJECT]            all but the kernel; PROJECT: a copy of this repository, or else the one this is in
#   provision.sh --kernel [PROJECT]   only a newer kernel, where this one is too old; reboot after it
set -eu

fail() {
    echo "incastfree: $*" >&2
    exit 1
}
install_packages() {
    "$project/scripts/install-packages.sh" "$@"
}
# Before 6.0 the value of an array map is at most what kmalloc takes, 4 MiB (kernel/bpf/arraymap.c); our records have 50.
kernel_is_new() {
    [ "$(printf '6.0\n%s\n' "$(uname -r)" | sort -V | head -n 1)" = 6.0 ]
}
# Tried out, not looked up: it loads the modules, and finds what is built in.
kernel_can_pace() {
    unshare --net sh -c 'tc qdisc add dev lo root fq && tc qdisc add dev lo clsact'
}

only_kernel=false
if [ "${1:-}" = --kernel ]; then
    only_kernel=true
    shift
fi
project=$(cd "${1:-$(dirname "$0")/..}" && pwd)
[ "$(id -u)" -eq 0 ] || fail "provisioning installs packages: run it as root"
# shellcheck source=/dev/null
. /etc/os-release

if [ "$only_kernel" = true ]; then
    if kernel_is_new; then
        echo "kernel $(uname -r) is new enough"
    elif [ "$ID $VERSION_ID" = "ubuntu 22.04" ]; then
        # Ubuntu's 6.8 for 22.04, without drivers and firmware for real machines.
        install_packages linux-image-virtual-hwe-22.04
    else
        fail "kernel $(uname -r) is older than 6.0, and $PRETTY_NAME has none newer that is known here: install one"
    fi
    exit
fi
kernel_is_new || fail "kernel $(uname -r) is older than 6.0: on Ubuntu 22.04, install linux-image-generic-hwe-22.04 and reboot"

# BMv2, of the p4lang project's own packages. One that is there already, built by hand perhaps, is as good.
if ! command -v simple_switch_grpc >/dev/null; then
    [ "$ID" = ubuntu ] || fail "the p4lang project has no packages for $PRETTY_NAME that are known to work: use Ubuntu 22.04, \
or put a simple_switch_grpc of your own on the PATH"
    install_packages ca-certificates curl
    mkdir -p /etc/apt/keyrings
    curl -fsSL -o /etc/apt/keyrings/p4lang.asc \
        "https://download.opensuse.org/repositories/home:/p4lang/xUbuntu_$VERSION_ID/Release.key" ||
        fail "the key of the p4lang packages for Ubuntu $VERSION_ID does not come: is there a network, and is it 22.04?"
    # Plain http, as their README has it: the mirrors may be that, and the packages are signed.
    echo "deb [signed-by=/etc/apt/keyrings/p4lang.asc] \
http://download.opensuse.org/repositories/home:/p4lang/xUbuntu_$VERSION_ID/ /" >/etc/apt/sources.list.d/p4lang.list
    install_packages p4lang-bmv2
fi
# A build whose libraries do not fit says so only when it is started.
simple_switch_grpc --version >/dev/null || fail "simple_switch_grpc is installed and does not start: see above"

install_packages iproute2 util-linux
if ! kernel_can_pace 2>/dev/null; then
    install_packages "linux-modules-extra-$(uname -r)" ||
        fail "kernel $(uname -r) has no sch_fq or no clsact, and there is no package with more of its modules: boot the \
kernel of linux-image-generic (Ubuntu) or linux-image-amd64 (Debian)"
    kernel_can_pace || fail "kernel $(uname -r) has no sch_fq or no clsact: see above"
fi

# Packages as root; the rest as whose folder it is, who may then change it and run make there.
install_packages make
make -s -C "$project" packages bmv2-packages
owner=$(stat -c %U "$project")
runuser -u "$owner" -- env HOME="$(getent passwd "$owner" | cut -d : -f 6)" make -C "$project" install-host
ln -sfn "$project/.venv/bin/incastfree" /usr/local/bin/incastfree

incastfree doctor
