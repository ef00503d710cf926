package agent

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/environment"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/test/files"
)

func withEnvironment(name string) *instancev1alpha1.MacOSInstance {
	i := newInstance(name)
	i.Spec.StartupScript = "true"
	i.Spec.Env = []instancev1alpha1.EnvVar{
		{Name: "LITERAL", Value: "1"},
		{Name: "TOKEN", ValueFrom: &instancev1alpha1.EnvVarSource{SecretKeyRef: &instancev1alpha1.KeySelector{Name: "ci", Key: "token"}}},
	}
	return i
}

func (r *rack) secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name}, Data: map[string][]byte{"token": []byte("s3cr3t")}}
}

func (r *rack) environmentCondition(name string) metav1.Condition {
	c := meta.FindStatusCondition(r.instance(name).Status.Conditions, instancev1alpha1.MacOSInstanceEnvironmentReady)
	if c == nil {
		return metav1.Condition{}
	}
	return *c
}

// An instance waits for a missing Secret, as a Pod does, and its values are only in memory.
func TestMissingSecret(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	r := newRack(t, func(r *rack) { r.clock = clock })
	i := withEnvironment("a")
	r.create(i, newPod(i))
	r.eventually(func() bool {
		return strings.HasPrefix(r.instance("a").Status.Message, "Waiting for the environment")
	}, func() any { return r.instance("a").Status })
	status := r.instance("a").Status
	assert.Equal(t, `Waiting for the environment of the startup script: Secret "ci" does not exist in namespace "acme" (spec.env[1]); create it, or set optional`, status.Message)
	assert.Equal(t, "SecretNotFound", r.environmentCondition("a").Reason)
	assert.Empty(t, status.MachineID, "no virtual machine starts")
	r.eventually(func() bool {
		statuses := r.pod("pod-a").Status.ContainerStatuses
		return len(statuses) == 1 && statuses[0].State.Waiting != nil && statuses[0].State.Waiting.Reason == "CreateContainerConfigError"
	}, func() any { return r.pod("pod-a").Status })
	r.eventually(func() bool {
		events, err := r.kube.CoreV1().Events(tenant).List(r.ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for _, e := range events.Items {
			if e.Reason == "SecretNotFound" && e.InvolvedObject.Name == "a" && e.Type == corev1.EventTypeWarning {
				return true
			}
		}
		return false
	}, func() any { return "no event" })

	_, err := r.kube.CoreV1().Secrets(tenant).Create(r.ctx, r.secret("ci"), metav1.CreateOptions{})
	require.NoError(t, err)
	r.eventually(func() bool {
		clock.Step(environment.RetryInterval)
		return r.instance("a").Status.Startup != nil
	}, func() any { return r.instance("a").Status })
	assert.Contains(t, r.instance("a").Status.Startup.Output, "it has 2 environment variables")
	assert.Equal(t, "Sent", r.environmentCondition("a").Reason)
	assert.Equal(t, metav1.ConditionTrue, r.environmentCondition("a").Status)
	assert.Empty(t, files.With(t, r.dir, "s3cr3t"))
	assert.Empty(t, files.With(t, string(r.host), "s3cr3t"))
}

// A restarted agent sends the environment that the runner still waits for. A Secret that is deleted
// while its virtual machine starts is looked up again.
func TestEnvironmentAfterRestart(t *testing.T) {
	r := newRack(t)
	_, err := r.kube.CoreV1().Secrets(tenant).Create(r.ctx, r.secret("ci"), metav1.CreateOptions{})
	require.NoError(t, err)
	i := withEnvironment("a")
	var reads atomic.Int32
	var healed atomic.Bool
	r.onKube.prepend("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return reads.Add(1) > 1 && !healed.Load(), nil, apierrors.NewInternalError(errors.New("etcd is away"))
	})
	r.create(i, newPod(i))
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	r.eventually(func() bool { return r.environmentCondition("a").Reason == "EnvironmentUnreadable" }, func() any { return r.instance("a").Status })
	assert.Nil(t, r.instance("a").Status.Startup, "the script waits")

	healed.Store(true)
	r.restart()
	r.eventually(func() bool {
		return r.instance("a").Status.Startup != nil && r.environmentCondition("a").Status == metav1.ConditionTrue
	}, func() any { return r.instance("a").Status })
}
