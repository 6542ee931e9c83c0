#!/bin/sh
# Installs the Debian packages that are named and missing; asks for root only if there are some.
set -eu
missing=""
for package in "$@"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
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
# A list of packages that are split into words, and a command that may be empty.
# shellcheck disable=SC2086
{
    $as_root apt-get update -qq
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
} >/dev/null
