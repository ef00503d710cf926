{{- define "macrack-runners.labels" -}}
app.kubernetes.io/name: macrack-runners
app.kubernetes.io/part-of: macrack
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
