#!/bin/sh
# Runs an image of the server as it would run in production: as its own user, until /readyz answers, then a sentence is
# spoken over HTTP and by `telephony-tts say`, then SIGTERM must end it with 0.
#   docker/try_image.sh telephony-tts-cpu:0.1.0 [PORT]          needs root, buildah and curl; STORAGE_DRIVER=vfs by default
set -eu
image=$1
port=${2:-18080}
storage="--storage-driver ${STORAGE_DRIVER:-vfs}"
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
container=$(buildah $storage from --pull-never "$image")
log=$(mktemp)
trap 'buildah $storage rm "$container" >/dev/null; rm -f "$log"' EXIT
run="buildah $storage run --isolation ${ISOLATION:-chroot} --env TELEPHONY_TTS_TOKENS=$token $container --"
echo "user:   $($run id -u):$($run id -g)"
[ "$($run id -u)" = 10001 ]
echo "size:   $(buildah $storage images --format '{{.Size}}' "$image")"
echo "labels: $(buildah $storage inspect --type image --format '{{.OCIv1.Config.Labels}}' "$image")"
echo "check:  $(buildah $storage inspect --type image --format '{{.Docker.Config.Healthcheck}}' "$image")"
# The cuda image has a C compiler for Triton.
case "$image" in *cuda*) tools=$($run sh -c 'command -v g++ make; true') ;;
  *) tools=$($run sh -c 'command -v gcc cc g++ make; true') ;; esac
if [ -n "$tools" ]; then echo "build tools are in the image: $tools" >&2; exit 1; fi
$run telephony-tts serve --config /etc/telephony-tts/server.yaml --host 127.0.0.1 --port "$port" >"$log" 2>&1 &
server=$!
n=0
until curl -sf "http://127.0.0.1:$port/readyz"; do
  n=$((n + 1))
  if [ "$n" -gt 120 ] || ! kill -0 "$server"; then cat "$log" >&2; exit 1; fi
  sleep 0.5
done
curl -sf -H "Authorization: Bearer $token" -H 'Content-Type: application/json' \
  -d '{"model":"tts-1","voice":"alloy","input":"Your parcel arrives tomorrow.","response_format":"wav"}' \
  "http://127.0.0.1:$port/v1/audio/speech" | wc -c | sed 's/$/ bytes of speech over HTTP/'
$run telephony-tts say "Your parcel arrives tomorrow." /tmp/out.wav
$run python3 -c 'import os; print(os.path.getsize("/tmp/out.wav"), "bytes said")'
# The server is the process that listens; buildah passes no signal on.
listening=$(for each in /proc/[0-9]*; do
  if tr '\0' ' ' <"$each/cmdline" 2>/dev/null | grep -q "bin/telephony-tts serve .*--port $port"; then echo "${each#/proc/}"; fi
done)
grep -h '^Uid:' "/proc/$(echo "$listening" | tail -1)/status" | sed 's/^/server /'
kill -TERM $(echo "$listening" | tail -1)
wait "$server"
echo "stopped with 0"
