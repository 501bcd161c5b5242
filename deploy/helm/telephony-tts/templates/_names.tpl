{{- define "tts.name" -}}
{{- if eq .Release.Name .Chart.Name }}{{ .Chart.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{/* Labels that select the pods of a part. Arguments: dict "root" . "part" "front" */}}
{{- define "tts.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "tts.labels" -}}
{{ include "tts.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* An image by its name in the values. Arguments: dict "root" . "image" "telephony-tts-cpu" */}}
{{- define "tts.image" -}}
{{- $tag := .root.Values.image.tag | default .root.Chart.AppVersion -}}
{{- with .root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image }}:{{ $tag }}
{{- end -}}

{{- define "tts.secret" -}}
{{- .Values.secrets.existing | default (include "tts.name" .) -}}
{{- end -}}

{{/* What every pod has: an unprivileged user, and no account in the cluster. */}}
{{- define "tts.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "tts.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "tts.modelVolume" -}}
{{- $model := .Values.model -}}
- name: models
{{- if eq $model.source "pvc" }}
  persistentVolumeClaim:
    claimName: {{ $model.pvc.existing | default (printf "%s-models" (include "tts.name" .)) }}
    readOnly: true
{{- else if eq $model.source "image" }}
  image:
    reference: {{ required "model.image.reference: missing; model.source is image" $model.image.reference | quote }}
    pullPolicy: {{ .Values.image.pullPolicy }}
{{- else if eq $model.source "host" }}
  hostPath:
    path: {{ required "model.host.path: missing; model.source is host" $model.host.path | quote }}
    type: Directory
{{- end }}
{{- end -}}
