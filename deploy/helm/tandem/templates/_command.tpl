{{/* The command line of every rank. */}}
{{- define "tandem.triton" -}}
{{- $repository := eq .Values.repository.from "url" | ternary .Values.repository.url "/repository" -}}
- tritonserver
- {{ printf "--model-repository=%s" $repository | quote }}
- --disable-auto-complete-config
- --exit-timeout-secs={{ .Values.exitTimeout }}
{{- if eq .Values.launch.mode "orchestrator" }}
# The orchestrator process computes nothing, so it must not take GPU memory from its workers.
- --pinned-memory-pool-byte-size=0
- --enable-peer-access=false
{{- range until (int .Values.gpus) }}
- --cuda-memory-pool-byte-size={{ . }}:0
{{- end }}
{{- end }}
{{- end -}}

{{/* Rank 0 has all models and answers requests. The number of threads is that of `tandem up`: one per
     running and waiting request or two per running request, whichever is more, plus a margin. */}}
{{- define "tandem.server" -}}
{{- $threads := add .Values.profile.maxRequests (max .Values.profile.maxRequests .Values.profile.maxQueue) 32 -}}
{{ include "tandem.triton" . }}
- --backend-config=python,shm-region-prefix-name=triton_python_backend_shm_region_tandem-0-
- --backend-config=python,thread-pool-size={{ $threads }}
- --backend-config=python,stub-timeout-seconds={{ .Values.startupTimeout }}
{{- end -}}

{{/* Ranks above 0 only compute. */}}
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

{{/* By default, mpirun binds each rank to a core, and all threads of a server would share it. */}}
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
# Each worker's daemon remains in the foreground, because its pod waits for it.
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

{{/* These are arguments, not a command, so that the image's entry point still runs: NVIDIA's selects
     the CUDA libraries for the driver. First remove shared memory: a killed server doesn't remove it,
     and /dev/shm persists if a container is restarted in its pod. */}}
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
