{{- /* Rule groups as Prometheus reads them. Figures are those of the server's /metrics. */ -}}
{{- define "clef.alerts" -}}
{{- $limits := .Values.metrics.rules -}}
{{- $name := include "clef.fullname" . -}}
{{- $of := printf "namespace=%q,job=%q" .Release.Namespace (printf "%s-engine" $name) -}}
groups:
  - name: {{ printf "%s-%s" .Release.Namespace $name }}
    rules:
      - alert: ClefNobodyAnswers
        expr: (sum(clef_lifecycle_phase{ {{- $of }},phase="ready"}) or vector(0)) == 0
        for: 2m
        labels: {severity: critical}
        annotations:
          summary: No replica of {{ $name }} is ready.
          description: Clients get no answer. Look at the engine's pods, their events and the last lines of their logs.
      - alert: ClefReplicaDown
        expr: up{ {{- $of }}} == 0
        for: {{ div (int .Values.probes.startSeconds) 60 }}m
        labels: {severity: warning}
        annotations:
          summary: {{ printf "{{ $labels.pod }} of %s has not been reachable for as long as a start may take." $name | quote }}
          description: It loads, hangs or restarts again and again. Look at its events and logs.
      - alert: ClefQueueIsLong
        expr: max by (pod) (clef_queue_requests{ {{- $of }}}) > {{ $limits.queueRequests }}
        for: 5m
        labels: {severity: warning}
        annotations:
          summary: {{ printf "%s has more requests waiting than it should for 5 minutes: {{ $value }}." "{{ $labels.pod }}" | quote }}
          description: Add replicas, or see whether states are still shared (cached tokens on the dashboard).
      - alert: ClefRefusesRequests
        expr: |-
          sum(rate(clef_refusals_total{ {{- $of }},reason=~"overloaded|request_timeout"}[5m]))
            > {{ $limits.refusedShare }} * sum(rate(clef_requests_total{ {{- $of }}}[5m]))
        for: 5m
        labels: {severity: critical}
        annotations:
          summary: {{ $name }} sends requests away because it has too much to do.
          description: Clients were told to come back later (503). Add replicas or lower the rate.
      - alert: ClefRequestsFail
        expr: |-
          sum(rate(clef_requests_total{ {{- $of }},status=~"5..",outcome!~"overloaded|request_timeout|not_serving"}[5m]))
            > {{ $limits.failedShare }} * sum(rate(clef_requests_total{ {{- $of }}}[5m]))
        for: 5m
        labels: {severity: critical}
        annotations:
          summary: Requests to {{ $name }} fail.
          description: It is the server's fault and not overload. The log has a line for each, with its request id.
      - alert: ClefIsSlow
        expr: |-
          histogram_quantile(0.99, sum by (le) (rate(clef_request_duration_seconds_bucket{ {{- $of }},route="/v1/systemone"}[5m])))
            > {{ $limits.p99Seconds }}
        for: 10m
        labels: {severity: warning}
        annotations:
          summary: {{ printf "One request in a hundred to %s takes longer than {{ $value }} s." $name | quote }}
          description: The stages on the dashboard say whether it waits for the engine or is in it.
{{- end -}}
