# A current Asterisk with the dialplan of configs/asterisk, for docker/compose.yaml. Extension 700 reaches the server at
# 127.0.0.1:8080, so the container shares the network of its host.
ARG BASE=debian:forky-slim
FROM ${BASE}
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="telephony-tts (asterisk)" \
      org.opencontainers.image.description="Asterisk with an extension for the bot" \
      org.opencontainers.image.licenses="GPL-2.0-only" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.base.name="$BASE"
# Debian keeps one version of a package in a suite, so a version named here would soon be gone.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends asterisk \
 && rm -rf /var/lib/apt/lists/*
COPY configs/asterisk /opt/telephony-tts/asterisk
COPY --chmod=755 docker/asterisk.sh /opt/telephony-tts/asterisk.sh
RUN cat /opt/telephony-tts/asterisk/extensions.conf >>/etc/asterisk/extensions.conf \
 && cat /opt/telephony-tts/asterisk/pjsip.conf >>/etc/asterisk/pjsip.conf \
 && touch /etc/asterisk/websocket_client.conf \
 && chown asterisk:asterisk /etc/asterisk/websocket_client.conf \
 && install --directory --owner=asterisk --group=asterisk /run/asterisk
# Debian's package gives this user its number.
# hadolint ignore=DL3066
USER asterisk:asterisk
EXPOSE 5060/udp
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["asterisk", "-rx", "core show uptime"]
ENTRYPOINT ["/opt/telephony-tts/asterisk.sh"]
