{{/* Values that contradict each other: refused here, with what to do, instead of failing in the cluster. Called once, by NOTES.txt
and by the first object, so that `helm template` refuses too. */}}
{{- define "deltafence.validate" -}}
{{- $needed := add (int .Values.drain.limitSeconds) (int .Values.drain.endSeconds) 10 -}}
{{- if lt (int .Values.terminationGracePeriodSeconds) (int $needed) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d is below drain.limitSeconds + drain.endSeconds + 10 = %d; raise it, else the kubelet kills streams that are still being ended" (int .Values.terminationGracePeriodSeconds) (int $needed)) -}}
{{- end -}}
{{- if gt (int .Values.drain.settleSeconds) (int .Values.drain.limitSeconds) -}}
{{- fail (printf "drain.settleSeconds: %d exceeds drain.limitSeconds %d; lower it: the limit counts from the same moment" (int .Values.drain.settleSeconds) (int .Values.drain.limitSeconds)) -}}
{{- end -}}
{{- if and (not .Values.upstream.urls) (not .Values.upstream.service.name) -}}
{{- fail "upstream: neither service.name nor urls is set; name the headless Service of your servers" -}}
{{- end -}}
{{- $severalPods := or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) -}}
{{- if and $severalPods (eq .Values.journal.store "sqlite") -}}
{{- fail "journal.store: sqlite is one pod's file, but there are several pods; set journal.store: postgres, so that they agree on idempotency keys, or replicaCount: 1" -}}
{{- end -}}
{{- if and (gt (int .Values.processor.count) 1) (eq .Values.journal.store "sqlite") -}}
{{- fail "journal.store: sqlite belongs to one process, but processor.count is above 1; set journal.store: postgres or processor.count: 1" -}}
{{- end -}}
{{- if and (eq .Values.mode "envoyGateway") (eq .Values.journal.store "sqlite") -}}
{{- fail "journal.store: sqlite needs a volume of its own in pods that Envoy Gateway runs, which it does not offer; set journal.store: postgres or memory" -}}
{{- end -}}
{{- if and (eq .Values.journal.store "postgres") (not .Values.journal.postgres.existingSecret) -}}
{{- fail "journal.postgres.existingSecret: is empty; name the Secret that holds the connection URL" -}}
{{- end -}}
{{- $ttl := dig "lease" "ttl_ms" 0 .Values.policy | int -}}
{{- if and (ne .Values.journal.store "memory") (gt $ttl 20000) (not (contains "--takeover-after" (join " " .Values.processor.extraArgs))) -}}
{{- fail (printf "policy.lease.ttl_ms: %d exceeds the 20 s after which other processors settle what one left, and the processor refuses that; add --takeover-after=%dms to processor.extraArgs" $ttl $ttl) -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas: %d exceeds autoscaling.maxReplicas %d" (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and .Values.routes (ne .Values.mode "standalone") -}}
{{- fail (printf "routes: belong to the standalone gateway; in mode %s annotate your route objects instead (docs/policy.md)" .Values.mode) -}}
{{- end -}}
{{- range fromJsonArray (include "deltafence.replicas" .) -}}
{{- if and (hasPrefix "https://" .) (ne $.Values.mode "standalone") -}}
{{- fail (printf "upstream.urls: %s needs TLS towards the server, which only mode standalone does; use http:// or that mode" .) -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.mode "standalone") (eq .Values.drain.settleSeconds .Values.drain.limitSeconds) -}}
{{- fail "drain.limitSeconds: must exceed drain.settleSeconds, else the processor has no time for running streams" -}}
{{- end -}}
{{- $missing := dict
  "standalone" (list)
  "envoyGateway" (list "gateway.envoyproxy.io/v1alpha1/EnvoyProxy" "gateway.envoyproxy.io/v1alpha1/EnvoyExtensionPolicy" "gateway.envoyproxy.io/v1alpha1/Backend")
  "istio" (list "networking.istio.io/v1alpha3/EnvoyFilter") -}}
{{- range get $missing .Values.mode -}}
{{- if not ($.Capabilities.APIVersions.Has .) -}}
{{- fail (printf "mode: %s needs %s, which this cluster does not have; install it first (with helm template: --api-versions %s)" $.Values.mode . .) -}}
{{- end -}}
{{- end -}}
{{- $operated := dict "podMonitor.enabled" (list .Values.podMonitor.enabled "PodMonitor") "monitoring.rules.enabled" (list .Values.monitoring.rules.enabled "PrometheusRule") -}}
{{- range $key, $use := $operated -}}
{{- $needed := printf "monitoring.coreos.com/v1/%s" (last $use) -}}
{{- if and (first $use) (not ($.Capabilities.APIVersions.Has $needed)) -}}
{{- fail (printf "%s: needs %s, which this cluster does not have; install the Prometheus operator first (with helm template: --api-versions %s)" $key $needed $needed) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.networkPolicy.enabled (ne .Values.mode "envoyGateway") (not .Values.networkPolicy.operators) -}}
{{- fail "podMonitor.enabled: Prometheus can't reach the pods while networkPolicy.operators is empty; name its namespace there, or set networkPolicy.enabled: false" -}}
{{- end -}}
{{- end -}}
