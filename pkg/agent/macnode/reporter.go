// Package macnode reports the Mac in its MacNode.
package macnode

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/imagestatus"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/quarantine"
	"macrack.io/macrack/pkg/agent/scrub"
	"macrack.io/macrack/pkg/agent/state"
	"macrack.io/macrack/pkg/agent/witness"
	"macrack.io/macrack/pkg/apiclient"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/vm/faults"
)

// Config configures a Reporter.
type Config struct {
	// Version is the agent's version.
	Version    string
	Host       host.Host
	Images     images.Store
	Checker    *imagestatus.Checker
	MacNode    *objects.MacNode
	State      *state.File
	Quarantine *quarantine.Quarantine
	Rebooter   *quarantine.Rebooter
	Witness    *witness.Keeper
	Scrubber   *scrub.Scrubber
}

// Reporter reports the Mac in its MacNode.
type Reporter struct{ Config }

// New returns a Reporter.
func New(config Config) *Reporter { return &Reporter{config} }

// Reconcile reports the Mac, and scrubs it when its lease ends. It writes only changes.
func (r *Reporter) Reconcile(ctx context.Context) error {
	macNode, err := r.MacNode.Newest()
	if err == nil && macNode == nil {
		klog.V(2).InfoS("MacNode of this Mac does not exist yet", "node", r.MacNode.Name)
		return nil
	}
	if err != nil {
		return err
	}
	info, err := r.Host.Info()
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if err := r.Quarantine.Recover(info); err != nil {
		return err
	}
	var scrubbed *rackv1alpha1.ScrubReport
	if r.Witness.ConfirmedBy(macNode) {
		if scrubbed, err = r.clean(ctx, macNode); err != nil {
			return err
		}
	}
	witnessed, err := r.Witness.Keep(macNode)
	if err != nil {
		return err
	}
	next := macNode.DeepCopy()
	next.Status.Witness = witnessed
	if err := r.describe(next, info, scrubbed); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(macNode.Status, next.Status) {
		return r.Rebooter.RebootIfCurable(ctx, macNode, info)
	}
	if scrubbed != nil {
		faults.At("scrub: report: before")
	}
	patch, err := apiclient.StatusPatch(macNode, next)
	if err != nil {
		return err
	}
	err = r.MacNode.PatchStatus(ctx, patch)
	if scrubbed != nil {
		faults.At("scrub: report: after")
	}
	return err
}

// clean erases what the lease of the Mac does not need. It returns the report of a scrub, if one
// was due. A server that has lost history is no reason to erase anything.
func (r *Reporter) clean(ctx context.Context, macNode *rackv1alpha1.MacNode) (*rackv1alpha1.ScrubReport, error) {
	if lease := macNode.Status.LeaseRef; lease != nil {
		r.State.StartLease(lease.UID)
	}
	if err := r.Quarantine.EraseCorrupt(ctx, macNode); err != nil {
		return nil, err
	}
	return r.Scrubber.Scrub(macNode)
}

// describe sets the status from the agent's observations.
func (r *Reporter) describe(macNode *rackv1alpha1.MacNode, info host.Info, scrubbed *rackv1alpha1.ScrubReport) error {
	status := &macNode.Status
	status.BootID = info.BootID
	status.Hardware = &rackv1alpha1.MacNodeHardware{
		ModelIdentifier: info.ModelIdentifier,
		SerialNumber:    info.SerialNumber,
		CPU:             scalar.NewQuantity(info.CPU, resource.DecimalSI),
		Memory:          scalar.NewQuantity(info.Memory, resource.BinarySI),
		Storage:         scalar.NewQuantity(info.Storage, resource.BinarySI),
		FreeStorage:     freeStorage(status.Hardware, info.FreeStorage),
		MacOSVersion:    info.MacOSVersion,
		AgentVersion:    r.Version,
	}
	cached, err := r.Images.List()
	if err != nil {
		return err
	}
	status.Images = nil
	for _, image := range cached {
		lastUsedAt := metav1.NewTime(image.LastUsedAt).Rfc3339Copy()
		status.Images = append(status.Images, rackv1alpha1.CachedImage{
			Name: image.Name, Digest: image.Digest, SizeBytes: image.Bytes, LastUsedAt: &lastUsedAt,
		})
	}
	status.ImageChecks = r.Checker.Results()
	if scrubbed != nil {
		status.Scrub = scrubbed
	}
	r.Quarantine.SetSlotsHealthy(macNode, info)
	r.setStorageHealthy(macNode, info)
	r.setScrubbed(macNode)
	return nil
}

func (r *Reporter) setStorageHealthy(macNode *rackv1alpha1.MacNode, info host.Info) {
	if info.FreeStorage < minimumFree {
		r.MacNode.SetCondition(macNode, rackv1alpha1.MacNodeStorageHealthy, metav1.ConditionFalse, "DiskFull",
			fmt.Sprintf("less than %d GiB of storage is free", minimumFree>>30))
	} else {
		r.MacNode.SetCondition(macNode, rackv1alpha1.MacNodeStorageHealthy, metav1.ConditionTrue, "EnoughFree", "")
	}
}

func (r *Reporter) setScrubbed(macNode *rackv1alpha1.MacNode) {
	switch report := macNode.Status.Scrub; {
	case report == nil:
	case len(report.Remaining) > 0:
		r.MacNode.SetCondition(macNode, rackv1alpha1.MacNodeScrubbed, metav1.ConditionFalse, rackv1alpha1.ReasonScrubFailed,
			fmt.Sprintf("%d files of the last tenant remain", len(report.Remaining)))
	default:
		r.MacNode.SetCondition(macNode, rackv1alpha1.MacNodeScrubbed, metav1.ConditionTrue, "NothingLeft",
			fmt.Sprintf("all files of the tenant of lease %s are erased", report.LeaseUID))
	}
}
