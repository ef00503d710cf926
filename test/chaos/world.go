package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"macrack.io/macrack/test/cluster/await"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/testbed"
)

const (
	tenant = "acme"
	class  = "small"
	image  = "macos-26-xcode-26"
	// patience is the timeout of every wait. A busy machine needs most of it.
	patience = 2 * time.Minute
	poll     = 20 * time.Millisecond
)

// world is a control plane with one Mac that is leased to a tenant.
type world struct {
	tb    *testbed.Testbed
	admin *versioned.Clientset
	mac   *mac
	names int
	lease string

	watching sync.WaitGroup
	unwatch  context.CancelFunc

	mu         sync.Mutex
	most       int                  // most virtual machines at a time, according to the kernel
	identities map[string]types.UID // UIDs by machine ID or MAC address ever seen
}

func newWorld(ctx context.Context, binaries string) (w *world, err error) {
	w = &world{identities: map[string]types.UID{}}
	if w.tb, err = testbed.Start(ctx, testbed.Options{NoAgents: true}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	// The client bypasses kube-apiserver, whose cache may be stale.
	if w.admin, err = w.tb.Clientset("direct"); err != nil {
		return nil, err
	}
	if w.mac, err = newMac(w.tb.Cluster, binaries, testbed.MacName(1), testbed.SerialNumber(1)); err != nil {
		return nil, err
	}
	if err := w.mac.agent.Start(); err != nil {
		return nil, err
	}
	watching, cancel := context.WithCancel(context.Background())
	w.unwatch = cancel
	w.watching.Go(func() { w.countVMs(watching) })
	return w, w.bind(ctx)
}

// stop ends all processes and removes their files.
func (w *world) stop() error {
	if w.unwatch != nil {
		w.unwatch()
		w.watching.Wait()
	}
	if w.mac != nil {
		w.mac.agent.Kill()
		w.mac.killRunners(w.mac.runners()...)
	}
	return w.tb.Stop()
}

// countVMs continuously counts the virtual machines, by the locks of the simulated kernel and by
// processes.
func (w *world) countVMs(ctx context.Context) {
	for {
		n, err := w.mac.host.RunningVMs()
		w.mu.Lock()
		if err == nil {
			w.most = max(w.most, n)
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// wait waits until is returns nil.
func wait(ctx context.Context, is func() error) error {
	return await.Success(ctx, patience, poll, is)
}

// bind leases the Mac.
func (w *world) bind(ctx context.Context) error {
	w.names++
	w.lease = fmt.Sprintf("chaos-%d", w.names)
	leases := w.admin.RackV1alpha1().MacNodeLeases(tenant)
	if _, err := leases.Create(ctx, &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Name: w.lease},
		Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base", SerialNumber: testbed.SerialNumber(1), Caches: leaseCaches},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return wait(ctx, func() error {
		lease, err := leases.Get(ctx, w.lease, metav1.GetOptions{})
		if err == nil && lease.Status.Phase != rackv1alpha1.MacNodeLeaseBound {
			err = fmt.Errorf("lease %s is %s: %v", w.lease, lease.Status.Phase, lease.Status.Conditions)
		}
		return err
	})
}

// create creates an instance.
func (w *world) create(ctx context.Context) (string, error) {
	w.names++
	name := fmt.Sprintf("vm-%d", w.names)
	return name, wait(ctx, func() error {
		_, err := w.admin.InstanceV1alpha1().MacOSInstances(tenant).Create(ctx, &instancev1alpha1.MacOSInstance{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: instancev1alpha1.MacOSInstanceSpec{
				LeaseName: w.lease, ClassName: class, ImageName: image, Caches: []instancev1alpha1.InstanceCache{{Name: cacheName}},
			},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// start creates an instance and waits until it runs.
func (w *world) start(ctx context.Context) (*instancev1alpha1.MacOSInstance, error) {
	name, err := w.create(ctx)
	if err != nil {
		return nil, err
	}
	return w.runs(ctx, name)
}

func (w *world) get(ctx context.Context, name string) (*instancev1alpha1.MacOSInstance, error) {
	return w.admin.InstanceV1alpha1().MacOSInstances(tenant).Get(ctx, name, metav1.GetOptions{})
}

func (w *world) runs(ctx context.Context, name string) (instance *instancev1alpha1.MacOSInstance, err error) {
	return instance, wait(ctx, func() error {
		if instance, err = w.get(ctx, name); err == nil && instance.Status.Phase != instancev1alpha1.MacOSInstanceRunning {
			err = fmt.Errorf("%s is %s: %s", name, instance.Status.Phase, instance.Status.Message)
		}
		return err
	})
}

// ends waits until an instance has ended.
func (w *world) ends(ctx context.Context, name string) (instance *instancev1alpha1.MacOSInstance, err error) {
	return instance, wait(ctx, func() error {
		if instance, err = w.get(ctx, name); err == nil && !rules.InstanceEnded(instance.Status.Phase) {
			err = fmt.Errorf("%s is %s: %s", name, instance.Status.Phase, instance.Status.Message)
		}
		return err
	})
}

// delete deletes an instance and waits until it is gone.
func (w *world) delete(ctx context.Context, name string) error {
	instances := w.admin.InstanceV1alpha1().MacOSInstances(tenant)
	return wait(ctx, func() error {
		err := instances.Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%s is not gone", name)
		}
		return err
	})
}

// clear deletes all instances, and waits until the slots are empty.
func (w *world) clear(ctx context.Context) error {
	all, err := w.all(ctx)
	if err != nil {
		return err
	}
	for _, instance := range all {
		if err := w.delete(ctx, instance.Name); err != nil {
			return err
		}
	}
	return wait(ctx, func() error {
		if left := w.mac.leftovers(); len(left) > 0 {
			return fmt.Errorf("left in the slots: %v", left)
		}
		return nil
	})
}

func (w *world) all(ctx context.Context) ([]instancev1alpha1.MacOSInstance, error) {
	list, err := w.admin.InstanceV1alpha1().MacOSInstances(tenant).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (w *world) node(ctx context.Context) (*rackv1alpha1.MacNode, error) {
	return w.admin.RackV1alpha1().MacNodes().Get(ctx, w.mac.name, metav1.GetOptions{})
}

// unquarantine ends the quarantine, as an administrator does after a look at the Mac.
func (w *world) unquarantine(ctx context.Context) error {
	return wait(ctx, func() error {
		node, err := w.node(ctx)
		if err != nil {
			return err
		}
		if node.Status.Quarantine == nil {
			if c := meta.FindStatusCondition(node.Status.Conditions, rackv1alpha1.MacNodeSlotsHealthy); c == nil || c.Status == metav1.ConditionTrue {
				return nil
			}
			return errors.New("the slots are not healthy yet")
		}
		if _, err := w.admin.RackV1alpha1().MacNodes().Patch(ctx, node.Name, types.MergePatchType, []byte(`{"status":{"quarantine":null}}`), metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
		return errors.New("the quarantine has just ended")
	})
}

func (w *world) quarantined(ctx context.Context, reason string) error {
	return wait(ctx, func() error {
		node, err := w.node(ctx)
		if err == nil && (node.Status.Quarantine == nil || node.Status.Quarantine.Reason != reason) {
			err = fmt.Errorf("the Mac is not in quarantine for %s: %+v", reason, node.Status.Quarantine)
		}
		return err
	})
}

// decide ends a virtual machine without an instance, as an administrator does, and waits until it
// has stopped.
func (w *world) decide(ctx context.Context, uid string) error {
	if err := w.patchNode(ctx, fmt.Sprintf(`{"status":{"quarantine":{"endInstances":[%q]}}}`, uid)); err != nil {
		return err
	}
	return wait(ctx, func() error {
		node, err := w.node(ctx)
		if err == nil && !meta.IsStatusConditionTrue(node.Status.Conditions, rackv1alpha1.MacNodeSlotsHealthy) {
			err = errors.New("the Mac is not healthy")
		}
		return err
	})
}

func (w *world) patchNode(ctx context.Context, patch string) error {
	node, err := w.node(ctx)
	if err != nil {
		return err
	}
	_, err = w.admin.RackV1alpha1().MacNodes().Patch(ctx, node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}
