{{/*
The configuration files of the pods. What the chart decides is laid over what the values say. A value for one of these
settings is refused, because it would have no effect.
*/}}
{{- define "tts.refuseOwned" -}}
{{- $config := .config -}}
{{- $where := .where -}}
{{- range .owned -}}
  {{- $path := splitList "." .key -}}
  {{- $section := get $config (first $path) -}}
  {{- if kindIs "map" $section -}}
    {{- if hasKey $section (last $path) -}}
      {{- fail (printf "%s.%s: the chart sets it; use %s" $where .key .use) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "tts.frontConfig" -}}
{{- $front := .Values.front -}}
{{- include "tts.refuseOwned" (dict "config" $front.config "where" "front.config" "owned" (list
      (dict "key" "server.host" "use" "nothing: a pod listens on all its addresses")
      (dict "key" "server.port" "use" "front.service: a pod listens on 8080")
      (dict "key" "server.drain_calls_s" "use" "front.longest_call_s")
      (dict "key" "server.processes" "use" "front.processes")
      (dict "key" "limits.calls" "use" "front.calls")
      (dict "key" "engines.default" "use" "engine.mode and engine.config"))) -}}
{{- $config := deepCopy $front.config -}}
{{- $engines := dict -}}
{{- if eq .Values.engine.mode "local" -}}
  {{- $config = mustMergeOverwrite $config (deepCopy .Values.engine.config) -}}
{{- else if eq .Values.engine.mode "remote" -}}
  {{- /* Every front is connected to every engine, and gives a sentence to the one with the least load. */ -}}
  {{- $pods := printf "%s-engine" (include "tts.name" .) -}}
  {{- $targets := list -}}
  {{- range $i := until (int .Values.engine.replicas) -}}
    {{- $targets = append $targets (printf "%s-%d.%s-pods.%s.svc:%d" $pods $i $pods $.Release.Namespace (int $.Values.engine.port)) -}}
  {{- end -}}
  {{- $engines = dict "default" "remote" "routes" dict "remote" (dict "target" (join "," $targets)) -}}
{{- else -}}
  {{- $address := printf "ray://%s-engine-head-svc.%s.svc:10001" (include "tts.name" .) .Release.Namespace -}}
  {{- $engines = dict "default" "ray" "routes" dict "ray" (dict "address" $address) -}}
{{- end -}}
{{- $own := dict
      "server" (dict "host" "0.0.0.0" "port" 8080 "drain_calls_s" (int $front.longest_call_s))
      "limits" (dict "calls" (int $front.calls)) -}}
{{- if $engines }}{{ $_ := set $own "engines" $engines }}{{ end -}}
{{- if gt (int $front.processes) 1 }}{{ $_ := set $own.server "processes" (int $front.processes) }}{{ end -}}
{{- toYaml (mustMergeOverwrite $config $own) -}}
{{- end -}}

{{- define "tts.engineConfig" -}}
{{- if not .Values.engine.config -}}
  {{- fail "engine.config: missing; engine pods need the engine's settings, as in values-l20.yaml" -}}
{{- end -}}
{{- include "tts.refuseOwned" (dict "config" .Values.engine.config "where" "engine.config" "owned" (list
      (dict "key" "server.drain_s" "use" "engine.drain_s")
      (dict "key" "engines.ray" "use" "engine.ray"))) -}}
{{- $own := dict "server" (dict "drain_s" (int .Values.engine.drain_s)) -}}
{{- if eq .Values.engine.mode "ray" -}}
  {{- $ray := .Values.engine.ray -}}
  {{- $engine := dig "engines" "default" "hibari" .Values.engine.config -}}
  {{- $_ := set $own "engines" (dict "ray" (dict
        "address" "auto"
        "app" "telephony-tts"
        "engine" $engine
        "replicas" (mul (int $ray.min) (int $ray.per_pod))
        "max_replicas" (mul (int $ray.max) (int $ray.per_pod))
        "cpus" (divf 1 (float64 $ray.per_pod))
        "gpus" (divf (float64 .Values.engine.gpus) (float64 $ray.per_pod))
        "target_load" (float64 $ray.target_load)
        "upscale_delay_s" (int $ray.scale_up_after_s)
        "downscale_delay_s" (int $ray.scale_down_after_s))) -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite (deepCopy .Values.engine.config) $own) -}}
{{- end -}}

