#!/bin/sh
# Runs an image of the server as a Ray cluster: a head and a node as in compose.yaml, a replica with the embedded voice, and
# a sentence that the replica speaks. Everything runs as the image's own user.
#   docker/try_ray.sh telephony-tts-cpu:0.1.0 [PORT]            needs root and buildah; STORAGE_DRIVER=vfs by default
set -eu
image=$1
port=${2:-26379}
storage="--storage-driver ${STORAGE_DRIVER:-vfs}"
container=$(buildah $storage from --pull-never "$image")
log=$(mktemp)
run="buildah $storage run --isolation ${ISOLATION:-chroot} $container --"
$run ray start --head --block --num-cpus=0 --port "$port" --disable-usage-stats --include-dashboard=false >"$log" 2>&1 &
head=$!
node=
finish() {
  # The processes that listen or connect to this port, and no others: chroot shares the machine's processes.
  for each in /proc/[0-9]*; do
    if [ "${each#/proc/}" != $$ ] && tr '\0' ' ' <"$each/cmdline" 2>/dev/null | grep -q "[:= ]$port\b"; then kill "${each#/proc/}" 2>/dev/null || true; fi
  done
  wait "$head" $node || true
  buildah $storage rm "$container" >/dev/null
  rm -f "$log"
}
trap finish EXIT
settings="--set engines.default=ray --set engines.ray.address=127.0.0.1:$port --set engines.ray.engine=hibari"
n=0
until $run ray status --address "127.0.0.1:$port" >/dev/null 2>&1; do
  n=$((n + 1))
  if [ "$n" -gt 30 ] || ! kill -0 "$head"; then cat "$log" >&2; exit 1; fi
  sleep 2
done
echo "the head runs"
$run ray start --block --address "127.0.0.1:$port" --num-cpus=2 --disable-usage-stats >>"$log" 2>&1 &
node=$!
$run telephony-tts ray up $settings --within-s 240 || { cat "$log" >&2; exit 1; }
$run telephony-tts say $settings "Your parcel arrives tomorrow." /tmp/out.wav
$run python3 -c 'import os; print(os.path.getsize("/tmp/out.wav"), "bytes said by the replica")'
$run telephony-tts ray down $settings
