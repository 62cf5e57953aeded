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
{{- if gt (int .Values.health.intervalSeconds) (int .Values.health.hungAfterSeconds) -}}
{{- fail (printf "health.intervalSeconds: %d exceeds health.hungAfterSeconds %d; hung is what two looks found" (int .Values.health.intervalSeconds) (int .Values.health.hungAfterSeconds)) -}}
{{- end -}}
{{- if lt (int64 .Values.processor.maxBodiesBytes) (int64 .Values.processor.maxRequestBytes) -}}
{{- fail (printf "processor.maxBodiesBytes: %d has no room for one request of processor.maxRequestBytes %d; raise it" (int64 .Values.processor.maxBodiesBytes) (int64 .Values.processor.maxRequestBytes)) -}}
{{- end -}}
{{- include "deltafence.validatePolicies" . -}}
{{- include "deltafence.validateTools" (dict "root" . "severalPods" $severalPods) -}}
{{- include "deltafence.validateNames" . -}}
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
{{- if and (ne .Values.mode "standalone") (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "mode: %s needs Kubernetes 1.30 or newer, for the sleep hook that lets requests come until load balancers know; this is %s" .Values.mode .Capabilities.KubeVersion.Version) -}}
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
{{- if and .Values.podMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.operators) -}}
{{- fail "podMonitor.enabled: Prometheus can't reach the pods while networkPolicy.operators is empty; name its namespace there, or set networkPolicy.enabled: false" -}}
{{- end -}}
{{- end -}}

{{/* Policies that the processor would refuse at its start, and deadlines that Envoy's own limits would cut short. */}}
{{- define "deltafence.validatePolicies" -}}
{{- $policies := dict "policy" .Values.policy -}}
{{- range $number, $route := .Values.routes -}}
{{- $_ := set $policies (printf "routes[%d].policy" $number) (mustMergeOverwrite (deepCopy $.Values.policy) (deepCopy (default dict $route.policy))) -}}
{{- end -}}
{{- $relations := .Files.Get "files/policy-relations.json" | fromJsonArray -}}
{{- range $where, $policy := $policies -}}
{{- range $relations -}}
{{- $lower := dig (first .lower) (last .lower) .lowerDefault $policy | int64 -}}
{{- $upper := dig (first .upper) (last .upper) .upperDefault $policy | int64 -}}
{{- if gt $lower $upper -}}
{{- fail (printf "%s: %s %d exceeds %s %d; %s" $where (join "." .lower) $lower (join "." .upper) $upper .fix) -}}
{{- end -}}
{{- end -}}
{{- $first := dig "deadlines" "first_delta_ms" 0 $policy | int64 -}}
{{- if and (ne $.Values.mode "envoyGateway") (ge $first (mul 1000 ($.Values.envoy.streamIdleSeconds | int64))) -}}
{{- fail (printf "%s.deadlines.first_delta_ms: Envoy gives a silent stream up after envoy.streamIdleSeconds %d; raise that above %d ms" $where ($.Values.envoy.streamIdleSeconds | int64) $first) -}}
{{- end -}}
{{- $total := dig "deadlines" "total_ms" 0 $policy | int64 -}}
{{- if and (eq $.Values.mode "standalone") (ge $total (mul 1000 ($.Values.envoy.streamMaxSeconds | int64))) -}}
{{- fail (printf "%s.deadlines.total_ms: Envoy ends every stream after envoy.streamMaxSeconds %d; raise that above %d ms" $where ($.Values.envoy.streamMaxSeconds | int64) $total) -}}
{{- end -}}
{{- if and (eq $.Values.journal.store "memory") (eq (dig "tools" "refuse" $policy) "ledger") -}}
{{- fail (printf "%s.tools: ledger says that tool calls are in the ledger, and there is none; set journal.store: postgres, or sqlite for one pod" $where) -}}
{{- end -}}
{{- $ttl := dig "lease" "ttl_ms" 0 $policy | int64 -}}
{{- if and (ne $.Values.journal.store "memory") (gt $ttl (mul 1000 ($.Values.journal.takeoverAfterSeconds | int64))) -}}
{{- fail (printf "%s.lease.ttl_ms: %d exceeds journal.takeoverAfterSeconds %d, after which others settle what a processor left while an attempt of it may still publish; raise that" $where $ttl ($.Values.journal.takeoverAfterSeconds | int64)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.mode "envoyGateway") (eq (include "deltafence.mode" .) "observe") -}}
{{- fail "policy.mode: observe needs a filter that gets copies, which Envoy Gateway does not offer; use mode istio or standalone for it, or policy.mode: off" -}}
{{- end -}}
{{- end -}}

