package macnode

import (
	"k8s.io/apimachinery/pkg/api/resource"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

// minimumFree is the free storage that a healthy Mac needs. With less, writes of VMs and of macOS
// itself may fail.
const minimumFree = 10 << 30

// freeSteps is the divisor of the free storage that gives the smallest change to report. Running
// VMs change the free storage all the time, and each report is a write of the MacNode.
const freeSteps = 20

// freeStorage returns the free storage to report, in whole GiB. It keeps the reported amount until
// the change is at least 5 %, or crosses minimumFree.
func freeStorage(hardware *rackv1alpha1.MacNodeHardware, free int64) scalar.Quantity {
	if hardware != nil {
		reported := hardware.FreeStorage.Int64()
		if change := max(free-reported, reported-free); change < max(reported/freeSteps, 1<<30) && (free < minimumFree) == (reported < minimumFree) {
			return hardware.FreeStorage
		}
	}
	return scalar.NewQuantity(free>>30<<30, resource.BinarySI)
}
