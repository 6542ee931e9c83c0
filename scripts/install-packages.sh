#!/bin/sh
# Installs the Debian packages that are named and missing; asks for root only if there are some.
# Of names with commas between them any will do: Ubuntu 22.04 has libbpf0 where Debian 12 has libbpf1.
set -eu

first_with() { # a test, and names with commas between them: prints the first that passes it
    for package in $(echo "$2" | tr , ' '); do
        if "$1" "$package"; then
            echo "$package"
            return
        fi
    done
}
is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}
is_known() {
    apt-cache show "$1" >/dev/null 2>&1
}

missing=""
for names in "$@"; do
    [ -n "$(first_with is_installed "$names")" ] || missing="$missing $names"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif command -v sudo >/dev/null; then
    as_root=sudo
else
    echo "incastfree: these packages are missing; install them as root:$missing" >&2
    exit 1
fi
echo "installing packages:$missing"
# Lists of packages that are split into words, and a command that may be empty.
# shellcheck disable=SC2086
{
    $as_root apt-get update -qq
    chosen=""
    for names in $missing; do
        package=$(first_with is_known "$names")
        # One that is not known goes to apt-get all the same, which says so.
        chosen="$chosen ${package:-${names%%,*}}"
    done
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $chosen
} >/dev/null
