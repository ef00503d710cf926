// Package testutil runs the reconcilers of controllers against fake clients and caches.
package testutil

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
)

// Cluster is Dependencies whose clients and caches are fakes. Its informers do not run, so a test
// decides where a cache is stale.
type Cluster struct {
	*shared.Dependencies
	Clock  *clocktesting.FakeClock
	Events *Recorder
	// Calls are the calls of the clients, as described by the function of [Cluster.Record].
	Calls []string

	t       *testing.T
	clients []clientset
}

// clientset is what the fake clientsets have in common.
type clientset interface {
	PrependReactor(verb, resource string, reaction clienttesting.ReactionFunc)
	Tracker() clienttesting.ObjectTracker
}

// NewCluster returns an empty cluster.
func NewCluster(t *testing.T, now time.Time) *Cluster {
	macrack, core := fake.NewSimpleClientset(), kubefake.NewClientset()
	c := &Cluster{
		Clock: clocktesting.NewFakeClock(now), Events: &Recorder{},
		t: t, clients: []clientset{macrack, core},
	}
	var err error
	c.Dependencies, err = shared.New(macrack, core, c.Clock, c.Events)
	require.NoError(t, err)
	return c
}

// Add puts objects into the caches and the servers. Nil pointers are ignored.
func (c *Cluster) Add(objects ...runtime.Object) {
	c.t.Helper()
	c.Cache(objects...)
	c.Serve(objects...)
}

// Cache puts objects into the caches only.
func (c *Cluster) Cache(objects ...runtime.Object) {
	c.t.Helper()
	for _, object := range objects {
		if !reflect.ValueOf(object).IsNil() {
			require.NoError(c.t, c.informer(object).GetStore().Add(object))
		}
	}
}

// Serve puts objects onto the servers only.
func (c *Cluster) Serve(objects ...runtime.Object) {
	c.t.Helper()
	for _, object := range objects {
		if reflect.ValueOf(object).IsNil() {
			continue
		}
		client := c.clients[1]
		switch object.(type) {
		case *rackv1alpha1.MacNode, *rackv1alpha1.MacNodeClass, *rackv1alpha1.MacNodeLease,
			*instancev1alpha1.MacOSInstance, *imagev1alpha1.MacOSImage, *configv1alpha1.RackConfig:
			client = c.clients[0]
		}
		require.NoError(c.t, client.Tracker().Add(object))
	}
}

func (c *Cluster) informer(object runtime.Object) cache.SharedIndexInformer {
	switch object.(type) {
	case *rackv1alpha1.MacNode:
		return c.MacNodes.Informer()
	case *rackv1alpha1.MacNodeClass:
		return c.MacNodeClasses.Informer()
	case *rackv1alpha1.MacNodeLease:
		return c.MacNodeLeases.Informer()
	case *instancev1alpha1.MacOSInstance:
		return c.MacOSInstances.Informer()
	case *imagev1alpha1.MacOSImage:
		return c.MacOSImages.Informer()
	case *configv1alpha1.RackConfig:
		return c.RackConfigs.Informer()
	case *corev1.Node:
		return c.Nodes.Informer()
	case *corev1.Pod:
		return c.Pods.Informer()
	case *policyv1.PodDisruptionBudget:
		return c.Budgets.Informer()
	}
	require.FailNow(c.t, fmt.Sprintf("no cache of %T", object))
	return nil
}

// Record describes each later call with describe, appends the text to Calls, and answers the call
// with the error of describe, if any. The object is the result of the call; that of a subresource
// without an object is the request.
func (c *Cluster) Record(describe func(action clienttesting.Action, object runtime.Object) (call string, err error)) {
	for _, client := range c.clients {
		react := clienttesting.ObjectReaction(client.Tracker())
		client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			var object runtime.Object
			var err error
			create, isCreate := action.(clienttesting.CreateActionImpl)
			if isCreate && create.Subresource != "" {
				object = create.Object
			} else {
				_, object, err = react(action)
			}
			if isCreate && object == nil {
				object = create.Object
			}
			if accessor, notObject := meta.Accessor(object); notObject == nil {
				accessor.SetManagedFields(nil) // the fakes write some, with the real time
			}
			call, refusal := describe(action, object)
			c.Calls = append(c.Calls, call)
			if refusal != nil {
				err = refusal
			}
			if err != nil {
				return true, nil, err
			}
			return true, object, nil
		})
	}
}

// Name returns the name of the object that a call concerns.
func Name(action clienttesting.Action) string {
	switch action := action.(type) {
	case clienttesting.GetActionImpl:
		return action.Name
	case clienttesting.PatchActionImpl:
		return action.Name
	case clienttesting.DeleteActionImpl:
		return action.Name
	case clienttesting.CreateActionImpl:
		return action.Name
	}
	return ""
}
