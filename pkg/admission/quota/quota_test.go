package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
)

var leases = rack.Resource("macnodeleases")

const counted = corev1.ResourceName("count/macnodeleases.rack.macrack.io")

func newQuota(used, hard string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "macs", ResourceVersion: "1"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{counted: resource.MustParse(hard)}},
		Status: corev1.ResourceQuotaStatus{
			Hard: corev1.ResourceList{counted: resource.MustParse(hard)},
			Used: corev1.ResourceList{counted: resource.MustParse(used)},
		},
	}
}

func creating(gr schema.GroupResource, subresource, namespace, name string, obj runtime.Object, dryRun bool) admission.Attributes {
	return admission.NewAttributesRecord(obj, nil, schema.GroupVersionKind{}, namespace, name, gr.WithVersion("v1alpha1"), subresource, admission.Create, nil, dryRun, nil)
}

// newClient returns a client of a cluster that refuses writes of what has changed meanwhile, as
// clusters do.
func newClient(quota *corev1.ResourceQuota) *fake.Clientset {
	client := fake.NewClientset(quota)
	var mu sync.Mutex
	version := 1
	client.PrependReactor("update", "resourcequotas", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		updated := action.(clienttesting.UpdateAction).GetObject().(*corev1.ResourceQuota).DeepCopy()
		if updated.ResourceVersion != fmt.Sprint(version) {
			return true, nil, apierrors.NewConflict(corev1.Resource("resourcequotas"), updated.Name, errors.New("it has changed"))
		}
		version++
		updated.ResourceVersion = fmt.Sprint(version)
		return true, updated, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("resourcequotas"), updated, updated.Namespace)
	})
	return client
}

// newReplica returns the plugin as a server has it.
func newReplica(t *testing.T, client *fake.Clientset) admission.ValidationInterface {
	options := genericoptions.NewAdmissionOptions()
	Enable(options)
	assert.Empty(t, options.Validate())
	made, err := options.Plugins.InitPlugin(resourcequota.PluginName, nil, admission.PluginInitializers{})
	require.ErrorContains(t, err, "missing", "nothing counts without a configuration")
	require.Nil(t, made)
	plugin, err := resourcequota.NewResourceQuota(nil, 5)
	require.NoError(t, err)
	factory := informers.NewSharedInformerFactory(client, 0)
	plugin.SetExternalKubeClientSet(client)
	plugin.SetExternalKubeInformerFactory(factory)
	plugin.SetDrainedNotification(t.Context().Done())
	Initializer().Initialize(plugin)
	require.NoError(t, plugin.ValidateInitialization())
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return decorate(plugin, resourcequota.PluginName).(admission.ValidationInterface)
}

// Many clients of two replicas ask at once for more than the quota has.
func TestQuotaUnderRace(t *testing.T) {
	client := newClient(newQuota("1", "4"))
	replicas := []admission.ValidationInterface{newReplica(t, client), newReplica(t, client)}
	var admitted atomic.Int64
	var group sync.WaitGroup
	for n := range 32 {
		group.Go(func() {
			for {
				err := replicas[n%2].Validate(t.Context(), creating(leases, "", "acme", fmt.Sprint(n), &rack.MacNodeLease{}, false), nil)
				switch {
				case err == nil:
					admitted.Add(1)
				case apierrors.IsTooManyRequests(err): // clients try again
					time.Sleep(time.Millisecond)
					continue
				default:
					assert.True(t, apierrors.IsForbidden(err), "%v", err)
					assert.ErrorContains(t, err, "exceeded quota: macs")
				}
				return
			}
		})
	}
	group.Wait()
	assert.EqualValues(t, 3, admitted.Load())
}

func TestCountedRequests(t *testing.T) {
	client := newClient(newQuota("4", "4"))
	plugin := newReplica(t, client)
	for name, tt := range map[string]struct {
		attributes admission.Attributes
		refused    bool
	}{
		"a lease":              {creating(leases, "", "acme", "x", &rack.MacNodeLease{}, false), true},
		"a lease, dry run":     {creating(leases, "", "acme", "x", &rack.MacNodeLease{}, true), true},
		"a lease elsewhere":    {creating(leases, "", "globex", "x", &rack.MacNodeLease{}, false), false},
		"a binding of a lease": {creating(leases, "binding", "acme", "x", &rack.MacNodeLeaseBinding{}, false), false},
		"an instance":          {creating(instance.Resource("macosinstances"), "", "acme", "x", &instance.MacOSInstance{}, false), false},
		"a record":             {creating(rack.Resource("auditrecords"), "", "acme", "x", &rack.AuditRecord{}, false), false},
		"a Mac":                {creating(rack.Resource("macnodes"), "", "", "x", &rack.MacNode{}, false), false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.refused, plugin.Validate(t.Context(), tt.attributes, nil) != nil)
		})
	}
}

// No quota keeps a rejection off the ledger.
func TestRecordsAreNotCounted(t *testing.T) {
	quota := newQuota("0", "0")
	for _, list := range []corev1.ResourceList{quota.Spec.Hard, quota.Status.Hard, quota.Status.Used} {
		list["count/auditrecords.rack.macrack.io"] = resource.MustParse("0")
	}
	plugin := newReplica(t, newClient(quota))
	assert.NoError(t, plugin.Validate(t.Context(), creating(rack.Resource("auditrecords"), "", "acme", "x", &rack.AuditRecord{}, false), nil))
	assert.Error(t, plugin.Validate(t.Context(), creating(leases, "", "acme", "x", &rack.MacNodeLease{}, false), nil))
}

func TestPreflight(t *testing.T) {
	client := newClient(newQuota("0", "4"))
	factory := informers.NewSharedInformerFactory(client, 0)
	lister := factory.Core().V1().ResourceQuotas().Lister()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	refusal := errors.New("the registry refuses it")
	var asked int
	plugin := Preflight(lister, func(_ context.Context, gr schema.GroupResource, old, new runtime.Object) error {
		asked++
		assert.Equal(t, leases, gr)
		assert.Nil(t, old)
		assert.IsType(t, &rack.MacNodeLease{}, new)
		return refusal
	})
	assert.Equal(t, refusal, plugin.Validate(t.Context(), creating(leases, "", "acme", "x", &rack.MacNodeLease{}, false), nil))
	assert.Equal(t, 1, asked)
	for _, a := range []admission.Attributes{
		creating(leases, "", "globex", "x", &rack.MacNodeLease{}, false),
		creating(leases, "", "acme", "x", &rack.MacNodeLease{}, true),
		creating(leases, "binding", "acme", "x", &rack.MacNodeLeaseBinding{}, false),
		creating(instance.Resource("macosinstances"), "", "acme", "x", &instance.MacOSInstance{}, false),
		creating(rack.Resource("macnodes"), "", "", "x", &rack.MacNode{}, false),
	} {
		assert.NoError(t, plugin.Validate(t.Context(), a, nil))
	}
	assert.Equal(t, 1, asked, "what no quota counts is planned once, when it is written")
	assert.False(t, plugin.Handles(admission.Update))
}

func TestOnlyItsPluginIsDecorated(t *testing.T) {
	other := Preflight(nil, nil)
	assert.Equal(t, admission.Interface(other), decorate(other, "Another"))
}
