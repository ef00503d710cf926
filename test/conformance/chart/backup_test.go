package chart

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

const recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"

// typed converts an object to its type, and refuses unknown fields.
func typed[T any](t *testing.T, object *unstructured.Unstructured) *T {
	t.Helper()
	require.NotNil(t, object)
	into := new(T)
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, into, true))
	return into
}

// renderBackup returns the objects with values below backup.
func renderBackup(t *testing.T, values map[string]any) (map[string]*unstructured.Unstructured, error) {
	t.Helper()
	values["enabled"] = true
	if _, found := values["recipients"]; !found {
		values["recipients"] = []any{recipient}
	}
	return render(t, map[string]any{"backup": values})
}

func backupPod(t *testing.T, objects map[string]*unstructured.Unstructured) (*batchv1.CronJob, corev1.PodSpec, corev1.Container) {
	t.Helper()
	job := typed[batchv1.CronJob](t, objects["CronJob macrack-system/macrack-backup"])
	pod := job.Spec.JobTemplate.Spec.Template.Spec
	require.Len(t, pod.Containers, 1)
	return job, pod, pod.Containers[0]
}

func TestBackupToVolume(t *testing.T) {
	objects, err := renderBackup(t, map[string]any{"keep": 24, "volume": map[string]any{"size": "50Gi"}})
	require.NoError(t, err)
	job, pod, container := backupPod(t, objects)
	assert.Equal(t, batchv1.ForbidConcurrent, job.Spec.ConcurrencyPolicy)
	assert.Equal(t, []string{
		"snapshot", "save",
		"--etcd-servers=https://macrack-etcd-0.macrack-etcd.macrack-system.svc:2379,https://macrack-etcd-1.macrack-etcd.macrack-system.svc:2379,https://macrack-etcd-2.macrack-etcd.macrack-system.svc:2379",
		"--etcd-cafile=/etc/macrack/etcd/ca.crt", "--etcd-certfile=/etc/macrack/etcd/tls.crt", "--etcd-keyfile=/etc/macrack/etcd/tls.key",
		"--keep=24", "--recipient=" + recipient, "--directory=/var/lib/macrack-backup",
	}, container.Args)
	assert.Empty(t, container.Env)
	assert.True(t, *pod.SecurityContext.RunAsNonRoot)
	assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
	assert.EqualValues(t, 65532, *pod.SecurityContext.FSGroup, "the volume must be writable")
	assert.True(t, *container.SecurityContext.ReadOnlyRootFilesystem)
	assert.False(t, *container.SecurityContext.AllowPrivilegeEscalation)
	assert.Equal(t, []corev1.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop)
	assert.False(t, *pod.AutomountServiceAccountToken)
	assert.Equal(t, "macrack-etcd-client-tls", pod.Volumes[0].Secret.SecretName)
	assert.Equal(t, "macrack-backup", pod.Volumes[1].PersistentVolumeClaim.ClaimName)
	assert.Equal(t, "/var/lib/macrack-backup", container.VolumeMounts[1].MountPath)
	assert.Equal(t, container.Name, *job.Spec.JobTemplate.Spec.PodFailurePolicy.Rules[0].OnExitCodes.ContainerName)

	claim := typed[corev1.PersistentVolumeClaim](t, objects["PersistentVolumeClaim macrack-system/macrack-backup"])
	assert.Equal(t, "50Gi", claim.Spec.Resources.Requests.Storage().String())
	assert.Equal(t, "keep", claim.Annotations["helm.sh/resource-policy"])

	etcd := typed[networkingv1.NetworkPolicy](t, objects["NetworkPolicy macrack-system/macrack-etcd"])
	labels := job.Spec.JobTemplate.Spec.Template.Labels
	assert.Equal(t, labels["app.kubernetes.io/name"], etcd.Spec.Ingress[0].From[1].PodSelector.MatchLabels["app.kubernetes.io/name"])
	own := typed[networkingv1.NetworkPolicy](t, objects["NetworkPolicy macrack-system/macrack-backup"])
	assert.Empty(t, own.Spec.Ingress)

	objects, err = renderBackup(t, map[string]any{"volume": map[string]any{"claimName": "mine"}})
	require.NoError(t, err)
	_, pod, _ = backupPod(t, objects)
	assert.Equal(t, "mine", pod.Volumes[1].PersistentVolumeClaim.ClaimName)
	assert.NotContains(t, objects, "PersistentVolumeClaim macrack-system/macrack-backup")
}

