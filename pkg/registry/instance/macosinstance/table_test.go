package macosinstance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/tableconvertor/tabletest"
)

func TestTable(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	list := &instance.MacOSInstanceList{Items: []instance.MacOSInstance{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "vm1", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec:       instance.MacOSInstanceSpec{LeaseName: "ci", ImageName: "macos-26", ClassName: "small"},
			Status: instance.MacOSInstanceStatus{
				Phase: instance.MacOSInstanceRunning, IPAddress: &instance.IPAddress{Value: "192.168.64.2"}, NodeName: "mac-a1", SerialNumber: "C07DR00AQ6NV",
				MACAddress: "5e:01:23:45:67:89", MachineID: "AAAA",
				Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Message: "the virtual machine runs"}},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "vm2", CreationTimestamp: metav1.NewTime(now)},
			Spec:       instance.MacOSInstanceSpec{LeaseName: "ci", ImageName: "macos-26", ClassName: "small"},
			Status: instance.MacOSInstanceStatus{
				Phase:      instance.MacOSInstancePending,
				Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Message: "the Mac is away,\nand it may take a while"}},
			},
		},
	}}
	assert.Equal(t, []string{
		"NAME  LEASE  IMAGE     CLASS  PHASE    IP            AGE  |  NODE    SERIAL        MAC                MACHINE-ID  MESSAGE",
		"vm1   ci     macos-26  small  Running  192.168.64.2  60m  |  mac-a1  C07DR00AQ6NV  5e:01:23:45:67:89  AAAA        <none>",
		"vm2   ci     macos-26  small  Pending  <none>        0s   |  <none>  <none>        <none>             <none>      the Mac is away, and it may take a while",
	}, tabletest.Print(t, NewTableConvertor(clocktesting.NewFakePassiveClock(now)), list))
}
