package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/generated/informers/externalversions"
	"macrack.io/macrack/test/cluster"
)

const (
	leaseName = "load"
	imageName = "macos-26-xcode-26"
	patience  = 2 * time.Minute
)

// steps are the tenant's work in each round. Each step ends when its effect is visible to a watch.
var steps = []string{"lease", "start", "exec", "stop", "delete", "get", "list"}

// durations are the times of each step.
type durations map[string][]time.Duration

// A tenant works on one lease.
type tenant struct {
	config    *rest.Config
	macrack   versioned.Interface
	instances *latest[*instancev1alpha1.MacOSInstance]
	leases    *latest[*rackv1alpha1.MacNodeLease]
	round     int
}

func newTenant(ctx context.Context, c *cluster.Cluster) (*tenant, error) {
	config, err := c.RESTConfig(victim)
	if err != nil {
		return nil, err
	}
	t := &tenant{config: config, instances: newLatest[*instancev1alpha1.MacOSInstance](), leases: newLatest[*rackv1alpha1.MacNodeLease]()}
	if t.macrack, err = versioned.NewForConfig(config); err != nil {
		return nil, err
	}
	factory := externalversions.NewSharedInformerFactoryWithOptions(t.macrack, 0, externalversions.WithNamespace(victim))
	if _, err := factory.Instance().V1alpha1().MacOSInstances().Informer().AddEventHandler(t.instances); err != nil {
		return nil, err
	}
	if _, err := factory.Rack().V1alpha1().MacNodeLeases().Informer().AddEventHandler(t.leases); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return t, t.createLease(ctx, leaseName, "base", func(l *rackv1alpha1.MacNodeLease) bool { return l.Status.Phase == rackv1alpha1.MacNodeLeaseBound })
}

func (t *tenant) createLease(ctx context.Context, name, class string, done func(*rackv1alpha1.MacNodeLease) bool) error {
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: class}}
	if err := patiently(func() error {
		_, err := t.macrack.RackV1alpha1().MacNodeLeases(victim).Create(ctx, lease, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return t.leases.await(ctx, name, done)
}

// patiently repeats a request that the server answers with 429, as the server asks clients to.
func patiently(do func() error) error {
	return retry.OnError(retry.DefaultBackoff, apierrors.IsTooManyRequests, do)
}

// warmUp makes the first round, which is not measured: an agent's serving certificate is issued
// only after its start.
func (t *tenant) warmUp(ctx context.Context) error {
	return retry.OnError(wait.Backoff{Duration: time.Second, Steps: 60, Factor: 1}, func(error) bool { return ctx.Err() == nil }, func() error {
		_, err := t.work(ctx, 0)
		if err != nil {
			instances := t.macrack.InstanceV1alpha1().MacOSInstances(victim)
			return errors.Join(err, instances.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		}
		return nil
	})
}

// work repeats the steps for a time, and at least once.
func (t *tenant) work(ctx context.Context, d time.Duration) (durations, error) {
	took := durations{}
	for end := time.Now().Add(d); len(took) == 0 || time.Now().Before(end); {
		t.round++
		name := fmt.Sprintf("load-%d", t.round)
		for _, step := range steps {
			began := time.Now()
			if err := t.do(ctx, step, name); err != nil {
				return took, fmt.Errorf("%s of %s: %w", step, name, err)
			}
			took[step] = append(took[step], time.Since(began))
		}
	}
	return took, nil
}

func (t *tenant) do(ctx context.Context, step, name string) error {
	instances := t.macrack.InstanceV1alpha1().MacOSInstances(victim)
	switch step {
	case "lease":
		// A bound lease would keep its Mac for a day, so this one waits for a Mac of a class
		// without Macs. The controllers say so in its conditions.
		if err := t.createLease(ctx, name, "studio", func(l *rackv1alpha1.MacNodeLease) bool {
			return meta.FindStatusCondition(l.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionBound) != nil
		}); err != nil {
			return err
		}
		if err := patiently(func() error {
			return t.macrack.RackV1alpha1().MacNodeLeases(victim).Delete(ctx, name, metav1.DeleteOptions{})
		}); err != nil {
			return err
		}
		return t.leases.awaitGone(ctx, name)
	case "start":
		instance := &instancev1alpha1.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: instancev1alpha1.MacOSInstanceSpec{LeaseName: leaseName, ClassName: "small", ImageName: imageName}}
		if err := patiently(func() error {
			_, err := instances.Create(ctx, instance, metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
		return t.instances.await(ctx, name, func(i *instancev1alpha1.MacOSInstance) bool {
			return i.Status.Phase == instancev1alpha1.MacOSInstanceRunning
		})
	case "exec":
		return patiently(func() error { return cluster.Exec(ctx, t.config, patience, victim, name+"-vm", "true") })
	case "stop":
		if err := patiently(func() error {
			_, err := instances.Stop(ctx, name, &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
		return t.instances.await(ctx, name, func(i *instancev1alpha1.MacOSInstance) bool {
			return i.Status.Phase == instancev1alpha1.MacOSInstanceStopped
		})
	case "delete":
		if err := patiently(func() error { return instances.Delete(ctx, name, metav1.DeleteOptions{}) }); err != nil {
			return err
		}
		return t.instances.awaitGone(ctx, name)
	case "get":
		return patiently(func() error {
			_, err := t.macrack.RackV1alpha1().MacNodeLeases(victim).Get(ctx, leaseName, metav1.GetOptions{})
			return err
		})
	case "list":
		return patiently(func() error {
			_, err := t.macrack.RackV1alpha1().AuditRecords(victim).List(ctx, metav1.ListOptions{Limit: 100})
			return err
		})
	}
	panic("unknown step " + step)
}

var _ cache.ResourceEventHandler = (*latest[metav1.Object])(nil)
