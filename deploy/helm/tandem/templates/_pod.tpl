{{/* Settings that server pods and worker pods share. */}}
{{- define "tandem.podSettings" -}}
terminationGracePeriodSeconds: {{ include "tandem.gracePeriod" . }}
serviceAccountName: {{ .Values.serviceAccountName | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{ toJson .Values.podSecurityContext }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
- {{ merge (dict) . (dict "labelSelector" (dict "matchLabels" (include "tandem.serverSelector" $ | fromYaml))) | toJson }}
{{- end }}
{{- end }}
volumes:
- name: files
  configMap:
    name: {{ include "tandem.name" . }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.sharedMemory | quote }}
- name: scratch # copies from an object store, and code that PyTorch compiles
  emptyDir: {}
- name: empty
  emptyDir: {}
{{- if eq .Values.repository.from "claim" }}
- name: repository
  persistentVolumeClaim:
    claimName: {{ .Values.repository.claim | quote }}
    readOnly: true
{{- end }}
{{- if .Values.engines.claim }}
- name: engines
  persistentVolumeClaim:
    claimName: {{ .Values.engines.claim | quote }}
    readOnly: true
{{- end }}
{{- end -}}

{{- define "tandem.containerSettings" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
# Python models search the working directory for imports first, so it must be empty.
workingDir: /empty
securityContext: {{ toJson .Values.securityContext }}
{{- $gpus := dict }}
{{- if .Values.gpus }}
{{- $gpus = dict "nvidia.com/gpu" .Values.gpus }}
{{- end }}
resources:
  requests: {{ merge (dict) $gpus .Values.resources.requests | toJson }}
  limits: {{ merge (dict) $gpus .Values.resources.limits | toJson }}
env:
- name: HOME # the user may have no writable home directory
  value: /tmp
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if ne .Values.launch.mode "single" }}
# By default, mpirun kills its ranks one second after SIGTERM (names for Open MPI 4 and 5).
{{- range list "OMPI_MCA" "PRTE_MCA" }}
- name: {{ . }}_odls_base_sigkill_timeout
  value: {{ add $.Values.exitTimeout 5 | quote }}
{{- end }}
{{- end }}
{{- if eq .Values.launch.mode "orchestrator" }}
- name: TRTLLM_ORCHESTRATOR
  value: "1"
- name: TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES
  value: "1"
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- with .Values.repository.credentials }}
envFrom:
- secretRef: {name: {{ . | quote }}}
{{- end }}
volumeMounts:
- {name: files, mountPath: /etc/tandem, readOnly: true}
- {name: shm, mountPath: /dev/shm}
- {name: scratch, mountPath: /tmp}
- {name: empty, mountPath: /empty, readOnly: true}
{{- if eq .Values.repository.from "claim" }}
- {name: repository, mountPath: /repository, readOnly: true}
{{- end }}
{{- with .Values.engines }}
{{- if .claim }}
- {name: engines, mountPath: {{ .path | quote }}, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{/* The pod that answers requests: every pod of a Deployment, or the leader of a group. */}}
{{- define "tandem.serverPod" -}}
{{- $patience := sub .Values.liveness.timeout 5 -}}
metadata:
  labels:
    {{- include "tandem.serverSelector" . | nindent 4 }}
  annotations: {{ merge (dict "checksum/files" (.Files.Glob "files/*" | toJson | sha256sum)) .Values.podAnnotations | toJson }}
spec:
  {{- include "tandem.podSettings" . | nindent 2 }}
  containers:
  - name: server
    {{- include "tandem.containerSettings" . | nindent 4 }}
    args:
    {{- include "tandem.args" . | nindent 4 }}
    ports:
    - {name: http, containerPort: 8000}
    - {name: grpc, containerPort: 8001}
    - {name: metrics, containerPort: 8002}
    startupProbe:
      httpGet: {path: /v2/health/ready, port: http}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: {{ divf .Values.startupTimeout 10 | ceil }}
    readinessProbe:
      httpGet: {path: /v2/health/ready, port: http}
      periodSeconds: 5
      timeoutSeconds: 5
    # Request one token, because Triton's health endpoint doesn't notice dead model processes.
    livenessProbe:
      exec:
        command:
        - python3
        - /etc/tandem/health.py
        - alive
        - --entry={{ .Values.profile.entry }}
        - --target={{ .Values.profile.target }}
        - --patience={{ $patience }}
      periodSeconds: {{ .Values.liveness.period }}
      timeoutSeconds: {{ .Values.liveness.timeout }}
      failureThreshold: {{ .Values.liveness.failures }}
      # A server that has stopped answering has nothing to drain, so don't wait for it.
      terminationGracePeriodSeconds: {{ .Values.exitTimeout }}
    lifecycle:
      # After SIGTERM, Triton rejects calls between its models. So wait until no requests are in
      # flight.
      preStop:
        exec:
          command:
          - python3
          - /etc/tandem/health.py
          - drained
          - --notice={{ .Values.drainNotice }}
          - --limit={{ include "tandem.drainLimit" . }}
{{- end -}}

{{/* A worker: a pod that provides GPUs to the leader of its group. */}}
{{- define "tandem.workerPod" -}}
metadata:
  labels:
    {{- include "tandem.selector" . | nindent 4 }}
    app.kubernetes.io/component: worker
  annotations: {{ toJson .Values.podAnnotations }}
spec:
  {{- include "tandem.podSettings" . | nindent 2 }}
  containers:
  - name: worker
    {{- include "tandem.containerSettings" . | nindent 4 }}
    args: [python3, /etc/tandem/ranks.py, follow]
    lifecycle:
      # The pods of a group get SIGTERM together. A worker must run until its leader has drained.
      preStop:
        exec:
          command:
          - sh
          - -c
          - exec python3 /etc/tandem/health.py --host "$LWS_LEADER_ADDRESS" drained --notice={{ .Values.drainNotice }} --limit={{ include "tandem.drainLimit" . }}
{{- end -}}
