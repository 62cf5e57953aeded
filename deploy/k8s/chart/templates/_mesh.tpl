{{/* The parts of Envoy's configuration that a mesh's own Envoy is given. files/*.json are extracted from envoy/envoy.yaml.j2, so
that there is one template; what differs from one installation to another, the endpoints, is filled in here. JSON throughout:
Helm would print larger integers of YAML as 1.048576e+06. */}}

{{- define "deltafence.replicasCluster" -}}
{{- $cluster := .Files.Get "files/replicas-cluster.json" | fromJson -}}
{{- $endpoints := list -}}
{{- range fromJsonArray (include "deltafence.replicas" .) -}}
{{- $url := urlParse . -}}
{{- $host := regexReplaceAll ":[0-9]+$" $url.host "" -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default "80" | int -}}
{{- $address := dict "socket_address" (dict "address" (trimAll "[]" $host) "port_value" $port) -}}
{{- $endpoints = append $endpoints (dict "endpoint" (dict "address" $address "hostname" $host)) -}}
{{- end -}}
{{- $_ := set $cluster.load_assignment "endpoints" (list (dict "lb_endpoints" $endpoints)) -}}
{{- $cluster | toJson -}}
{{- end -}}

{{- define "deltafence.processorCluster" -}}
{{- $cluster := .Files.Get "files/processor-cluster.json" | fromJson -}}
{{- $endpoints := list -}}
{{- range $number := until (int .Values.processor.count) -}}
{{- $pipe := dict "pipe" (dict "path" (printf "/run/deltafence/processor-%d.sock" (add1 $number))) -}}
{{- $endpoints = append $endpoints (dict "endpoint" (dict "address" $pipe)) -}}
{{- end -}}
{{- $_ := set $cluster.load_assignment "endpoints" (list (dict "lb_endpoints" $endpoints)) -}}
{{- $cluster | toJson -}}
{{- end -}}

{{- define "deltafence.egressListener" -}}
{{- $listener := .Files.Get "files/egress-listener.json" | fromJson -}}
{{- $manager := index $listener.filter_chains 0 "filters" 0 "typed_config" -}}
{{- if eq .Values.envoy.accessLog "" -}}
{{- $_ := set $manager "access_log" list -}}
{{- else if eq .Values.envoy.accessLog "stderr" -}}
{{- $_ := set (index $manager.access_log 0 "typed_config") "@type" "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StderrAccessLog" -}}
{{- end -}}
{{- $listener | toJson -}}
{{- end -}}
