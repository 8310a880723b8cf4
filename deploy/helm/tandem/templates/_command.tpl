{{/* What every rank is started with. */}}
{{- define "tandem.triton" -}}
{{- $repository := eq .Values.repository.from "url" | ternary .Values.repository.url "/repository" -}}
- tritonserver
- {{ printf "--model-repository=%s" $repository | quote }}
- --disable-auto-complete-config
- --exit-timeout-secs={{ .Values.exitTimeout }}
{{- if and (eq .Values.launch.mode "orchestrator") (eq (int .Values.launch.ranks) 1) }}
# The orchestrator's own process computes nothing: it must not take GPU memory from its workers.
- --pinned-memory-pool-byte-size=0
- --enable-peer-access=false
{{- range until (int .Values.gpus) }}
- --cuda-memory-pool-byte-size={{ . }}:0
{{- end }}
{{- end }}
{{- end -}}

{{/* Rank 0 has every model and answers. Threads as `tandem up` counts them: one call for each request
     that runs and each that waits, or two for each that runs, and some to spare. */}}
{{- define "tandem.server" -}}
{{- $threads := add .Values.profile.maxRequests (max .Values.profile.maxRequests .Values.profile.maxQueue) 32 -}}
{{ include "tandem.triton" . }}
- --backend-config=python,shm-region-prefix-name=triton_python_backend_shm_region_tandem-0-
- --backend-config=python,thread-pool-size={{ $threads }}
- --backend-config=python,stub-timeout-seconds={{ .Values.startupTimeout }}
{{- end -}}

{{/* The ranks above it only compute. */}}
{{- define "tandem.rank" -}}
{{ include "tandem.triton" .root }}
- --model-control-mode=explicit
{{- range .root.Values.launch.engines }}
- --load-model={{ . }}
{{- end }}
- --allow-http=false
- --allow-grpc=false
- --allow-metrics=false
- --backend-config=python,shm-region-prefix-name=triton_python_backend_shm_region_tandem-{{ .rank }}-
{{- end -}}

{{/* Bound to a core, as mpirun does by default, all threads of a server would share that core. */}}
{{- define "tandem.mpirun" -}}
- mpirun
- --map-by
- slot
- --bind-to
- none
{{- if gt (int .Values.launch.nodes) 1 }}
{{- $slots := div .Values.launch.ranks .Values.launch.nodes }}
{{- $hosts := list (printf "$(POD_NAME):%v" $slots) }}
{{- range $node := untilStep 1 (int .Values.launch.nodes) 1 }}
{{- $hosts = append $hosts (printf "$(POD_NAME)-%v:%v" $node $slots) }}
{{- end }}
- --host
- {{ join "," $hosts }}
# Each worker's daemon stays the process that its pod waits for.
- --leave-session-attached
{{- end }}
- -n
- "1"
{{ include "tandem.server" . }}
{{- range $rank := untilStep 1 (int .Values.launch.ranks) 1 }}
- ":"
- -n
- "1"
{{ include "tandem.rank" (dict "root" $ "rank" $rank) }}
{{- end }}
{{- end -}}

{{/* Arguments, not a command: the image's own entry point (NVIDIA's finds the CUDA libraries that
     fit the driver) stays in place. A server that was killed leaves its shared memory behind, and
     /dev/shm outlives a container that is restarted in its pod. */}}
{{- define "tandem.args" -}}
- sh
- -c
- rm -f /dev/shm/triton_python_backend_shm_region_tandem-*; exec "$@"
- sh
{{- if gt (int .Values.launch.nodes) 1 }}
- python3
- /etc/tandem/ranks.py
- lead
{{- end }}
{{- if eq .Values.launch.mode "single" }}
{{ include "tandem.server" . }}
{{- else }}
{{ include "tandem.mpirun" . }}
{{- end }}
{{- end -}}
