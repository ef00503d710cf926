package macosinstance

import (
	"errors"
	"testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

func TestCreatePod(t *testing.T) {
	another := aLease(rackv1alpha1.MacNodeLeaseBound)
	another.UID = "uid-another"
	next := nextPodName(anInstance(named))
	for _, tt := range []scenario{
		{
			name: "the Node has the tenant's taint: the pod's name is stored, then the pod is created", instance: anInstance(), lease: bound, node: tenants,
			calls: []string{"status Pending vm-1-vm False CreatingPod", "create vm-1-vm"},
		},
		{
			name: "on a Held lease", instance: anInstance(), lease: aLease(rackv1alpha1.MacNodeLeaseHeld), node: tenants,
			calls: []string{"status Pending vm-1-vm False CreatingPod", "create vm-1-vm"},
		},
		{name: "on a lease that is being released", instance: anInstance(), lease: aLease(rackv1alpha1.MacNodeLeaseReleasing), node: tenants},
		{name: "the lease is gone", instance: anInstance(), node: tenants},
		{name: "a new lease has the same name", instance: anInstance(), lease: another, node: tenants},
		{
			name: "the Node does not exist", instance: anInstance(), lease: bound,
			calls:   []string{"status Pending - False WaitingForNode"},
			message: "Node mac-1 not found; the agent of the Mac has not registered it",
		},
		{
			name: "the Node is unleased", instance: anInstance(), lease: bound, node: aNode(rules.UnleasedTaint()),
			calls: []string{"status Pending - False WaitingForNode"}, message: "Node mac-1 does not have the tenant's taint yet",
		},
		{
			name: "the Node has both taints", instance: anInstance(), lease: bound, node: aNode(rules.TenantTaint("acme"), rules.UnleasedTaint()),
			calls: []string{"status Pending - False WaitingForNode"},
		},
		{
			name: "the Node has another tenant's taint", instance: anInstance(), lease: bound, node: aNode(rules.TenantTaint("globex")),
			calls: []string{"status Pending - False WaitingForNode"},
		},
		{
			name: "the Node has no taint", instance: anInstance(), lease: bound, node: aNode(),
			calls: []string{"status Pending - False WaitingForNode"},
		},
		{
			name: "the name cannot be stored: no pod", instance: anInstance(), lease: bound, node: tenants, fail: map[string]error{"status": errConflict},
			calls: []string{"status Pending vm-1-vm False CreatingPod"}, err: errConflict,
		},
		{
			name: "the name was stored, but the pod was not created", instance: anInstance(withPod(ReasonCreatingPod, "the placeholder pod is being created")), lease: bound, node: tenants,
			calls: []string{"create vm-1-vm"},
		},
		{
			name: "the pod was created, but is not in the cache", instance: anInstance(withPod(ReasonCreatingPod, "the placeholder pod is being created")), lease: bound, node: tenants,
			podNow: aPod(""),
			calls:  []string{"create vm-1-vm", "read vm-1-vm"},
		},
		{
			name: "the name is in use: another is stored", instance: anInstance(withPod(ReasonCreatingPod, "x")), lease: bound, node: tenants, podNow: ofAnotherOwner(),
			calls:   []string{"create vm-1-vm", "read vm-1-vm", "status Pending " + next + " False PodNameTaken"},
			message: "pod name vm-1-vm already in use; the placeholder pod is named " + next,
		},
		{
			name: "the other name is stored: the pod gets it", instance: anInstance(withPod(ReasonPodNameTaken, "x"), func(i *instancev1alpha1.MacOSInstance) { i.Status.PodName = next }), lease: bound, node: tenants,
			calls: []string{"create " + next},
		},
		{
			name: "an earlier instance's pod has the name, and is terminating", instance: anInstance(withPod(ReasonCreatingPod, "x")), lease: bound, node: tenants, podNow: ofAnotherOwner(terminatingSince(noon.Time)),
			calls:   []string{"create vm-1-vm", "read vm-1-vm", "status Pending vm-1-vm False PodRefused"},
			message: "placeholder pod refused: pod vm-1-vm of another owner is still being deleted",
			err:     errors.New("is still being deleted"),
		},
		{
			name: "a pod that does not terminate has the name", instance: anInstance(withPod(ReasonPodRefused, "x")), lease: bound, node: tenants, podNow: ofAnotherOwner(terminatingSince(noon.Add(-stopMargin))),
			calls: []string{"create vm-1-vm", "read vm-1-vm", "status Pending " + next + " False PodNameTaken"},
		},
		{
			name: "the pod is refused", instance: anInstance(), lease: bound, node: tenants, fail: map[string]error{"create": errForbidden},
			calls:   []string{"status Pending vm-1-vm False CreatingPod", "create vm-1-vm", "status Pending vm-1-vm False PodRefused"},
			message: "placeholder pod refused: " + errForbidden.Error(), err: errForbidden,
		},
		{
			name:     "the pod is refused again: no write",
			instance: anInstance(withPod(ReasonPodRefused, "placeholder pod refused: "+errForbidden.Error())), lease: bound, node: tenants, fail: map[string]error{"create": errForbidden},
			calls: []string{"create vm-1-vm"}, err: errForbidden,
		},
		{
			name: "the pod is no longer refused", instance: anInstance(withPod(ReasonPodRefused, "x")), lease: bound, node: tenants,
			calls: []string{"create vm-1-vm"},
		},
		{
			name: "the API server fails", instance: anInstance(withPod(ReasonCreatingPod, "x")), lease: bound, node: tenants, fail: map[string]error{"create": errBroken},
			calls: []string{"create vm-1-vm"}, err: errBroken,
		},
	} {
		t.Run(tt.name, tt.run)
	}
}
