{{- define "clef.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 40 characters: the longest suffix is 21, and a name is a label value of at most 63. */ -}}
{{- define "clef.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "clef.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "clef.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels that select a component's pods: (dict "root" $ "component" "engine"). They never change. */ -}}
{{- define "clef.selector" -}}
app.kubernetes.io/name: {{ include "clef.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "clef.labels" -}}
{{- with .root.Values.commonLabels }}{{ toYaml . }}
{{ end -}}
{{ include "clef.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "clef.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "clef.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* (dict "image" .Values.image "of" "image"). By digest where there is one; never by no version at all. */ -}}
{{- define "clef.image" -}}
{{- $name := printf "%s%s" (ternary "" (printf "%s/" .image.registry) (empty .image.registry)) .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (required (printf "set %s.digest (or %s.tag)" .of .of) .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "clef.claimName" -}}
{{- default (printf "%s-models" (include "clef.fullname" .)) .Values.modelCache.existingClaim -}}
{{- end -}}

{{- define "clef.engineKind" -}}
{{- ternary "StatefulSet" "Deployment" (eq .Values.modelCache.mode "perReplica") -}}
{{- end -}}

{{- /* Pod security standard `restricted`, and nothing in values.yaml that loosens it. */ -}}
{{- define "clef.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.user.id }}
  runAsGroup: {{ .Values.user.group }}
  fsGroup: {{ .Values.user.group }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "clef.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- /* Whether one node at a time may mount the shared model cache. */ -}}
{{- define "clef.volumeOfOneNode" -}}
{{- if and (eq .Values.modelCache.mode "shared") (not (has "ReadWriteMany" .Values.modelCache.accessModes)) }}true{{ end -}}
{{- end -}}

{{- /*
Where our pods may be placed: (dict "root" $ "onVolume" true), the latter for the pods that mount the model cache. The
download goes where engines may, as a volume may be bound to the first node that uses it. On a volume of one node, engine
and download must meet: else one of them holds the volume and waits for the other, which waits for the volume. The first
of them may go anywhere, as the scheduler lets a pod that matches its own affinity.
*/ -}}
{{- define "clef.placement" -}}
{{- $values := .root.Values }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" }}
{{- $affinity := deepCopy $values.affinity }}
{{- if $values.gpu.products }}
{{- $term := dict "matchExpressions" (list (dict "key" $values.gpu.productLabel "operator" "In" "values" $values.gpu.products)) }}
{{- $_ := set $affinity "nodeAffinity" (dict $required (dict "nodeSelectorTerms" (list $term))) }}
{{- end }}
{{- if and .onVolume (include "clef.volumeOfOneNode" .root) (eq $values.modelCache.download "job") }}
{{- $labels := omit (fromYaml (include "clef.selector" (dict "root" .root "component" ""))) "app.kubernetes.io/component" }}
{{- $both := dict "key" "app.kubernetes.io/component" "operator" "In" "values" (list "download" "engine") }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels "matchExpressions" (list $both)) }}
{{- $pods := deepCopy (default (dict) $affinity.podAffinity) }}
{{- $_ := set $affinity "podAffinity" (set $pods $required (append (default (list) (index $pods $required)) $term)) }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The root file system is read-only; whatever a library wants to write goes to these. */ -}}
{{- define "clef.homeEnv" -}}
- {name: HOME, value: /var/cache/clef}
- {name: XDG_CACHE_HOME, value: /var/cache/clef}
- {name: SGLANG_CACHE_DIR, value: /var/cache/clef/sglang}
- {name: TRITON_CACHE_DIR, value: /var/cache/clef/triton}
- {name: TORCHINDUCTOR_CACHE_DIR, value: /var/cache/clef/inductor}
- {name: FLASHINFER_WORKSPACE_BASE, value: /var/cache/clef}
- {name: HF_HOME, value: /var/cache/clef/huggingface}
- {name: HF_HUB_CACHE, value: /models/hub}
- {name: HF_HUB_DISABLE_TELEMETRY, value: "1"}
{{- end -}}

{{- define "clef.offlineEnv" -}}
- {name: HF_HUB_OFFLINE, value: "1"}
- {name: TRANSFORMERS_OFFLINE, value: "1"}
{{- end -}}

{{- /* The container that fetches a revision, `.revision` beside the root's. The same command goes on where it stopped. */ -}}
{{- define "clef.downloadContainer" -}}
name: download
image: {{ include "clef.image" (dict "image" .Values.image "of" "image") }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [clef-serve, download]
args:
  - --model={{ .Values.model.repository }}
  - --revision={{ .revision }}
env:
  {{- include "clef.homeEnv" . | nindent 2 }}
  - {name: HF_XET_CHUNK_CACHE_SIZE_BYTES, value: "0"}
  {{- with .Values.modelCache.hubToken }}
  {{- if .secretName }}
  - name: HF_TOKEN
    valueFrom:
      secretKeyRef: {name: {{ .secretName }}, key: {{ .key }}}
  {{- end }}
  {{- end }}
  {{- with .Values.modelCache.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .Values.modelCache.resources | nindent 2 }}
{{ include "clef.containerSecurity" . }}
volumeMounts:
  - {name: models, mountPath: /models}
  - {name: caches, mountPath: /var/cache/clef}
  - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- /* What the values ask for that cannot work, said before anything is installed. */ -}}
{{- define "clef.check" -}}
{{- $cache := .Values.modelCache -}}
{{- if and (not .Values.apiKeys.secretName) (not .Values.apiKeys.insecure) -}}
{{- fail "set apiKeys.secretName to a Secret of key files (`clef-serve keys create` makes one), or apiKeys.insecure=true to let anyone who reaches the Service ask" -}}
{{- end -}}
{{- if and .Values.apiKeys.secretName .Values.apiKeys.insecure -}}
{{- fail "apiKeys.insecure=true and apiKeys.secretName contradict each other; keep one" -}}
{{- end -}}
{{- if and (eq $cache.mode "perReplica") (eq $cache.download "job") -}}
{{- fail "modelCache.mode=perReplica needs modelCache.download=initContainer: a job cannot fill volumes that do not exist yet" -}}
{{- end -}}
{{- if and (eq $cache.mode "perReplica") $cache.existingClaim -}}
{{- fail "modelCache.existingClaim is for modelCache.mode=shared" -}}
{{- end -}}
{{- if and (include "clef.volumeOfOneNode" .) (or (gt (int .Values.replicas) 1) (ne .Values.autoscaling.kind "none")) -}}
{{- fail "more than one replica shares the model cache: set modelCache.accessModes=[ReadWriteMany], or modelCache.mode=perReplica with modelCache.download=initContainer" -}}
{{- end -}}
{{- /* 50 s: launch/server.py, LIMIT_WHEN_STOPPING_S */ -}}
{{- if le (int .Values.shutdown.graceSeconds) (add (int .Values.shutdown.preStopSeconds) 50) -}}
{{- fail (printf "shutdown.graceSeconds must be more than shutdown.preStopSeconds + 50 = %d, not %d: the server would be killed before its last answers" (add (int .Values.shutdown.preStopSeconds) 50) (int .Values.shutdown.graceSeconds)) -}}
{{- end -}}
{{- if lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas) -}}
{{- fail "autoscaling.maxReplicas must be at least autoscaling.minReplicas" -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.kind "keda") (not .Values.autoscaling.prometheusAddress) -}}
{{- fail "autoscaling.kind=keda needs autoscaling.prometheusAddress" -}}
{{- end -}}
{{- range .Values.engineArgs -}}
{{- if regexMatch "^--(tp|tp-size|tensor-parallel-size)(=|$)" . -}}
{{- fail (printf "gpu.count says how many GPUs the model is divided over; leave %s out of engineArgs" .) -}}
{{- end -}}
{{- end -}}
{{- if and $cache.prefetch (ne $cache.download "job") -}}
{{- fail "modelCache.prefetch is for modelCache.download=job" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.enabled needs ingress.host" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.enabled needs httpRoute.parentRefs" -}}
{{- end -}}
{{- if and (eq (int .Values.maxSurge) 0) (eq (int .Values.maxUnavailable) 0) -}}
{{- fail "maxSurge and maxUnavailable cannot both be 0: an update could never begin" -}}
{{- end -}}
{{- end -}}
