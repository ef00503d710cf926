package main

import (
	"context"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/testbed"
)

// patience is the time in which a step must take effect.
const patience = 5 * time.Minute

// A story is the scenario, and its counts.
type story struct {
	tb     *testbed.Testbed
	ledger string
	admin  versioned.Interface

	leases, recovered, early, killed int
	lost, reported                   int64
}

// run loses etcd twice. After the backup, there are a new instance, a release, a new lease of the
// released Mac, and a lease of another Mac.
func (s *story) run(ctx context.Context) error {
	var err error
	if s.admin, err = s.tb.Clientset(cluster.Admin); err != nil {
		return err
	}
	for _, step := range []struct {
		text string
		do   func() error
	}{
		{"acme leases two Macs and starts an instance", func() error {
			return s.all(
				func() error { return s.lease(ctx, "acme", "kept", 1) },
				func() error { return s.lease(ctx, "acme", "old", 2) },
				func() error { return s.start(ctx, "acme", "one", "kept") },
				func() error { return s.quiet(ctx) },
			)
		}},
		{"backup of etcd", func() error { return s.backup(ctx) }},
		{"a day passes; a Mac is released and leased again, another one is leased, instances start", func() error {
			s.tb.Advance(25 * time.Hour)
			return s.all(
				func() error { return s.release(ctx, "acme", "old") },
				func() error { return s.lease(ctx, "globex", "new", 2) },
				func() error { return s.start(ctx, "globex", "renewed", "new") },
				func() error { return s.lease(ctx, "acme", "late", 3) },
				func() error { return s.start(ctx, "acme", "two", "kept") },
				func() error { return s.start(ctx, "acme", "three", "late") },
				func() error { return s.quiet(ctx) },
			)
		}},
		{"etcd is destroyed and restored from the backup", func() error {
			return s.loseAndRestore(ctx, s.restoreBackup, nil)
		}},
		{"etcd is destroyed and restored from nothing", func() error {
			return s.loseAndRestore(ctx, s.startEmpty, s.tb.Cluster.ApplyExample)
		}},
		{"the floors pass and all leases end", func() error { return s.endAll(ctx) }},
	} {
		fmt.Fprintln(os.Stderr, "restore:", step.text)
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.text, err)
		}
	}
	return nil
}

func (s *story) all(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// until waits until done returns an empty string, and otherwise names what is missing.
func (s *story) until(ctx context.Context, done func(ctx context.Context) string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %s", patience))
	defer cancel()
	missing := ""
	err := await.Poll(ctx, func(ctx context.Context) (bool, error) {
		if err := s.tb.Err(); err != nil {
			return false, err
		}
		still := done(ctx)
		if still == "" || ctx.Err() == nil { // not the error of the timeout
			missing = still
		}
		return still == "", nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, missing)
	}
	return nil
}

func (s *story) lease(ctx context.Context, tenant, name string, mac int) error {
	client, err := s.tb.Clientset(tenant)
	if err != nil {
		return err
	}
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "base", SerialNumber: testbed.SerialNumber(mac)}}
	if err := s.until(ctx, func(ctx context.Context) string {
		_, err := client.RackV1alpha1().MacNodeLeases(tenant).Create(ctx, lease, metav1.CreateOptions{})
		return text(err)
	}); err != nil {
		return err
	}
	return s.until(ctx, func(ctx context.Context) string {
		got, err := client.RackV1alpha1().MacNodeLeases(tenant).Get(ctx, name, metav1.GetOptions{})
		if err == nil && got.Status.Phase != rackv1alpha1.MacNodeLeaseBound {
			return fmt.Sprintf("lease %s is %s", name, got.Status.Phase)
		}
		return text(err)
	})
}

func (s *story) start(ctx context.Context, tenant, name, lease string) error {
	client, err := s.tb.Clientset(tenant)
	if err != nil {
		return err
	}
	_, err = client.InstanceV1alpha1().MacOSInstances(tenant).Create(ctx, &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       instancev1alpha1.MacOSInstanceSpec{LeaseName: lease, ClassName: "small", ImageName: "macos-15-xcode-16"},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return s.until(ctx, func(ctx context.Context) string { return s.running(ctx, tenant, name) })
}

func (s *story) running(ctx context.Context, tenant, name string) string {
	i, err := s.admin.InstanceV1alpha1().MacOSInstances(tenant).Get(ctx, name, metav1.GetOptions{})
	if err == nil && i.Status.Phase != instancev1alpha1.MacOSInstanceRunning {
		return fmt.Sprintf("instance %s/%s is %s: %s", tenant, name, i.Status.Phase, i.Status.Message)
	}
	return text(err)
}

func (s *story) release(ctx context.Context, tenant, name string) error {
	if err := s.admin.RackV1alpha1().MacNodeLeases(tenant).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return s.until(ctx, func(ctx context.Context) string {
		if _, err := s.admin.RackV1alpha1().MacNodeLeases(tenant).Get(ctx, name, metav1.GetOptions{}); err == nil {
			return fmt.Sprintf("lease %s/%s exists", tenant, name)
		}
		return ""
	})
}

// quiet waits until each Mac has witnessed the last record of its chain, twice in a row.
func (s *story) quiet(ctx context.Context) error {
	same, last := 0, ""
	return s.until(ctx, func(ctx context.Context) string {
		heads := ""
		macs, err := s.macs(ctx)
		for _, mac := range macs {
			l, w := mac.Status.Ledger, mac.Status.Witness
			if l != nil && (w == nil || w.Head != l.Head) {
				return fmt.Sprintf("%s has not witnessed record %d", mac.Name, l.Head.Sequence)
			}
			if w != nil && l != nil && len(w.Instances) != int(mac.Status.RunningVMs) {
				return fmt.Sprintf("%s has witnessed %d of %d instances", mac.Name, len(w.Instances), mac.Status.RunningVMs)
			}
			if l != nil {
				heads += l.Head.Hash
			}
		}
		if same++; heads != last {
			same, last = 0, heads
		}
		if err == nil && same < 5 {
			return "the chains grow"
		}
		return text(err)
	})
}

func (s *story) macs(ctx context.Context) ([]rackv1alpha1.MacNode, error) {
	list, err := s.admin.RackV1alpha1().MacNodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// endAll deletes all leases after their floors, and waits until all Macs are free: what was
// restored ends like everything else.
func (s *story) endAll(ctx context.Context) error {
	s.tb.Advance(25 * time.Hour)
	leases, err := s.admin.RackV1alpha1().MacNodeLeases("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, lease := range leases.Items {
		if err := s.release(ctx, lease.Namespace, lease.Name); err != nil {
			return err
		}
	}
	return s.until(ctx, func(ctx context.Context) string {
		macs, err := s.macs(ctx)
		for _, mac := range macs {
			if mac.Status.Phase != rackv1alpha1.MacNodeAvailable {
				return fmt.Sprintf("%s is %s", mac.Name, mac.Status.Phase)
			}
		}
		return text(err)
	})
}

func text(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}
