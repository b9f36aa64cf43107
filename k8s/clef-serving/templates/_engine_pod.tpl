{{- /* The pod of one replica, for a Deployment and a StatefulSet alike. */ -}}
{{- define "clef.enginePod" -}}
metadata:
  labels:
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "clef.labels" (dict "root" . "component" "engine") | nindent 4 }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "clef.serviceAccountName" . }}
  {{- include "clef.podSecurity" . | nindent 2 }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .Values.shutdown.graceSeconds }}
  {{- include "clef.placement" (dict "root" . "onVolume" true) | trim | nindent 2 }}
  {{- with .Values.topologySpread }}
  topologySpreadConstraints:
    {{- range . }}
    - maxSkew: 1
      topologyKey: {{ .topologyKey }}
      whenUnsatisfiable: {{ .whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- include "clef.selector" (dict "root" $ "component" "engine") | nindent 10 }}
    {{- end }}
  {{- end }}
  initContainers:
    {{- if eq .Values.modelCache.download "initContainer" }}
    - {{ include "clef.downloadContainer" (merge (dict "revision" .Values.model.revision) .) | indent 6 | trim }}
    {{- else }}
    # Waits for the download: asked offline, the same command succeeds once every file is there.
    - name: wait-for-model
      image: {{ include "clef.image" (dict "image" .Values.image "of" "image") }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [sh, -c, 'trap exit TERM; until clef-serve download "$@"; do sleep 15 & wait; done', wait-for-model]
      args:
        - --model={{ .Values.model.repository }}
        - --revision={{ .Values.model.revision }}
      env:
        {{- include "clef.homeEnv" . | nindent 8 }}
        {{- include "clef.offlineEnv" . | nindent 8 }}
      resources:
        {{- toYaml .Values.modelCache.resources | nindent 8 }}
      {{- include "clef.containerSecurity" . | nindent 6 }}
      volumeMounts:
        - {name: models, mountPath: /models, readOnly: true}
        - {name: caches, mountPath: /var/cache/clef}
        - {name: tmp, mountPath: /tmp}
    {{- end }}
  containers:
    - name: engine
      image: {{ include "clef.image" (dict "image" .Values.image "of" "image") }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [clef-serve, up]
      args:
        - --device=cuda
        - --model={{ .Values.model.repository }}
        - --revision={{ .Values.model.revision }}
        {{- with .Values.model.servedName }}
        - --served-model-name={{ . }}
        {{- end }}
        - --profile={{ .Values.model.profile }}
        - --host=0.0.0.0
        - --port=8000
        # Apart from the API, so that who may ask need not see what others asked.
        - --metrics-port=9100
        {{- if .Values.apiKeys.insecure }}
        - --insecure=true
        {{- else }}
        - --api-keys=/etc/clef/keys
        {{- end }}
        {{- range $name, $value := .Values.settings }}
        {{- /* Whole numbers of a values file are floats here, and large ones would be printed as 1e+06. */}}
        {{- $text := ternary (toString $value) (ternary (printf "%.0f" $value) (toString $value) (and (kindIs "float64" $value) (eq (floor $value) $value))) (not (kindIs "float64" $value)) }}
        - {{ printf "--%s=%s" $name $text | quote }}
        {{- end }}
        {{- $ranks := ternary (list "--tp-size" (toString .Values.gpu.count)) (list) (gt (int .Values.gpu.count) 1) }}
        {{- with concat $ranks .Values.engineArgs }}
        - "--"
        {{- range . }}
        - {{ . | quote }}
        {{- end }}
        {{- end }}
      env:
        {{- include "clef.homeEnv" . | nindent 8 }}
        {{- include "clef.offlineEnv" . | nindent 8 }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: http, containerPort: 8000, protocol: TCP}
        - {name: metrics, containerPort: 9100, protocol: TCP}
      startupProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: {{ div (add (int .Values.probes.startSeconds) 9) 10 }}
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      livenessProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 3
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ .Values.shutdown.preStopSeconds | quote }}]
      resources:
        requests:
          {{- toYaml .Values.resources.requests | nindent 10 }}
          {{ .Values.gpu.resourceName }}: {{ .Values.gpu.count }}
        limits:
          {{- toYaml .Values.resources.limits | nindent 10 }}
          {{ .Values.gpu.resourceName }}: {{ .Values.gpu.count }}
      {{- include "clef.containerSecurity" . | nindent 6 }}
      volumeMounts:
        - {name: models, mountPath: /models, readOnly: true}
        - {name: caches, mountPath: /var/cache/clef}
        - {name: tmp, mountPath: /tmp}
        - {name: shared-memory, mountPath: /dev/shm}
        {{- if .Values.apiKeys.secretName }}
        - {name: api-keys, mountPath: /etc/clef/keys, readOnly: true}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- if eq .Values.modelCache.mode "shared" }}
    - name: models
      persistentVolumeClaim: {claimName: {{ include "clef.claimName" . }}}
    {{- end }}
    - name: caches
      emptyDir: {sizeLimit: {{ .Values.scratch.caches }}}
    - name: tmp
      emptyDir: {sizeLimit: {{ .Values.scratch.tmp }}}
    - name: shared-memory
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}
    {{- if .Values.apiKeys.secretName }}
    # The whole Secret, never one file of it: only so do changed keys reach a running server.
    - name: api-keys
      secret: {secretName: {{ .Values.apiKeys.secretName }}, defaultMode: 0440}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
