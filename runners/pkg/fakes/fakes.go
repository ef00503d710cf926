// Package fakes makes the fake clientset behave like MacRack where tests of sets depend on it.
package fakes

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned/fake"
)

// server gives objects versions and UIDs, and refuses stale writes.
type server struct {
	tracker clienttesting.ObjectTracker
	mu      sync.Mutex
	version int
}

// New returns a clientset that refuses updates of stale objects, deletions whose preconditions do
// not hold, and a third instance on a lease.
func New() *fake.Clientset {
	client := fake.NewSimpleClientset() // the schema of NewClientset has no types of MacRack
	s := &server{tracker: client.Tracker(), version: 1000}
	client.PrependReactor("create", "*", s.create)
	client.PrependReactor("update", "*", s.update)
	client.PrependReactor("delete", "*", s.delete)
	return client
}

func (s *server) stamp(object metav1.Object) {
	s.version++
	object.SetResourceVersion(strconv.Itoa(s.version))
}

func (s *server) create(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := action.(clienttesting.CreateAction).GetObject().DeepCopyObject()
	accessor, err := meta.Accessor(object)
	if err != nil {
		return true, nil, err
	}
	if instance, ok := object.(*instancev1alpha1.MacOSInstance); ok {
		if err := s.checkSlots(action, instance); err != nil {
			return true, nil, err
		}
	}
	s.stamp(accessor)
	accessor.SetUID(types.UID(fmt.Sprintf("uid-%d", s.version)))
	accessor.SetCreationTimestamp(metav1.Now())
	return true, object, s.tracker.Create(action.GetResource(), object, action.GetNamespace())
}

// checkSlots enforces rule 1.
func (s *server) checkSlots(action clienttesting.Action, instance *instancev1alpha1.MacOSInstance) error {
	list, err := s.tracker.List(action.GetResource(), instancev1alpha1.SchemeGroupVersion.WithKind("MacOSInstance"), action.GetNamespace())
	if err != nil {
		return err
	}
	taken := 0
	for _, other := range list.(*instancev1alpha1.MacOSInstanceList).Items {
		if other.Spec.LeaseName == instance.Spec.LeaseName {
			taken++
		}
	}
	if taken >= 2 {
		return apierrors.NewForbidden(action.GetResource().GroupResource(), instance.Name, errors.New("rule 1 (two VMs per Mac)"))
	}
	return nil
}

func (s *server) update(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := action.(clienttesting.UpdateAction).GetObject().DeepCopyObject()
	accessor, err := meta.Accessor(object)
	if err != nil {
		return true, nil, err
	}
	stored, err := s.stored(action, accessor.GetName())
	if err != nil {
		return true, nil, err
	}
	if stored.GetResourceVersion() != accessor.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), accessor.GetName(), errors.New("stale"))
	}
	s.stamp(accessor)
	return true, object, s.tracker.Update(action.GetResource(), object, action.GetNamespace())
}

func (s *server) delete(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	deletion := action.(clienttesting.DeleteActionImpl)
	stored, err := s.stored(action, deletion.Name)
	if err != nil {
		return true, nil, err
	}
	if p := deletion.DeleteOptions.Preconditions; p != nil {
		if p.UID != nil && *p.UID != stored.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != stored.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), deletion.Name, errors.New("the preconditions do not hold"))
		}
	}
	return true, nil, s.tracker.Delete(action.GetResource(), action.GetNamespace(), deletion.Name)
}

func (s *server) stored(action clienttesting.Action, name string) (metav1.Object, error) {
	object, err := s.tracker.Get(action.GetResource(), action.GetNamespace(), name)
	if err != nil {
		return nil, err
	}
	return meta.Accessor(object)
}
