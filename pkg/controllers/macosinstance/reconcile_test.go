package macosinstance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/testutil"
	"macrack.io/macrack/pkg/rules"
)

// A scenario reconciles one instance, and expects these calls of the API.
type scenario struct {
	name     string
	instance *instancev1alpha1.MacOSInstance
	lease    *rackv1alpha1.MacNodeLease
	mac      *rackv1alpha1.MacNode
	node     *corev1.Node
	pod      *corev1.Pod // in the cache
	podNow   *corev1.Pod // at the server, if it differs from the cache
	// The lease has the right budget, unless unprotected is set.
	unprotected bool
	budgets     []*policyv1.PodDisruptionBudget
	fail        map[string]error // the error of each kind of call
	calls       []string
	message     string        // the written message
	guest       string        // the written condition GuestReady
	due         time.Duration // after noon; zero for never
	err         error
}

func (s scenario) run(t *testing.T) {
	c := testutil.NewCluster(t, noon.Time)
	budgets := s.budgets
	if budgets == nil && !s.unprotected && s.lease != nil {
		budgets = []*policyv1.PodDisruptionBudget{disruptionBudget(s.lease)}
	}
	c.Add(s.instance, s.lease, s.mac, s.node, anImage())
	for _, budget := range budgets {
		c.Add(budget)
	}
	c.Cache(s.pod)
	if s.podNow == nil {
		s.podNow = s.pod
	}
	c.Serve(s.podNow)
	original := s.instance.DeepCopy()
	var written *instancev1alpha1.MacOSInstance
	c.Record(func(action clienttesting.Action, object runtime.Object) (string, error) {
		call := describeCall(t, action, object)
		if instance, ok := object.(*instancev1alpha1.MacOSInstance); ok && action.GetSubresource() == "status" {
			written = instance
		}
		kind, _, _ := strings.Cut(call, " ")
		return call, s.fail[kind]
	})

	due, err := newReconciler(c.Dependencies).reconcile(t.Context(), "acme/vm-1")
	if s.err == nil {
		require.NoError(t, err)
	} else {
		require.ErrorContains(t, err, s.err.Error())
	}
	if s.due == 0 {
		assert.Zero(t, due)
	} else {
		assert.Equal(t, noon.Add(s.due), due)
	}
	assert.Equal(t, s.calls, c.Calls)
	assert.Equal(t, original, s.instance, "the cache was changed")
	if s.message != "" {
		require.NotNil(t, written)
		assert.Equal(t, s.message, written.Status.Message)
	}
	if s.guest != "" {
		require.NotNil(t, written)
		guest := meta.FindStatusCondition(written.Status.Conditions, instancev1alpha1.MacOSInstanceGuestReady)
		require.NotNil(t, guest)
		assert.Equal(t, s.guest, string(guest.Status)+" "+guest.Reason)
	}
}

// describeCall returns a call of the API as a short sentence.
func describeCall(t *testing.T, action clienttesting.Action, object runtime.Object) string {
	t.Helper()
	if action.GetResource().Resource == "pods" {
		switch action.GetVerb() {
		case "get":
			return "read " + testutil.Name(action)
		case "create":
			return "create " + object.(*corev1.Pod).Name
		}
		return action.GetVerb() + " " + testutil.Name(action)
	}
	if action.Matches("delete", "macosinstances") {
		return "delete instance " + testutil.Name(action)
	}
	switch object := object.(type) {
	case *instancev1alpha1.MacOSInstanceStop:
		assert.EqualValues(t, "uid-vm-1", object.UID)
		return "stop " + object.Reason
	case *instancev1alpha1.MacOSInstance:
		if action.GetSubresource() == "" {
			return "finalizers " + strings.Join(object.Finalizers, " ")
		}
		podName, condition := "-", "-"
		if object.Status.PodName != "" {
			podName = object.Status.PodName
		}
		for _, c := range object.Status.Conditions {
			condition = string(c.Status) + " " + c.Reason
			if c.Type == instancev1alpha1.MacOSInstanceScheduledCondition {
				break
			}
		}
		return fmt.Sprintf("status %s %s %s", object.Status.Phase, podName, condition)
	case *policyv1.PodDisruptionBudget:
		want := disruptionBudget(bound)
		assert.Equal(t, want.ObjectMeta, object.ObjectMeta)
		assert.Equal(t, want.Spec, object.Spec)
		return "protect " + object.Labels[rules.LabelLease]
	case *rackv1alpha1.AuditRecord:
		assert.Equal(t, "acme", object.Tenant)
		assert.Equal(t, "acme", object.Namespace)
		assert.NotEmpty(t, object.Details.Message)
		return fmt.Sprintf("record %s %s %s %s %s", object.Type, object.Details.Layer, object.Chassis.NodeName, object.Lease.Name, object.Instance.Name)
	}
	if action.Matches("delete", "poddisruptionbudgets") {
		return "delete budget " + testutil.Name(action)
	}
	return fmt.Sprintf("%s %s", action.GetVerb(), action.GetResource().Resource)
}

func TestReconcileIgnoresAMissingInstance(t *testing.T) {
	scenario{}.run(t)
}
