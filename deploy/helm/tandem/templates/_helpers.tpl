{{- define "tandem.name" -}}
{{- if contains "tandem" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-tandem" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select every server pod of this release, workers included. */}}
{{- define "tandem.selector" -}}
app.kubernetes.io/name: tandem
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels that select the pods that answer requests, without the workers of a group. */}}
{{- define "tandem.serverSelector" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
{{ include "tandem.chartLabels" . }}
{{- end -}}

{{- define "tandem.chartLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The servers' selector excludes the gateway's pods, so that they can't reach the MPI ports. */}}
{{- define "tandem.gatewayName" -}}
{{ include "tandem.name" . }}-gateway
{{- end -}}
{{- define "tandem.serversName" -}}
{{ include "tandem.name" . }}-servers
{{- end -}}
{{- define "tandem.gatewaySelector" -}}
app.kubernetes.io/name: tandem-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "tandem.gatewayLabels" -}}
{{ include "tandem.gatewaySelector" . }}
{{ include "tandem.chartLabels" . }}
{{- end -}}

{{/* The kind of workload, for references to it. */}}
{{- define "tandem.workload" -}}
{{- if gt (int .Values.launch.nodes) 1 -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end -}}
{{- end -}}

{{/* Reject invalid combinations that the schema can't express. */}}
{{- define "tandem.check" -}}
{{- $launch := .Values.launch -}}
{{- if mod $launch.ranks $launch.nodes -}}
{{- fail (printf "launch.ranks: %v ranks do not divide among %v nodes" $launch.ranks $launch.nodes) -}}
{{- end -}}
{{- if and (eq $launch.mode "leader") (gt (len $launch.engines) 1) -}}
{{- fail (printf "launch.engines: %s given, but ranks of a leader stay in the first engine and never load a second; name one, or use mode orchestrator on one node" (join ", " $launch.engines)) -}}
{{- end -}}
{{- if and (eq $launch.mode "leader") (gt (int $launch.ranks) (mul .Values.gpus $launch.nodes | int)) -}}
{{- fail (printf "launch.ranks: %v ranks need a GPU each, and %v pods with gpus: %v have %v" $launch.ranks $launch.nodes .Values.gpus (mul .Values.gpus $launch.nodes)) -}}
{{- end -}}
{{- with .Values.gateway.ingress -}}
{{- if and .enabled (not .host) -}}
{{- fail "gateway.ingress.host: missing; name the host that clients will ask for" -}}
{{- end -}}
{{- if and .enabled (not $.Values.gateway.enabled) -}}
{{- fail "gateway.ingress.enabled: there is no gateway to reach; set gateway.enabled" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.service.headless (ne .Values.service.type "ClusterIP") -}}
{{- fail (printf "service.headless: a service of type %s needs an address; use ClusterIP" .Values.service.type) -}}
{{- end -}}
{{- $most := .Values.profile.maxRequests -}}
{{- if and .Values.autoscaling.enabled (ge (int .Values.autoscaling.requestsPerReplica) (int $most)) -}}
{{- fail (printf "autoscaling.requestsPerReplica: %v would never be exceeded, since a replica runs at most profile.maxRequests, which is %v; choose less" .Values.autoscaling.requestsPerReplica $most) -}}
{{- end -}}
{{- end -}}

{{/* Seconds between SIGTERM and SIGKILL: notice, longest request, and Triton's exit. */}}
{{- define "tandem.drainLimit" -}}
{{- add .Values.drainNotice .Values.profile.requestTimeout -}}
{{- end -}}
{{- define "tandem.gracePeriod" -}}
{{- add (include "tandem.drainLimit" .) .Values.exitTimeout 30 -}}
{{- end -}}
