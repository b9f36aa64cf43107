{{- /* What a request's `model` may hold beside the served name, as a JSON array: serving/settings.py, accepted_names, and
     Cloudflare's form of each. */ -}}
{{- define "clef.otherNames" -}}
{{- $served := default .Values.model.repository .Values.model.servedName -}}
{{- $aliases := get .Values.settings "model-aliases" | default "jev-latest,clef,clef-flash" | toString -}}
{{- $names := list -}}
{{- range concat (list $served (last (splitList "/" $served))) (splitList "," $aliases) -}}
{{- with trim . -}}
{{- $names = concat $names (list . (printf "@cf/cloudflare/%s" .)) -}}
{{- end -}}
{{- end -}}
{{- without (uniq $names) $served | toJson -}}
{{- end -}}

{{- /* The largest body that an engine takes, in bytes. */ -}}
{{- define "clef.maxWireBytes" -}}
{{- printf "%d" (int64 (get .Values.settings "max-wire-bytes" | default 67108864)) -}}
{{- end -}}

{{- /* The Service that leads to the engines and nowhere else. */ -}}
{{- define "clef.enginesService" -}}
{{- include "clef.fullname" . -}}{{- if .Values.router.enabled -}}-direct{{- end -}}
{{- end -}}

{{- /* Public paths that do not lead to the router, as a JSON array. */ -}}
{{- define "clef.pathsToEngines" -}}
{{- ternary (without .Values.publicPaths "/v1/systemone") .Values.publicPaths .Values.router.enabled | toJson -}}
{{- end -}}
