package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/test/cluster/process"
)

const etcdMember = "macrack-etcd-1"

// behindFor is the time for which the restored server runs before the restore of the Macs. The
// garbage collector deletes the placeholder pods of unknown instances meanwhile.
const behindFor = 20 * time.Second

// A state is what the Macs serve.
type state struct {
	leases    map[types.UID]rackv1alpha1.MacNodeLease
	instances map[types.UID]instancev1alpha1.MacOSInstance
	heads     map[string]int64  // by the name of the Mac
	started   map[string]string // what the process of each virtual machine wrote at its start, by UID
}

func (s *story) state(ctx context.Context) (*state, error) {
	st := &state{map[types.UID]rackv1alpha1.MacNodeLease{}, map[types.UID]instancev1alpha1.MacOSInstance{}, map[string]int64{}, nil}
	leases, err := s.admin.RackV1alpha1().MacNodeLeases("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, lease := range leases.Items {
		st.leases[lease.UID] = lease
	}
	instances, err := s.admin.InstanceV1alpha1().MacOSInstances("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, i := range instances.Items {
		st.instances[i.UID] = i
	}
	macs, err := s.macs(ctx)
	for _, mac := range macs {
		if l := mac.Status.Ledger; l != nil {
			st.heads[mac.Name] = l.Head.Sequence
		}
	}
	if err != nil {
		return nil, err
	}
	st.started, err = s.started()
	return st, err
}

// started returns what the process of each virtual machine wrote at its start.
func (s *story) started() (map[string]string, error) {
	files, err := filepath.Glob(s.file("macs/*/state/slots/*/started.json"))
	started := map[string]string{}
	for _, file := range files {
		spec, specErr := contract.SlotDir(filepath.Dir(file)).ReadSpec()
		data, readErr := os.ReadFile(file)
		if err := errors.Join(specErr, readErr); err != nil {
			return nil, err
		}
		if spec != nil {
			started[spec.InstanceUID] = string(data)
		}
	}
	return started, err
}

// loseAndRestore destroys the etcd of macrack, puts what fill writes in its place, and restores the
// Macs. The function prepare, if any, creates what an empty etcd needs.
func (s *story) loseAndRestore(ctx context.Context, fill func(ctx context.Context, dir string) error, prepare func(context.Context) error) error {
	before, err := s.state(ctx)
	if err != nil {
		return err
	}
	s.tb.StopControllers()
	port := s.tb.Cluster.Port("balancer")
	s.tb.APIServer.Stop()
	if err := s.tb.Cluster.Kill(ctx, etcdMember); err != nil {
		return err
	}
	data := filepath.Join(s.tb.Cluster.Dir(), "data", etcdMember)
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	if err := fill(ctx, data); err != nil {
		return err
	}
	if err := s.tb.Cluster.Restart(ctx, etcdMember); err != nil {
		return err
	}
	listener, err := process.Listen(port)
	if err != nil {
		return err
	}
	if s.tb.APIServer, err = s.tb.StartAPIServer(listener, s.tb.Cluster.MacrackEtcd()); err != nil {
		return err
	}
	if err := s.tb.Cluster.WaitForAPI(ctx); err != nil {
		return err
	}
	if prepare != nil {
		if err := prepare(ctx); err != nil {
			return err
		}
	}
	if err := s.until(ctx, s.allBehind); err != nil {
		return err
	}
	records, err := s.admin.RackV1alpha1().AuditRecords("").List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(rackv1alpha1.NodeQuarantined)})
	if err != nil {
		return err
	}
	quarantined := map[string]rackv1alpha1.AuditRecord{} // the last of each Mac
	for _, record := range records.Items {
		if name := record.Chassis.NodeName; rules.LostHistory(record.Details.Reason) && record.Sequence > quarantined[name].Sequence {
			quarantined[name] = record
		}
	}
	for name, head := range before.heads {
		record, kept := quarantined[name], quarantined[name].Sequence-1 // the number of records in the backup
		s.lost += head - kept
		s.reported += record.Details.WitnessedSequence - kept
	}
	if err := s.reportsLoss(ctx); err != nil {
		return err
	}
	time.Sleep(behindFor)
	if err := s.restoreMacs(ctx); err != nil {
		return err
	}
	if err := s.tb.StartControllers(); err != nil {
		return err
	}
	return s.compare(ctx, before)
}

// allBehind names a Mac that is not in quarantine for its lost history.
func (s *story) allBehind(ctx context.Context) string {
	macs, err := s.macs(ctx)
	if err == nil && len(macs) == 0 {
		return "there are no MacNodes"
	}
	for _, mac := range macs {
		if q := mac.Status.Quarantine; q == nil || !rules.LostHistory(q.Reason) {
			return fmt.Sprintf("%s is %s, without a quarantine for lost history", mac.Name, mac.Status.Phase)
		}
	}
	return text(err)
}

func (s *story) reportsLoss(ctx context.Context) error {
	report, err := s.admin.RackV1alpha1().ComplianceReports().Get(ctx, "7d", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if report.Status.Verdict != rackv1alpha1.ComplianceIncomplete {
		return fmt.Errorf("the verdict is %s, not %s", report.Status.Verdict, rackv1alpha1.ComplianceIncomplete)
	}
	return nil
}

// compare counts the leases that are as before, those that ended or can end early, and the virtual
// machines that did not continue to run.
func (s *story) compare(ctx context.Context, before *state) error {
	s.leases += len(before.leases)
	err := s.until(ctx, func(ctx context.Context) string {
		for _, i := range before.instances {
			if missing := s.running(ctx, i.Namespace, i.Name); missing != "" {
				return missing
			}
		}
		return ""
	})
	after, stateErr := s.state(ctx)
	if stateErr != nil {
		return stateErr
	}
	for uid, old := range before.leases {
		now, exists := after.leases[uid]
		switch {
		case !exists, now.Status.EarliestReleaseAt.Before(old.Status.EarliestReleaseAt):
			s.early++
		case now.Name == old.Name && now.Status.BoundAt.Equal(old.Status.BoundAt) && now.Status.EarliestReleaseAt.Equal(old.Status.EarliestReleaseAt) &&
			now.Status.NodeName == old.Status.NodeName && len(now.Status.Instances) == len(old.Status.Instances):
			s.recovered++
		}
	}
	for uid, old := range before.instances {
		now, exists := after.instances[uid]
		if !exists || now.Status.MachineID != old.Status.MachineID || before.started[string(uid)] == "" || after.started[string(uid)] != before.started[string(uid)] {
			s.killed++
		}
	}
	if err != nil {
		return err
	}
	// Each instance has a pod that the scheduler has bound.
	err = s.until(ctx, func(ctx context.Context) string {
		kube, err := s.tb.Kubernetes("admin")
		if err != nil {
			return err.Error()
		}
		for _, i := range after.instances {
			i, err := s.admin.InstanceV1alpha1().MacOSInstances(i.Namespace).Get(ctx, i.Name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			pod, err := kube.CoreV1().Pods(i.Namespace).Get(ctx, i.Status.PodName, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && (pod.Spec.NodeName != i.Status.NodeName || pod.DeletionTimestamp != nil) {
				return fmt.Sprintf("instance %s/%s has no bound pod %q", i.Namespace, i.Name, i.Status.PodName)
			}
			if err != nil {
				return err.Error()
			}
		}
		return ""
	})
	if err != nil {
		return err
	}
	return s.quiet(ctx)
}
