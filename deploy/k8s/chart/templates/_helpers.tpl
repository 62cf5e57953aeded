{{/* Names and pieces that several objects share. */}}

{{- define "deltafence.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "deltafence.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "deltafence.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "deltafence.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "deltafence.selectorLabels" -}}
app.kubernetes.io/name: {{ include "deltafence.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "deltafence.labels" -}}
{{ include "deltafence.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{- define "deltafence.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "deltafence.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "deltafence.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ $tag }}{{ end -}}
{{- end -}}

{{- define "deltafence.envoyImage" -}}
{{- with .Values.envoy.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "deltafence.upstreamNamespace" -}}
{{- default .Release.Namespace .Values.upstream.service.namespace -}}
{{- end -}}

{{/* What of the Kubernetes API the processor watches; empty means not. */}}
{{- define "deltafence.watchesSlices" -}}
{{- if and .Values.kubernetesApi.endpointSlices (not .Values.upstream.urls) }}true{{ end -}}
{{- end -}}
{{- define "deltafence.watchesRoutes" -}}
{{- if and .Values.kubernetesApi.routeAnnotations (ne .Values.mode "standalone") }}true{{ end -}}
{{- end -}}
{{- define "deltafence.watches" -}}
{{- if or (include "deltafence.watchesSlices" .) (include "deltafence.watchesRoutes" .) }}true{{ else }}false{{ end -}}
{{- end -}}

{{/* The servers' origins, as a JSON list. */}}
{{- define "deltafence.replicas" -}}
{{- if .Values.upstream.urls -}}
{{- .Values.upstream.urls | toJson -}}
{{- else -}}
{{- list (printf "http://%s.%s.svc:%d" .Values.upstream.service.name (include "deltafence.upstreamNamespace" .) (int .Values.upstream.service.port)) | toJson -}}
{{- end -}}
{{- end -}}

{{/* The watching filter takes the other's place where the default policy says `observe`; only where the chart writes the filters. */}}
{{- define "deltafence.mode" -}}
{{- dig "mode" "enforce" .Values.policy -}}
{{- end -}}

{{/* Envoy and processor share sockets that open for their owner only; Istio's proxy always runs as 1337. */}}
{{- define "deltafence.uid" -}}
{{- if eq .Values.mode "istio" }}1337{{ else }}{{ .Values.runAsUser | int64 }}{{ end -}}
{{- end -}}

{{- define "deltafence.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ include "deltafence.uid" . }}
runAsGroup: {{ include "deltafence.uid" . }}
fsGroup: {{ include "deltafence.uid" . }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "deltafence.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: {{ include "deltafence.uid" . }}
runAsGroup: {{ include "deltafence.uid" . }}
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Where the pods run: Envoy Gateway's may have a namespace of their own. */}}
{{- define "deltafence.podNamespace" -}}
{{- if eq .Values.mode "envoyGateway" }}{{ .Values.envoyGateway.proxyNamespace }}{{ else }}{{ .Release.Namespace }}{{ end -}}
{{- end -}}

{{- define "deltafence.configMapName" -}}
{{ include "deltafence.fullname" . }}
{{- end -}}

{{/* A volume that one pod at a time may hold can't be handed over while both run. */}}
{{- define "deltafence.strategy" -}}
{{- if eq .Values.journal.store "sqlite" -}}
type: Recreate
{{- else -}}
type: RollingUpdate
rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
{{- end -}}
{{- end -}}

{{/* The processor's containers: the same in every mode. */}}
{{- define "deltafence.processorContainers" -}}
{{- range $number := until (int .Values.processor.count) }}
{{- $admin := add 9090 $number }}
- name: processor{{ if $number }}-{{ add1 $number }}{{ end }}
  image: {{ include "deltafence.image" $ }}
  imagePullPolicy: {{ $.Values.image.pullPolicy }}
  args:
  - processor
  - --socket=/run/deltafence/processor-{{ add1 $number }}.sock
  - --egress=/run/deltafence/egress.sock
  - --admin=0.0.0.0:{{ $admin }}
  {{- range $other := until (int $.Values.processor.count) }}
  {{- if ne $other $number }}
  - --sibling=127.0.0.1:{{ add 9090 $other }}
  {{- end }}
  {{- end }}
  {{- if include "deltafence.watchesSlices" $ }}
  - --service={{ include "deltafence.upstreamNamespace" $ }}/{{ $.Values.upstream.service.name }}:{{ $.Values.upstream.service.port | int64 }}
  {{- else }}
  {{- range fromJsonArray (include "deltafence.replicas" $) }}
  - --replica={{ . }}
  {{- end }}
  {{- end }}
  {{- if include "deltafence.watchesRoutes" $ }}
  - --route-annotations
  {{- if eq $.Values.mode "envoyGateway" }}
  - --route-namespace={{ $.Release.Namespace }}
  {{- end }}
  {{- end }}
  {{- if $.Values.policy }}
  - --policy=/etc/deltafence/policy.yaml
  {{- end }}
  {{- if $.Values.guard.existingSecret }}
  - --token-file=/etc/deltafence-guard/{{ $.Values.guard.key }}
  {{- end }}
  {{- if $.Values.journal.keySecret.existingSecret }}
  - --key-secret-file=/etc/deltafence-keys/{{ $.Values.journal.keySecret.key }}
  {{- end }}
  {{- if and (eq $.Values.mode "standalone") $.Values.upstream.ca.existingSecret }}
  - --replica-ca=/etc/deltafence-ca/{{ $.Values.upstream.ca.key }}
  {{- end }}
  {{- if $.Values.upstream.facts }}
  - --replica-facts=/etc/deltafence/replica-facts.yaml
  {{- end }}
  - --caller-header={{ $.Values.processor.callerHeader }}
  - --key-ttl={{ $.Values.processor.keyTtlHours | int64 }}h
  {{- if ne $.Values.journal.store "memory" }}
  - --journal-unavailable={{ $.Values.journal.unavailable }}
  - --journal-keep={{ $.Values.journal.keepHours | int64 }}h
  - --journal-bytes-max={{ $.Values.journal.bytesMax | int64 }}
  - --takeover-after={{ $.Values.journal.takeoverAfterSeconds | int64 }}s
  {{- end }}
  - --hung-after={{ $.Values.health.hungAfterSeconds | int64 }}s
  - --health-interval={{ $.Values.health.intervalSeconds | int64 }}s
  - --transport={{ $.Values.processor.transport }}
  - --egress-protocol={{ $.Values.processor.egressProtocol }}
  - --log-format={{ $.Values.processor.logFormat }}
  - --max-request-bytes={{ $.Values.processor.maxRequestBytes | int64 }}
  - --max-bodies-bytes={{ $.Values.processor.maxBodiesBytes | int64 }}
  - --max-streams={{ $.Values.processor.maxStreams | int64 }}
  {{- if eq $.Values.mode "standalone" }}
  - --drain-limit={{ $.Values.drain.endSeconds | int64 }}s
  {{- else }}
  - --drain-limit={{ sub ($.Values.drain.limitSeconds | int64) ($.Values.drain.settleSeconds | int64) }}s
  {{- end }}
  {{- range $.Values.processor.extraArgs }}
  - {{ . | quote }}
  {{- end }}
  {{- if or (ne $.Values.journal.store "memory") $.Values.processor.env }}
  env:
  {{- with $.Values.processor.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- if ne $.Values.journal.store "memory" }}
  - name: DELTAFENCE_JOURNAL
    {{- if eq $.Values.journal.store "postgres" }}
    valueFrom:
      secretKeyRef: {name: {{ $.Values.journal.postgres.existingSecret }}, key: {{ $.Values.journal.postgres.key }}}
    {{- else }}
    value: /var/lib/deltafence/journal.db
    {{- end }}
  {{- end }}
  ports:
  - {name: admin{{ if $number }}-{{ add1 $number }}{{ end }}, containerPort: {{ $admin }}}
  startupProbe:
    httpGet: {path: /livez, port: {{ $admin }}}
    periodSeconds: 1
    failureThreshold: 60
  readinessProbe:
    httpGet: {path: /readyz, port: {{ $admin }}}
    periodSeconds: 5
  livenessProbe:
    httpGet: {path: /livez, port: {{ $admin }}}
    periodSeconds: 10
    timeoutSeconds: 5
  lifecycle:
    preStop:
      {{- if eq $.Values.mode "standalone" }}
      exec:
        command:
        - deltafence
        - drain
        - --envoy-admin=/run/deltafence/envoy-admin.sock
        - --settle={{ $.Values.drain.settleSeconds | int64 }}s
        - --limit={{ $.Values.drain.limitSeconds | int64 }}s
      {{- else }}
      # The proxy that somebody else runs drains itself; until load balancers know, requests still come and are served.
      sleep: {seconds: {{ $.Values.drain.settleSeconds | int64 }}}
      {{- end }}
  resources: {{- toYaml $.Values.processor.resources | nindent 4 }}
  securityContext: {{- include "deltafence.containerSecurityContext" $ | nindent 4 }}
  volumeMounts:
  - {name: deltafence-run, mountPath: /run/deltafence}
  - {name: deltafence-config, mountPath: /etc/deltafence, readOnly: true}
  {{- if eq $.Values.journal.store "sqlite" }}
  - {name: deltafence-journal, mountPath: /var/lib/deltafence}
  {{- end }}
  {{- if $.Values.guard.existingSecret }}
  - {name: deltafence-guard, mountPath: /etc/deltafence-guard, readOnly: true}
  {{- end }}
  {{- if $.Values.journal.keySecret.existingSecret }}
  - {name: deltafence-keys, mountPath: /etc/deltafence-keys, readOnly: true}
  {{- end }}
  {{- if and (eq $.Values.mode "standalone") $.Values.upstream.ca.existingSecret }}
  - {name: deltafence-ca, mountPath: /etc/deltafence-ca, readOnly: true}
  {{- end }}
{{- end }}
{{- end -}}

{{/* One tool as `deltafence envoy-config` reads it. Numbers come as floats. */}}
{{- define "deltafence.tool" -}}
--tool={{ .name }}={{ .url }}
{{- range $key, $value := omit . "name" "url" }},{{ $key }}={{ if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}{{ end -}}
{{- end -}}

{{- define "deltafence.volumes" -}}
- name: deltafence-run
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
- name: deltafence-config
  configMap: {name: {{ include "deltafence.configMapName" . }}}
{{- if eq .Values.journal.store "sqlite" }}
- name: deltafence-journal
  persistentVolumeClaim: {claimName: {{ include "deltafence.fullname" . }}-journal}
{{- end }}
{{- if .Values.guard.existingSecret }}
- name: deltafence-guard
  secret: {secretName: {{ .Values.guard.existingSecret }}, defaultMode: 0440}
{{- end }}
{{- if .Values.journal.keySecret.existingSecret }}
- name: deltafence-keys
  secret:
    secretName: {{ .Values.journal.keySecret.existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .Values.journal.keySecret.key }}, path: {{ .Values.journal.keySecret.key }}}]
{{- end }}
{{- if and (eq .Values.mode "standalone") .Values.upstream.ca.existingSecret }}
- name: deltafence-ca
  secret: {secretName: {{ .Values.upstream.ca.existingSecret }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "deltafence.topologySpreadConstraints" -}}
{{- if .Values.topologySpreadConstraints -}}
{{- toYaml .Values.topologySpreadConstraints -}}
{{- else -}}
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "deltafence.selectorLabels" $ | nindent 6 }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Whom `helm test` asks; empty where the chart doesn't know. */}}
{{- define "deltafence.testUrl" -}}
{{- if .Values.test.url -}}
{{- .Values.test.url -}}
{{- else if ne .Values.mode "envoyGateway" -}}
http://{{ include "deltafence.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port | int64 }}
{{- end -}}
{{- end -}}

{{- define "deltafence.testLabels" -}}
app.kubernetes.io/name: {{ include "deltafence.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the pods in which the processor runs. */}}
{{- define "deltafence.processorPodLabels" -}}
{{- if eq .Values.mode "envoyGateway" -}}
deltafence.io/processor: {{ .Release.Name }}
{{- else -}}
{{ include "deltafence.selectorLabels" . }}
{{- end -}}
{{- end -}}