{{- define "deltafence.validateTools" -}}
{{- $values := .root.Values -}}
{{- if $values.tools.routes -}}
{{- if ne $values.mode "standalone" -}}
{{- fail (printf "tools.routes: only mode standalone serves tools; install the chart a second time in that mode, with the journal of this release (journal.postgres), and let agents call that release's tools Service") -}}
{{- end -}}
{{- if eq $values.journal.store "memory" -}}
{{- fail "tools.routes: the ledger is kept in the journal's database; set journal.store: postgres, or sqlite for one pod" -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled (not $values.tools.callers) -}}
{{- fail "tools.routes: nobody can call them while tools.callers is empty; name the agents' pods there, or set networkPolicy.enabled: false" -}}
{{- end -}}
{{- $names := list -}}
{{- range $values.tools.routes -}}
{{- if has .name $names -}}
{{- fail (printf "tools.routes: %s is there twice" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if gt (int64 (default 10000 .wait_ms)) (int64 (default 600000 .deadline_ms)) -}}
{{- fail (printf "tools.routes: %s: wait_ms is longer than deadline_ms; lower it" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names that are there twice, and names of ours that a value would take over. */}}
{{- define "deltafence.validateNames" -}}
{{- $seen := list -}}
{{- range .Values.routes -}}
{{- range $key := list (printf "name %s" .name) (printf "path %s" .path) -}}
{{- if has $key $seen -}}
{{- fail (printf "routes: two routes have the %s" $key) -}}
{{- end -}}
{{- $seen = append $seen $key -}}
{{- end -}}
{{- end -}}
{{- $own := merge (dict "deltafence.io/processor" "" "sidecar.istio.io/inject" "") (include "deltafence.labels" . | fromYaml) (ternary .Values.istio.gatewayLabels dict (eq .Values.mode "istio")) -}}
{{- range $key, $_ := .Values.podLabels -}}
{{- if hasKey $own $key -}}
{{- fail (printf "podLabels: %s is the chart's own; remove it" $key) -}}
{{- end -}}
{{- end -}}
{{- range $key := list "checksum/config" "kubectl.kubernetes.io/default-container" "inject.istio.io/templates" "proxy.istio.io/config" -}}
{{- if hasKey $.Values.podAnnotations $key -}}
{{- fail (printf "podAnnotations: %s is the chart's own; remove it" $key) -}}
{{- end -}}
{{- end -}}
{{- range .Values.processor.env -}}
{{- if eq .name "DELTAFENCE_JOURNAL" -}}
{{- fail "processor.env: DELTAFENCE_JOURNAL is set by journal.store" -}}
{{- end -}}
{{- end -}}
{{- $byValues := list "socket" "egress" "replica" "replica-ca" "replica-facts" "service" "route-annotations" "route-namespace" "admin" "sibling" "policy" "token-file" "journal" "journal-unavailable" "journal-keep" "journal-bytes-max" "takeover-after" "key-secret-file" "key-ttl" "caller-header" "max-request-bytes" "max-bodies-bytes" "max-streams" "hung-after" "health-interval" "transport" "egress-protocol" "drain-limit" "log-format" -}}
{{- range .Values.processor.extraArgs -}}
{{- $option := regexReplaceAll "^--|=.*$" . "" -}}
{{- if has $option $byValues -}}
{{- fail (printf "processor.extraArgs: --%s is set by a value of the chart; set that one (README.md)" $option) -}}
{{- end -}}
{{- end -}}
{{- $facts := keys .Values.upstream.facts -}}
{{- range $facts -}}
{{- if not (has . $.Values.upstream.urls) -}}
{{- fail (printf "upstream.facts: %s is none of upstream.urls" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
