#!/bin/sh
# Makes a base image of Debian with Python, for those who take no image from a registry:
#   docker/make_base.sh [NAME] [SUITE] [PACKAGES]      defaults: telephony-tts-base bookworm python3,...
# It needs root, mmdebstrap and buildah (apt-get install mmdebstrap buildah). Then: make images BASE=localhost/NAME
set -eu
name=${1:-telephony-tts-base}
suite=${2:-bookworm}
packages=${3:-python3,python3-venv,ca-certificates}
storage=${STORAGE_DRIVER:-vfs}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mmdebstrap ${MMDEBSTRAP_OPTIONS:-} --variant=minbase --include="$packages" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
  "$suite" "$folder/base.tar"
container=$(buildah --storage-driver "$storage" from scratch)
buildah --storage-driver "$storage" add --quiet "$container" "$folder/base.tar" /
buildah --storage-driver "$storage" config --cmd /bin/bash --label org.opencontainers.image.title="$name" "$container"
buildah --storage-driver "$storage" commit --quiet --rm "$container" "$name"
