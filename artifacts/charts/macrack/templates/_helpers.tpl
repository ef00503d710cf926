{{- define "macrack.image" -}}
{{- $digest := index .root.Values.image.digests .name -}}
{{ .root.Values.image.registry }}/macrack-{{ .name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ with $digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* What all pods have: where they run, and as whom. */ -}}
{{- define "macrack.pod" -}}
priorityClassName: {{ .root.Values.priorityClassName }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 0 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  {{- if .fsGroup }}
  fsGroup: 65532
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "macrack.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "macrack.labels" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: macrack
{{- end }}

{{- define "macrack.spread" -}}
topologySpreadConstraints:
- topologyKey: kubernetes.io/hostname
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      app.kubernetes.io/name: {{ . }}
{{- end }}

{{- define "macrack.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ . }}
  namespace: macrack-system
  labels:
    app.kubernetes.io/part-of: macrack
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ . }}
{{- end }}

{{- define "macrack.etcdServers" -}}
{{- if .Values.etcd.external.servers -}}
{{ join "," .Values.etcd.external.servers }}
{{- else -}}
{{- $servers := list -}}
{{- range until (int .Values.etcd.replicas) -}}
{{- $servers = append $servers (printf "https://macrack-etcd-%d.macrack-etcd.macrack-system.svc:2379" .) -}}
{{- end -}}
{{ join "," $servers }}
{{- end -}}
{{- end }}

{{- define "macrack.etcdSecret" -}}
{{ if .Values.etcd.external.servers }}{{ .Values.etcd.external.secretName }}{{ else }}macrack-etcd-client-tls{{ end }}
{{- end }}