func TestBackupToS3(t *testing.T) {
	s3 := map[string]any{"endpoint": "https://s3.example.com", "bucket": "snapshots", "prefix": "prod", "region": "eu-central-1", "secretName": "s3"}
	objects, err := renderBackup(t, map[string]any{"s3": s3, "recipients": []any{recipient, "age1pq1second"}})
	require.NoError(t, err)
	_, pod, container := backupPod(t, objects)
	assert.Equal(t, []string{"--keep=72", "--recipient=" + recipient, "--recipient=age1pq1second",
		"--s3-endpoint=https://s3.example.com", "--s3-bucket=snapshots", "--s3-prefix=prod", "--s3-region=eu-central-1"}, container.Args[6:])
	optional := map[string]bool{"AWS_ACCESS_KEY_ID": false, "AWS_SECRET_ACCESS_KEY": false, "AWS_SESSION_TOKEN": true}
	require.Len(t, container.Env, len(optional))
	for _, env := range container.Env {
		assert.Equal(t, "s3", env.ValueFrom.SecretKeyRef.Name)
		assert.Equal(t, env.Name, env.ValueFrom.SecretKeyRef.Key)
		assert.Equal(t, optional[env.Name], *env.ValueFrom.SecretKeyRef.Optional, env.Name)
	}
	assert.Len(t, pod.Volumes, 1)

	s3["privateCA"] = true
	objects, err = renderBackup(t, map[string]any{"s3": s3})
	require.NoError(t, err)
	_, pod, container = backupPod(t, objects)
	assert.Equal(t, "--s3-cafile=/etc/macrack/s3/ca.crt", container.Args[len(container.Args)-1])
	assert.Equal(t, []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}, pod.Volumes[1].Secret.Items, "the credentials are no files")
	assert.Equal(t, "/etc/macrack/s3", container.VolumeMounts[1].MountPath)
}

func TestBackupOfExternalEtcd(t *testing.T) {
	objects, err := render(t, map[string]any{
		"backup": map[string]any{"enabled": true, "recipients": []any{recipient}, "volume": map[string]any{"claimName": "mine"}},
		"etcd":   map[string]any{"external": map[string]any{"servers": []any{"https://a:2379"}, "secretName": "client"}},
	})
	require.NoError(t, err)
	_, pod, container := backupPod(t, objects)
	assert.Contains(t, container.Args, "--etcd-servers=https://a:2379")
	assert.Equal(t, "client", pod.Volumes[0].Secret.SecretName)
}

func TestBackupValues(t *testing.T) {
	volume, s3 := map[string]any{"size": "1Gi"}, map[string]any{"bucket": "b", "endpoint": "https://s3.example.com", "secretName": "s3"}
	for want, values := range map[string]map[string]any{
		"backup.recipients is empty": {"recipients": []any{}, "volume": volume},
		"backup needs one place":     {},
		"needs one place":            {"volume": volume, "s3": s3},
		"backup.s3.endpoint or":      {"s3": map[string]any{"bucket": "b", "secretName": "s3"}},
		"backup.s3.secretName is":    {"s3": map[string]any{"bucket": "b", "endpoint": "https://s3.example.com"}},
		"does not match pattern":     {"volume": volume, "recipients": []any{"AGE-SECRET-KEY-1QQQ"}},
		"'many' does not match":      {"volume": map[string]any{"size": "many"}},
		"minimum":                    {"volume": volume, "keep": -1},
		"additional properties":      {"volume": volume, "unencrypted": true},
		"at '/backup/s3/endpoint'":   {"s3": map[string]any{"bucket": "b", "endpoint": "https://user:password@s3.example.com", "secretName": "s3"}},
	} {
		_, err := renderBackup(t, values)
		assert.ErrorContains(t, err, want)
	}
}
