#!/bin/sh
# Runs Asterisk in the foreground. Its password at the server is the first of TELEPHONY_TTS_TOKENS.
set -eu
token=${TELEPHONY_TTS_TOKENS%%,*}
sed "s/^password = none .*/password = $token/" /opt/telephony-tts/asterisk/websocket_client.conf \
  >/etc/asterisk/websocket_client.conf
exec asterisk -f -n