{{- define "tts.bridgeConfig" -}}
{{- $bridge := .Values.bridge -}}
{{- include "tts.refuseOwned" (dict "config" $bridge.config "where" "bridge.config" "owned" (list
      (dict "key" "server.url" "use" "nothing: the bridge connects to this chart's fronts")
      (dict "key" "audiosocket.host" "use" "nothing: a pod listens on all its addresses")
      (dict "key" "audiosocket.port" "use" "bridge.service: a pod listens on 9092")
      (dict "key" "audiosocket.allowed" "use" "bridge.allowed")
      (dict "key" "http.host" "use" "nothing: a pod listens on all its addresses")
      (dict "key" "http.port" "use" "nothing: it is 9093"))) -}}
{{- if hasKey $bridge.config "drain_s" }}{{ fail "bridge.config.drain_s: the chart sets it; use bridge.longest_call_s" }}{{ end -}}
{{- $scheme := ternary "wss" "ws" (eq (include "tts.scheme" .) "HTTPS") -}}
{{- $own := dict
      "server" (dict "url" (printf "%s://%s-front.%s.svc:8080/media/native" $scheme (include "tts.name" .) .Release.Namespace))
      "audiosocket" (dict "host" "0.0.0.0" "port" 9092 "allowed" $bridge.allowed)
      "http" (dict "host" "0.0.0.0" "port" 9093)
      "drain_s" (int $bridge.longest_call_s) -}}
{{- toYaml (mustMergeOverwrite (deepCopy $bridge.config) $own) -}}
{{- end -}}

{{/* How the kubelet and Prometheus speak with a front: HTTPS if the server itself has a certificate. */}}
{{- define "tts.scheme" -}}
{{- if dig "server" "tls" "cert" "" .Values.front.config }}HTTPS{{ else }}HTTP{{ end -}}
{{- end -}}

{{- define "tts.drainS" -}}
{{- dig "server" "drain_s" 30 .Values.front.config -}}
{{- end -}}

{{/* Most pods of the fronts that can run at once, without those of a rolling update. */}}
{{- define "tts.mostFronts" -}}
{{- if eq .Values.front.autoscaling.kind "none" }}{{ .Values.front.replicas }}{{ else }}{{ .Values.front.autoscaling.max }}{{ end -}}
{{- end -}}

{{/* What a schema cannot say, because it concerns two values. */}}
{{- define "tts.check" -}}
{{- $front := .Values.front -}}
{{- $scaling := $front.autoscaling -}}
{{- if and (gt (int (include "tts.mostFronts" .)) 1) (not $front.legs) -}}
  {{- fail "front.legs: missing; with more than one front pod, say how both legs of a call reach the same one (docs/deploy.md): server-dials-bot, one-socket or hashed-by-ingress. Or set front.replicas to 1" -}}
{{- end -}}
{{- if and (eq $front.legs "server-dials-bot") (not (dig "bot" "url" "" $front.config)) -}}
  {{- fail "front.config.bot.url: missing; front.legs is server-dials-bot" -}}
{{- end -}}
{{- if and (eq $front.legs "hashed-by-ingress") (not $front.ingress.enabled) -}}
  {{- fail "front.ingress.enabled: must be true; front.legs is hashed-by-ingress" -}}
{{- end -}}
{{- if and $front.ingress.enabled (not $front.ingress.host) -}}
  {{- fail "front.ingress.host: missing; front.ingress.enabled is true" -}}
{{- end -}}
{{- if and (ne $scaling.kind "none") (gt (int $scaling.min) (int $scaling.max)) -}}
  {{- fail (printf "front.autoscaling.min: %d is above front.autoscaling.max (%d)" (int $scaling.min) (int $scaling.max)) -}}
{{- end -}}
{{- if and (not .Values.secrets.existing) (not .Values.secrets.values) -}}
  {{- fail "secrets.existing: missing; name a Secret with TELEPHONY_TTS_TOKENS, or give secrets.values" -}}
{{- end -}}
{{- if and .Values.secrets.existing .Values.secrets.values -}}
  {{- fail "secrets.values: has no effect while secrets.existing is set; set one of the two to \"\" or {}" -}}
{{- end -}}
{{- if and .Values.secrets.values (not (hasKey .Values.secrets.values "TELEPHONY_TTS_TOKENS")) -}}
  {{- fail "secrets.values.TELEPHONY_TTS_TOKENS: missing; a server that others can reach needs a token (openssl rand -hex 32)" -}}
{{- end -}}
{{- if and .Values.secrets.values (eq .Values.engine.mode "remote") (not (hasKey .Values.secrets.values "TELEPHONY_TTS_ENGINE_TOKEN")) -}}
  {{- fail "secrets.values.TELEPHONY_TTS_ENGINE_TOKEN: missing; fronts and engine pods need a shared token (openssl rand -hex 32)" -}}
{{- end -}}
{{- if and .Values.model.pull.enabled (not (has .Values.model.source (list "pvc" "host"))) -}}
  {{- fail (printf "model.pull.enabled: needs model.source pvc or host, which can be written; it is %s" .Values.model.source) -}}
{{- end -}}
{{- if and (dig "engines" "cosyvoice2" "model" "" .Values.engine.config) (eq .Values.model.source "none") -}}
  {{- fail "model.source: it is empty, and engine.config.engines.cosyvoice2.model needs a model; choose pvc, image or host" -}}
{{- end -}}
{{- if gt (int .Values.engine.ray.min) (int .Values.engine.ray.max) -}}
  {{- fail (printf "engine.ray.min: %d is above engine.ray.max (%d)" (int .Values.engine.ray.min) (int .Values.engine.ray.max)) -}}
{{- end -}}
{{- end -}}
