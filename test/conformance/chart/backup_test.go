package chart

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const publicKey = "age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq"

// backup renders the chart with backups and more values, and returns the pod of a backup.
func backup(t *testing.T, values map[string]any) (corev1.PodSpec, map[string]bool) {
	t.Helper()
	all := map[string]any{"schedule": "0 * * * *", "recipients": []any{publicKey}}
	for key, value := range values {
		all[key] = value
	}
	objects, err := render(t, set("backup", all))
	require.NoError(t, err)
	job := &batchv1.CronJob{}
	require.Contains(t, objects, "CronJob macrack-system/macrack-backup")
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objects["CronJob macrack-system/macrack-backup"].Object, job, true))
	assert.Equal(t, "0 * * * *", job.Spec.Schedule)
	assert.Equal(t, batchv1.ForbidConcurrent, job.Spec.ConcurrencyPolicy)
	etcd := &networkingv1.NetworkPolicy{}
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(objects["NetworkPolicy macrack-system/macrack-etcd"].Object, etcd))
	var clients []string
	for _, peer := range etcd.Spec.Ingress[0].From {
		clients = append(clients, peer.PodSelector.MatchLabels["app.kubernetes.io/name"])
	}
	assert.Equal(t, []string{"macrack-apiserver", "macrack-backup"}, clients)
	assert.Equal(t, "macrack-backup", job.Spec.JobTemplate.Spec.Template.Labels["app.kubernetes.io/name"])
	pod := job.Spec.JobTemplate.Spec.Template.Spec
	assert.False(t, *pod.AutomountServiceAccountToken)
	assert.True(t, *pod.SecurityContext.RunAsNonRoot)
	assert.True(t, *pod.Containers[0].SecurityContext.ReadOnlyRootFilesystem)
	names := map[string]bool{}
	for key := range objects {
		names[key] = true
	}
	return pod, names
}

const backupClaim = "PersistentVolumeClaim macrack-system/macrack-backup"

func TestBackupToVolume(t *testing.T) {
	pod, names := backup(t, nil)
	assert.True(t, names[backupClaim])
	container := pod.Containers[0]
	assert.True(t, strings.HasPrefix(container.Image, "macrack.io/macrack-ledger:"), container.Image)
	assert.Subset(t, container.Args, []string{"backup", "create", "--store=/var/backups", "--keep=168", "--recipient=" + publicKey})
	assert.Contains(t, container.Args, "--etcd-servers=https://macrack-etcd-0.macrack-etcd.macrack-system.svc:2379,"+
		"https://macrack-etcd-1.macrack-etcd.macrack-system.svc:2379,https://macrack-etcd-2.macrack-etcd.macrack-system.svc:2379")
	assert.Empty(t, container.Env)
	assert.Contains(t, container.VolumeMounts, corev1.VolumeMount{Name: "backups", MountPath: "/var/backups"})
	require.Len(t, pod.Volumes, 2)
	assert.Equal(t, "macrack-etcd-client-tls", pod.Volumes[0].Secret.SecretName)
	assert.Equal(t, "macrack-backup", pod.Volumes[1].PersistentVolumeClaim.ClaimName)
}

func TestBackupToBucket(t *testing.T) {
	s3 := map[string]any{"endpoint": "https://s3.example.com", "bucket": "backups", "prefix": "lab", "region": "lab-1", "secretName": "storage"}
	pod, names := backup(t, map[string]any{"s3": s3, "keep": 0})
	assert.False(t, names[backupClaim])
	container := pod.Containers[0]
	assert.Subset(t, container.Args, []string{"--store=s3://backups/lab", "--s3-endpoint=https://s3.example.com", "--s3-region=lab-1", "--keep=0"})
	require.Len(t, container.Env, 2)
	for i, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		assert.Equal(t, name, container.Env[i].Name)
		assert.Equal(t, &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "storage"}, Key: name}, container.Env[i].ValueFrom.SecretKeyRef)
	}
	assert.Len(t, pod.Volumes, 1)

	s3["privateAuthority"] = true
	pod, _ = backup(t, map[string]any{"s3": s3})
	assert.Contains(t, pod.Containers[0].Args, "--s3-cafile=/etc/macrack/s3/ca.crt")
	require.Len(t, pod.Volumes, 2)
	assert.Equal(t, "storage", pod.Volumes[1].Secret.SecretName)
}

// There is no backup in plain text, and none without a schedule.
func TestBackupValues(t *testing.T) {
	objects, err := render(t, nil)
	require.NoError(t, err)
	for key := range objects {
		assert.NotContains(t, key, "macrack-backup")
	}
	_, err = render(t, set("backup.schedule", "0 * * * *"))
	assert.ErrorContains(t, err, "macrack-ledger backup keygen")
	for path, value := range map[string]any{
		"recipients":  []any{"AGE-SECRET-KEY-1QQQ"},
		"keep":        -1,
		"s3.endpoint": "s3.example.com",
		"s3.bucket":   "Backups",
	} {
		_, err := render(t, set("backup."+path, value))
		assert.ErrorContains(t, err, "backup", path)
	}
}
