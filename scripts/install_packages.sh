#!/usr/bin/env bash
# Installs the Debian packages that llmtrain is built with; does nothing when all are there.
#
#   scripts/install_packages.sh
#
# LLMTRAIN_SKIP_PACKAGES=1 leaves the system alone: for a machine without root whose libraries lie in
# a prefix of their own (docs/install.md).
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache python3 git gzip xz-utils
  libyaml-cpp-dev libfmt-dev libcli11-dev nlohmann-json3-dev doctest-dev
  libhwy-dev libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libzstd-dev
  libopenmpi-dev openmpi-bin
)

die() {
  printf 'install_packages: %s\n' "$*" >&2
  exit 1
}

if [ "${LLMTRAIN_SKIP_PACKAGES:-0}" = 1 ]; then exit 0; fi
command -v dpkg-query >/dev/null || die "this is no Debian-like system. Install what docs/install.md" \
  "lists by hand, then run again with LLMTRAIN_SKIP_PACKAGES=1"

missing=()
for package in "${packages[@]}"; do
  status="$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)"
  if [ "$status" != installed ]; then missing+=("$package"); fi
done
if [ "${#missing[@]}" -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  # Ask for a password only where somebody can type one.
  if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root=(sudo)
  else
    die "these packages are missing and installing them needs root: ${missing[*]}
Ask the administrator for:  apt-get install ${missing[*]}
or follow 'Without root' in docs/install.md."
  fi
fi

printf 'installing %s\n' "${missing[*]}"
apt_options=(-qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
"${as_root[@]}" apt-get "${apt_options[@]}" update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get "${apt_options[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
